//! A libzfs handle. It is not `Send`: it lives and dies on one thread.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use nix::errno::Errno;

use super::nvlist::NvRef;
use super::{Kind, Libraries, functions, text};

functions!(Functions {
    fn libzfs_init() -> *mut c_void;
    fn libzfs_fini(*mut c_void);
    fn libzfs_errno(*mut c_void) -> c_int;
    fn libzfs_error_action(*mut c_void) -> *const c_char;
    fn libzfs_error_description(*mut c_void) -> *const c_char;
    fn libzfs_print_on_error(*mut c_void, c_int);
    fn zfs_open(*mut c_void, *const c_char, c_int) -> *mut c_void;
    fn zfs_close(*mut c_void);
    fn zfs_get_name(*const c_void) -> *const c_char;
    fn zfs_get_type(*const c_void) -> c_int;
    fn zfs_get_all_props(*mut c_void) -> *mut c_void;
    fn zfs_prop_set(*mut c_void, *const c_char, *const c_char) -> c_int;
    fn zfs_iter_filesystems(*mut c_void, Visit, *mut c_void) -> c_int;
    fn zpool_open_canfail(*mut c_void, *const c_char) -> *mut c_void;
    fn zpool_close(*mut c_void);
    fn zpool_get_config(*mut c_void, *mut *mut c_void) -> *mut c_void;
    fn zpool_get_state_str(*mut c_void) -> *const c_char;
});

/// `zfs_iter_f`: owns the handle that it is given; anything but 0 ends the walk.
type Visit = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// Why libzfs said no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::zfs) struct Failure {
    /// `zfs_error_t`.
    pub(in crate::zfs) code: c_int,
    /// "cannot open 'tank/x'".
    pub(in crate::zfs) action: String,
    /// "dataset does not exist".
    pub(in crate::zfs) description: String,
}

/// `libzfs_handle_t`.
pub(in crate::zfs) struct Handle {
    libraries: &'static Libraries,
    raw: NonNull<c_void>,
}

impl Handle {
    pub(in crate::zfs) fn init(libraries: &'static Libraries) -> Result<Self, Errno> {
        // SAFETY: fills the tables of properties and opens /dev/zfs.
        let raw = unsafe { (libraries.zfs.libzfs_init)() };
        let raw = NonNull::new(raw).ok_or_else(Errno::last)?;
        // SAFETY: the handle is live.
        unsafe { (libraries.zfs.libzfs_print_on_error)(raw.as_ptr(), 0) };
        Ok(Self { libraries, raw })
    }

    pub(in crate::zfs) fn libraries(&self) -> &'static Libraries {
        self.libraries
    }

    fn failure(&self) -> Failure {
        let zfs = &self.libraries.zfs;
        // SAFETY: the handle is live.
        let code = unsafe { (zfs.libzfs_errno)(self.raw.as_ptr()) };
        // SAFETY: the handle is live; the string is copied before the next call.
        let action = unsafe { (zfs.libzfs_error_action)(self.raw.as_ptr()) };
        // SAFETY: as above.
        let description = unsafe { (zfs.libzfs_error_description)(self.raw.as_ptr()) };
        Failure {
            code,
            action: text(action).unwrap_or_default(),
            description: text(description).unwrap_or_default(),
        }
    }

    /// Opens a filesystem or volume.
    pub(in crate::zfs) fn open(&self, dataset: &CStr) -> Result<Dataset<'_>, Failure> {
        let types = Kind::Filesystem.zfs_type() | Kind::Volume.zfs_type();
        // SAFETY: the handle is live, the name ends with NUL.
        let raw =
            unsafe { (self.libraries.zfs.zfs_open)(self.raw.as_ptr(), dataset.as_ptr(), types) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Dataset { handle: self, raw }),
            None => Err(self.failure()),
        }
    }

    /// Opens an imported pool, in whatever health.
    pub(in crate::zfs) fn open_pool(&self, pool: &CStr) -> Result<PoolHandle<'_>, Failure> {
        // SAFETY: the handle is live, the name ends with NUL.
        let raw =
            unsafe { (self.libraries.zfs.zpool_open_canfail)(self.raw.as_ptr(), pool.as_ptr()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(PoolHandle { handle: self, raw }),
            None => Err(self.failure()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: everything opened by it borrows it, and so is closed.
        unsafe { (self.libraries.zfs.libzfs_fini)(self.raw.as_ptr()) };
    }
}

/// `zfs_handle_t`.
pub(in crate::zfs) struct Dataset<'h> {
    handle: &'h Handle,
    raw: NonNull<c_void>,
}

