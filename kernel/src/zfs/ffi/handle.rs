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
    fn zfs_prop_inherit(*mut c_void, *const c_char, c_int) -> c_int;
    fn zfs_iter_filesystems(*mut c_void, Visit, *mut c_void) -> c_int;
    fn zfs_iter_snapshots(*mut c_void, c_int, Visit, *mut c_void, u64, u64) -> c_int;
});

/// `zfs_iter_f`: owns the handle that it is given; anything but 0 ends the walk.
type Visit = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// `ZFS_TYPE_SNAPSHOT`.
const SNAPSHOT: c_int = 1 << 1;

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

    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.raw.as_ptr()
    }

    pub(super) fn failure(&self) -> Failure {
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

    /// Opens a filesystem, volume or snapshot.
    pub(in crate::zfs) fn open(&self, dataset: &CStr) -> Result<Dataset<'_>, Failure> {
        let types = Kind::Filesystem.zfs_type() | Kind::Volume.zfs_type() | SNAPSHOT;
        // SAFETY: the handle is live, the name ends with NUL.
        let raw =
            unsafe { (self.libraries.zfs.zfs_open)(self.raw.as_ptr(), dataset.as_ptr(), types) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Dataset { handle: self, raw }),
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

impl<'h> Dataset<'h> {
    /// The full name.
    pub(in crate::zfs) fn name(&self) -> String {
        // SAFETY: the handle is live, and owns the string.
        text(unsafe { (self.handle.libraries.zfs.zfs_get_name)(self.raw.as_ptr()) })
            .unwrap_or_default()
    }

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
        self.outcome(code)
    }

    /// Back to what the parent has, not to a received value.
    pub(in crate::zfs) fn inherit(&mut self, property: &CStr) -> Result<(), Failure> {
        let zfs = &self.handle.libraries.zfs;
        // SAFETY: the handle is live, the string ends with NUL.
        let code = unsafe { (zfs.zfs_prop_inherit)(self.raw.as_ptr(), property.as_ptr(), 0) };
        self.outcome(code)
    }

    fn outcome(&self, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            Ok(())
        } else {
            Err(self.handle.failure())
        }
    }

    /// Filesystems and volumes directly below.
    pub(in crate::zfs) fn children(&self) -> Result<Vec<Dataset<'h>>, Failure> {
        let zfs = &self.handle.libraries.zfs;
        self.walk(|walk| {
            // SAFETY: the handle is live; `visit` gets the pointer back as it is, during this call only.
            unsafe { (zfs.zfs_iter_filesystems)(self.raw.as_ptr(), visit, walk) }
        })
    }

    /// Snapshots of this dataset, in no order.
    pub(in crate::zfs) fn snapshots(&self) -> Result<Vec<Dataset<'h>>, Failure> {
        let zfs = &self.handle.libraries.zfs;
        self.walk(|walk| {
            // Not only names, and of any age: in 2.1 the second argument is a boolean, later flags too.
            // SAFETY: the handle is live; `visit` gets the pointer back as it is, during this call only.
            unsafe { (zfs.zfs_iter_snapshots)(self.raw.as_ptr(), 0, visit, walk, 0, 0) }
        })
    }

    fn walk(&self, each: impl FnOnce(*mut c_void) -> c_int) -> Result<Vec<Dataset<'h>>, Failure> {
        let mut walk = Walk {
            handle: self.handle,
            found: Vec::new(),
        };
        let walk_ptr: *mut Walk<'h> = &raw mut walk;
        let code = each(walk_ptr.cast());
        self.outcome(code)?;
        Ok(walk.found)
    }
}

impl Drop for Dataset<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used after this.
        unsafe { (self.handle.libraries.zfs.zfs_close)(self.raw.as_ptr()) };
    }
}

struct Walk<'h> {
    handle: &'h Handle,
    found: Vec<Dataset<'h>>,
}

unsafe extern "C" fn visit(dataset: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: `Dataset::walk` passes its own `Walk`, which nothing else uses meanwhile.
    let walk = unsafe { &mut *walk.cast::<Walk<'_>>() };
    let handle = walk.handle;
    // The callback owns the handle.
    walk.found
        .extend(NonNull::new(dataset).map(|raw| Dataset { handle, raw }));
    0
}
