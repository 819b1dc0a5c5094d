//! Events of the pools, by a libzfs handle. Like it, they stay on one thread.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::functions;
use super::handle::{Failure, Handle};
use super::nvlist::NvList;

functions!(Functions {
    fn zpool_events_next(*mut c_void, *mut *mut c_void, *mut c_int, c_uint, c_int) -> c_int;
    fn zpool_events_seek(*mut c_void, u64, c_int) -> c_int;
});

/// `ZEVENT_NONE` (`sys/fs/zfs.h`): wait until there is one.
const ZEVENT_NONE: c_uint = 0;
/// `ZEVENT_SEEK_END`: only those that are still to come.
const ZEVENT_SEEK_END: u64 = u64::MAX;

impl Handle {
    /// Passes over what has happened until now. The place is one of this open of `/dev/zfs`.
    pub(in crate::zfs) fn skip_events(&self, device: BorrowedFd<'_>) -> Result<(), Failure> {
        let events = &self.libraries().event;
        // SAFETY: the handle is live, the descriptor is open.
        let code = unsafe {
            (events.zpool_events_seek)(self.as_ptr(), ZEVENT_SEEK_END, device.as_raw_fd())
        };
        (code == 0).then_some(()).ok_or_else(|| self.failure())
    }

    /// Waits for the next event. `None` when the wait ended without one.
    pub(in crate::zfs) fn next_event(
        &self,
        device: BorrowedFd<'_>,
    ) -> Result<Option<NvList>, Failure> {
        let (mut list, mut dropped) = (std::ptr::null_mut(), 0);
        // SAFETY: the handle is live, the descriptor is open, both pointers are written to during this call only.
        let code = unsafe {
            (self.libraries().event.zpool_events_next)(
                self.as_ptr(),
                &raw mut list,
                &raw mut dropped,
                ZEVENT_NONE,
                device.as_raw_fd(),
            )
        };
        if code != 0 {
            return Err(self.failure());
        }
        // SAFETY: the call gives the list away.
        Ok(unsafe { NvList::from_raw(self.libraries(), list) })
    }
}