impl Dataset<'_> {
    /// `None` for a type that is neither.
    pub(in crate::zfs) fn kind(&self) -> Option<Kind> {
        // SAFETY: the handle is live.
        let number = unsafe { (self.handle.libraries.zfs.zfs_get_type)(self.raw.as_ptr()) };
        [Kind::Filesystem, Kind::Volume]
            .into_iter()
            .find(|kind| kind.zfs_type() == number)
    }

    /// All properties that are not at their default: name → list of `value` and `source`.
    pub(in crate::zfs) fn properties(&self) -> Option<NvRef<'_>> {
        let libraries = self.handle.libraries;
        // SAFETY: the handle is live.
        let list = unsafe { (libraries.zfs.zfs_get_all_props)(self.raw.as_ptr()) };
        // SAFETY: the list belongs to the dataset's handle and changes only with `set`, which borrows it mutably.
        NonNull::new(list).map(|list| unsafe { NvRef::new(libraries, list) })
    }

    pub(in crate::zfs) fn set(&mut self, property: &CStr, value: &CStr) -> Result<(), Failure> {
        let zfs = &self.handle.libraries.zfs;
        // SAFETY: the handle is live, both strings end with NUL.
        let code =
            unsafe { (zfs.zfs_prop_set)(self.raw.as_ptr(), property.as_ptr(), value.as_ptr()) };
        if code == 0 {
            Ok(())
        } else {
            Err(self.handle.failure())
        }
    }

    /// Filesystems and volumes directly below.
    pub(in crate::zfs) fn children(&self) -> Result<Vec<String>, Failure> {
        let zfs = &self.handle.libraries.zfs;
        let mut walk = Walk {
            zfs,
            names: Vec::new(),
        };
        let walk_ptr: *mut Walk<'_> = &raw mut walk;
        // SAFETY: the handle is live; `visit` gets the pointer back as it is, during this call only.
        let code = unsafe { (zfs.zfs_iter_filesystems)(self.raw.as_ptr(), visit, walk_ptr.cast()) };
        if code == 0 {
            Ok(walk.names)
        } else {
            Err(self.handle.failure())
        }
    }
}

impl Drop for Dataset<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used after this.
        unsafe { (self.handle.libraries.zfs.zfs_close)(self.raw.as_ptr()) };
    }
}

struct Walk<'a> {
    zfs: &'a Functions,
    names: Vec<String>,
}

unsafe extern "C" fn visit(dataset: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: `children` passes its own `Walk`, which nothing else uses meanwhile.
    let walk = unsafe { &mut *walk.cast::<Walk<'_>>() };
    // SAFETY: libzfs gives a live handle.
    let name = unsafe { (walk.zfs.zfs_get_name)(dataset) };
    walk.names.extend(text(name));
    // SAFETY: the callback owns the handle.
    unsafe { (walk.zfs.zfs_close)(dataset) };
    0
}

/// `zpool_handle_t`.
pub(in crate::zfs) struct PoolHandle<'h> {
    handle: &'h Handle,
    raw: NonNull<c_void>,
}

impl PoolHandle<'_> {
    /// The pool's configuration as the kernel told it when the pool was opened.
    pub(in crate::zfs) fn config(&self) -> Option<NvRef<'_>> {
        let libraries = self.handle.libraries;
        // SAFETY: the handle is live; the old configuration is not asked for.
        let list =
            unsafe { (libraries.zfs.zpool_get_config)(self.raw.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: the list belongs to the pool's handle, which is not refreshed.
        NonNull::new(list).map(|list| unsafe { NvRef::new(libraries, list) })
    }

    /// `ONLINE`, `SUSPENDED`, …
    pub(in crate::zfs) fn health(&self) -> Option<String> {
        // SAFETY: the handle is live; the string is a constant.
        text(unsafe { (self.handle.libraries.zfs.zpool_get_state_str)(self.raw.as_ptr()) })
    }
}

impl Drop for PoolHandle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used after this.
        unsafe { (self.handle.libraries.zfs.zpool_close)(self.raw.as_ptr()) };
    }
}
