//! libzfs_core: calls that are one ioctl each, from any thread, after [`Libraries::init_core`].

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use nix::errno::Errno;

use super::nvlist::{NvList, Value};
use super::{Kind, Libraries, functions, text};

functions!(Functions {
    fn libzfs_core_init() -> c_int;
    fn lzc_create(*const c_char, c_int, *mut c_void, *mut u8, c_uint) -> c_int;
    fn lzc_destroy(*const c_char) -> c_int;
    fn lzc_exists(*const c_char) -> c_int;
    fn lzc_rename(*const c_char, *const c_char) -> c_int;
    fn lzc_snapshot(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
    fn lzc_destroy_snaps(*mut c_void, c_int, *mut *mut c_void) -> c_int;
    fn lzc_clone(*const c_char, *const c_char, *mut c_void) -> c_int;
    fn lzc_promote(*const c_char, *mut c_char, c_int) -> c_int;
    fn lzc_channel_program(
        *const c_char,
        *const c_char,
        u64,
        u64,
        *mut c_void,
        *mut *mut c_void
    ) -> c_int;
});

/// `ZFS_MAX_DATASET_NAME_LEN` (`sys/fs/zfs.h`), with its NUL.
const NAME_MAX: usize = 256;

/// `ZCP_DEFAULT_INSTRLIMIT`, `ZCP_DEFAULT_MEMLIMIT` (`sys/zcp.h`).
const INSTRUCTIONS: u64 = 10_000_000;
const MEMORY: u64 = 10 << 20;

/// A call on several names failed: nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::zfs) struct Refusal {
    /// What the call returned.
    pub(in crate::zfs) code: c_int,
    /// What the kernel said of each name that it had something to say about.
    pub(in crate::zfs) names: Vec<(String, c_int)>,
}

/// The result of an lzc call: an errno, or one of `zfs_errno_t` from 1024 on.
fn outcome(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code) }
}

impl Libraries {
    /// Opens `/dev/zfs` for the lzc calls; it stays open as long as the process.
    pub(in crate::zfs) fn init_core(&self) -> Result<(), Errno> {
        // SAFETY: takes its own lock, counts its users.
        outcome(unsafe { (self.core.libzfs_core_init)() }).map_err(Errno::from_raw)
    }

    /// `lzc_create`.
    pub(in crate::zfs) fn create(
        &self,
        dataset: &CStr,
        kind: Kind,
        properties: &mut NvList,
    ) -> Result<(), c_int> {
        // SAFETY: the name and the list are valid for the call; no key is given.
        outcome(unsafe {
            (self.core.lzc_create)(
                dataset.as_ptr(),
                kind.lzc_type(),
                properties.as_mut_ptr(),
                std::ptr::null_mut(),
                0,
            )
        })
    }

    /// `lzc_destroy`: one dataset, never its children.
    pub(in crate::zfs) fn destroy(&self, dataset: &CStr) -> Result<(), c_int> {
        // SAFETY: the name is valid for the call.
        outcome(unsafe { (self.core.lzc_destroy)(dataset.as_ptr()) })
    }

    /// `lzc_exists`: true is certain; false may be any failure.
    pub(in crate::zfs) fn surely_exists(&self, dataset: &CStr) -> bool {
        // SAFETY: the name is valid for the call.
        unsafe { (self.core.lzc_exists)(dataset.as_ptr()) != 0 }
    }

    /// `lzc_rename`: a dataset, with what is below it.
    pub(in crate::zfs) fn rename(&self, from: &CStr, to: &CStr) -> Result<(), c_int> {
        // SAFETY: both names are valid for the call.
        outcome(unsafe { (self.core.lzc_rename)(from.as_ptr(), to.as_ptr()) })
    }

