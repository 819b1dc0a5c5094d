//! The driver as a cluster has it: an agent on storage0, consumers on node0 and node1, controllers as processes of this
//! machine, all with the rights that the chart gives and no other. Calls go to their real sockets.

pub(crate) mod fixture;
mod life;
mod outages;
