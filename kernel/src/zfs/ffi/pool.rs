//! Pools of a libzfs handle. Like it, they stay on one thread.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use super::handle::{Failure, Handle};
use super::nvlist::{NvList, NvRef};
use super::{Libraries, functions, text};

functions!(Functions {
    fn zpool_open_canfail(*mut c_void, *const c_char) -> *mut c_void;
    fn zpool_close(*mut c_void);
    fn zpool_iter(*mut c_void, Visit, *mut c_void) -> c_int;
    fn zpool_get_name(*mut c_void) -> *const c_char;
    fn zpool_get_config(*mut c_void, *mut *mut c_void) -> *mut c_void;
    fn zpool_get_state_str(*mut c_void) -> *const c_char;
    fn zpool_name_to_prop(*const c_char) -> c_int;
    fn zpool_get_prop_int(*mut c_void, c_int, *mut c_int) -> u64;
    fn zpool_state_to_name(c_int, c_int) -> *const c_char;
    fn zvol_volsize_to_reservation(*mut c_void, u64, *mut c_void) -> u64;
});

/// `zpool_iter_f`: owns the handle that it is given; anything but 0 ends the walk.
type Visit = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

impl Handle {
    /// Opens an imported pool, in whatever health.
    pub(in crate::zfs) fn open_pool(&self, pool: &CStr) -> Result<PoolHandle<'_>, Failure> {
        // SAFETY: the handle is live, the name ends with NUL.
        let raw =
            unsafe { (self.libraries().pool.zpool_open_canfail)(self.as_ptr(), pool.as_ptr()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(PoolHandle { handle: self, raw }),
            None => Err(self.failure()),
        }
    }

    /// Every imported pool.
    pub(in crate::zfs) fn pools(&self) -> Result<Vec<PoolHandle<'_>>, Failure> {
        let mut walk = Walk {
            handle: self,
            pools: Vec::new(),
        };
        let walk_ptr: *mut Walk<'_> = &raw mut walk;
        // SAFETY: the handle is live; `visit` gets the pointer back as it is, during this call only.
        let code =
            unsafe { (self.libraries().pool.zpool_iter)(self.as_ptr(), visit, walk_ptr.cast()) };
        if code == 0 {
            Ok(walk.pools)
        } else {
            Err(self.failure())
        }
    }
}

struct Walk<'h> {
    handle: &'h Handle,
    pools: Vec<PoolHandle<'h>>,
}

unsafe extern "C" fn visit(pool: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: `pools` passes its own `Walk`, which nothing else uses meanwhile.
    let walk = unsafe { &mut *walk.cast::<Walk<'_>>() };
    let handle = walk.handle;
    walk.pools
        .extend(NonNull::new(pool).map(|raw| PoolHandle { handle, raw }));
    0
}

/// `zpool_handle_t`.
pub(in crate::zfs) struct PoolHandle<'h> {
    handle: &'h Handle,
    raw: NonNull<c_void>,
}

impl PoolHandle<'_> {
    fn functions(&self) -> &'static Functions {
        &self.handle.libraries().pool
    }

    pub(in crate::zfs) fn name(&self) -> String {
        // SAFETY: the handle is live, and owns the string.
        text(unsafe { (self.functions().zpool_get_name)(self.raw.as_ptr()) }).unwrap_or_default()
    }

    /// The pool's configuration as the kernel told it when the pool was opened.
    pub(in crate::zfs) fn config(&self) -> Option<NvRef<'_>> {
        // SAFETY: the handle is live; the old configuration is not asked for.
        let list =
            unsafe { (self.functions().zpool_get_config)(self.raw.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: the list belongs to the pool's handle, which is not refreshed.
        NonNull::new(list).map(|list| unsafe { NvRef::new(self.handle.libraries(), list) })
    }

    /// `ONLINE`, `SUSPENDED`, …
    pub(in crate::zfs) fn health(&self) -> Option<String> {
        // SAFETY: the handle is live; the string is a constant.
        text(unsafe { (self.functions().zpool_get_state_str)(self.raw.as_ptr()) })
    }

    /// A property that is a number; 0 when the pool cannot tell. `None` when there is no such property.
    pub(in crate::zfs) fn number(&mut self, property: &CStr) -> Option<u64> {
        // SAFETY: reads tables that libzfs_init filled.
        let prop = unsafe { (self.functions().zpool_name_to_prop)(property.as_ptr()) };
        if prop < 0 {
            return None;
        }
        // SAFETY: the handle is live, the number came from the same library, no source is asked for.
        Some(unsafe {
            (self.functions().zpool_get_prop_int)(self.raw.as_ptr(), prop, std::ptr::null_mut())
        })
    }

    /// `zvol_volsize_to_reservation`: bytes that a full volume takes, for `volblocksize` and `copies` in the
    /// list. `volblocksize` must not be 0.
    pub(in crate::zfs) fn reservation(&mut self, volsize: u64, properties: &mut NvList) -> u64 {
        // SAFETY: the handle and the list are live.
        unsafe {
            (self.functions().zvol_volsize_to_reservation)(
                self.raw.as_ptr(),
                volsize,
                properties.as_mut_ptr(),
            )
        }
    }
}

impl Drop for PoolHandle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used after this.
        unsafe { (self.functions().zpool_close)(self.raw.as_ptr()) };
    }
}

impl Libraries {
    /// `vdev_state_t` and `vdev_aux_t` in the words of `zpool status`.
    pub(in crate::zfs) fn vdev_state(&self, state: u64, aux: u64) -> String {
        let number = |value| c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: any number has a word; the string is a constant.
        text(unsafe { (self.pool.zpool_state_to_name)(number(state), number(aux)) })
            .unwrap_or_default()
    }
}