    /// `lzc_snapshot`: all of the names in one transaction group, or none.
    pub(in crate::zfs) fn snapshot(
        &'static self,
        names: &mut NvList,
        properties: &mut NvList,
    ) -> Result<(), Refusal> {
        let mut errors = std::ptr::null_mut();
        // SAFETY: both lists are valid for the call; writes null or a list of ours to the pointer.
        let code = unsafe {
            (self.core.lzc_snapshot)(names.as_mut_ptr(), properties.as_mut_ptr(), &raw mut errors)
        };
        self.per_name(code, errors)
    }

    /// `lzc_destroy_snaps`. A name that does not exist is no failure.
    pub(in crate::zfs) fn destroy_snapshots(
        &'static self,
        names: &mut NvList,
        is_deferred: bool,
    ) -> Result<(), Refusal> {
        let mut errors = std::ptr::null_mut();
        // SAFETY: the list is valid for the call; writes null or a list of ours to the pointer.
        let code = unsafe {
            (self.core.lzc_destroy_snaps)(
                names.as_mut_ptr(),
                c_int::from(is_deferred),
                &raw mut errors,
            )
        };
        self.per_name(code, errors)
    }

    fn per_name(&'static self, code: c_int, errors: *mut c_void) -> Result<(), Refusal> {
        // SAFETY: the call gave the list away.
        let errors = unsafe { NvList::from_raw(self, errors) };
        outcome(code).map_err(|code| Refusal {
            code,
            names: errors.map_or_else(Vec::new, |list| {
                let numbers = |(name, value)| match value {
                    Value::I32(code) => Some((name, code)),
                    _ => None,
                };
                list.as_ref().pairs().filter_map(numbers).collect()
            }),
        })
    }

    /// `lzc_clone`.
    pub(in crate::zfs) fn clone_snapshot(
        &self,
        dataset: &CStr,
        origin: &CStr,
        properties: &mut NvList,
    ) -> Result<(), c_int> {
        // SAFETY: the names and the list are valid for the call.
        outcome(unsafe {
            (self.core.lzc_clone)(dataset.as_ptr(), origin.as_ptr(), properties.as_mut_ptr())
        })
    }

    /// `lzc_promote`. With `EEXIST` comes the name, after the `@`, that both sides have.
    pub(in crate::zfs) fn promote(&self, dataset: &CStr) -> Result<(), (c_int, String)> {
        let mut name = [0_u8; NAME_MAX];
        // SAFETY: the name is valid for the call; the buffer has the size that is told, less one byte
        // that stays zero.
        let code = unsafe {
            (self.core.lzc_promote)(
                dataset.as_ptr(),
                name.as_mut_ptr().cast(),
                (NAME_MAX - 1) as c_int,
            )
        };
        outcome(code).map_err(|code| (code, text(name.as_ptr().cast()).unwrap_or_default()))
    }

    /// `lzc_channel_program`: runs it in one transaction group, and gives the number that it returns.
    /// An error is the call's code with what the interpreter said.
    pub(in crate::zfs) fn run_program(
        &'static self,
        pool: &CStr,
        program: &CStr,
        arguments: &mut NvList,
    ) -> Result<i64, (c_int, String)> {
        let mut answer = std::ptr::null_mut();
        // SAFETY: the strings and the list are valid for the call; writes null or a list of ours.
        let code = unsafe {
            (self.core.lzc_channel_program)(
                pool.as_ptr(),
                program.as_ptr(),
                INSTRUCTIONS,
                MEMORY,
                arguments.as_mut_ptr(),
                &raw mut answer,
            )
        };
        // SAFETY: the call gave the list away.
        let answer = unsafe { NvList::from_raw(self, answer) };
        let get = |name| answer.as_ref().and_then(|list| list.as_ref().get(name));
        match (code, get("return"), get("error")) {
            (0, Some(Value::I64(number)), _) => Ok(number),
            (0, _, _) => Err((nix::libc::EBADMSG, "no number came back".to_owned())),
            (code, _, Some(Value::Text(said))) => Err((code, said)),
            (code, _, _) => Err((code, String::new())),
        }
    }
}
