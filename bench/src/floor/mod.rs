//! The floor: what the kernel needs for the job, one system call after the other, with no check, no retry and no word
//! to anybody. The kernel rooms' thin wrappers make the calls.

pub mod attach;
pub mod create;
pub mod target;
