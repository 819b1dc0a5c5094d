//! One room for each Linux interface that zvolt uses, and no word of CSI.
//!
//! Every room is blocking and synchronous: the caller decides on which thread it runs. A room
//! takes the root of the tree that it works on, so that its logic is tested on a plain directory
//! and its truth in the lab. Rooms share [`error::SysError`] and [`attr`], and nothing else.

pub mod attr;
pub mod block;
pub mod error;
pub mod format;
pub mod module;
pub mod mount;
pub mod net;
pub mod nvme;
pub mod nvmet;
pub mod preflight;
pub mod probe;
pub mod uevent;
pub mod zfs;

pub use error::SysError;
