//! The gRPC front end: requests are checked, work is started with its volume's lock and deadline, errors
//! become codes. Thin: proto in, model out.

mod calls;
mod check;
mod controller;
mod group;
mod identity;
mod node;
pub mod server;
pub mod socket;
mod status;
#[cfg(test)]
mod tests;
pub mod trace;
