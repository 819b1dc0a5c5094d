//! libext2fs and libcom_err, loaded at run time: `ext2fs/ext2fs.h` of e2fsprogs 1.43 and later.
//!
//! A node that never formats runs without them. Every wrapper turns an `errcode_t` into
//! [`Error::Ext2`] with the library's own words. The library keeps no state outside the handle
//! but its error table, which is set up once.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use libloading::Library;
use nix::errno::Errno;

use super::Error;
use crate::error::SysError;

type Errcode = c_long;

/// `EXT2_ET_MAGIC_EXT2FS_FILSYS`.
const MAGIC: Errcode = 0x7f2b_b701;
/// `EXT2_FLAG_EXCLUSIVE | EXT2_FLAG_64BITS`.
const FLAGS: c_int = 0x4000 | 0x2_0000;
/// `EXT2_MKJOURNAL_LAZYINIT`.
const MKJOURNAL_LAZYINIT: c_int = 0x2;

/// `EXT2_BG_INODE_ZEROED`.
const INODE_ZEROED: u16 = 0x4;

/// `struct ext2_super_block` in the order of the CPU, as the library keeps it in memory.
#[repr(C, align(8))]
pub(super) struct Super([u8; 1024]);

impl Super {
    pub(super) fn zeroed() -> Self {
        Self([0; 1024])
    }

    pub(super) fn set<const N: usize>(&mut self, offset: usize, value: [u8; N]) {
        self.0[offset..offset + N].copy_from_slice(&value);
    }

    pub(super) fn get_u16(&self, offset: usize) -> u16 {
        let mut value = [0; 2];
        value.copy_from_slice(&self.0[offset..offset + 2]);
        u16::from_ne_bytes(value)
    }

    pub(super) fn get_u32(&self, offset: usize) -> u32 {
        let mut value = [0; 4];
        value.copy_from_slice(&self.0[offset..offset + 4]);
        u32::from_ne_bytes(value)
    }
}

/// The beginning of `struct struct_ext2_filsys`, unchanged since 1.41; later fields are not touched.
#[repr(C)]
struct Filsys {
    magic: Errcode,
    io: *mut c_void,
    flags: c_int,
    device_name: *mut c_char,
    superblock: *mut Super,
    blocksize: c_uint,
    fragsize: c_int,
    group_desc_count: u32,
    desc_blocks: c_ulong,
    group_desc: *mut c_void,
    inode_blocks_per_group: c_uint,
}

/// `struct ext2_inode`, of which only `i_mode` is named here.
#[repr(C, align(8))]
struct Inode {
    mode: u16,
    rest: [u8; 126],
}

macro_rules! library {
    ($(fn $field:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions, by their names without the prefix `ext2fs_`.
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is the prototype in ext2fs.h.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(concat!("ext2fs_", stringify!($field)))
                        }?;
                        *symbol
                    },)*
                })
            }
        }
    };
}

library! {
    fn initialize(*const c_char, c_int, *mut Super, *mut c_void, *mut *mut Filsys) -> Errcode;
    fn init_csum_seed(*mut Filsys);
    fn allocate_tables(*mut Filsys) -> Errcode;
    fn count_used_clusters(*mut Filsys, u64, u64, *mut u64) -> Errcode;
    fn inode_table_loc(*mut Filsys, u32) -> u64;
    fn bg_itable_unused(*mut Filsys, u32) -> u32;
    fn bg_flags_set(*mut Filsys, u32, u16);
    fn group_desc_csum_set(*mut Filsys, u32);
    fn zero_blocks2(*mut Filsys, u64, c_int, *mut u64, *mut c_int) -> Errcode;
    fn read_inode(*mut Filsys, u32, *mut Inode) -> Errcode;
    fn write_inode(*mut Filsys, u32, *mut Inode) -> Errcode;
    fn write_inode_full(*mut Filsys, u32, *mut c_void, c_int) -> Errcode;
    fn mkdir(*mut Filsys, u32, u32, *const c_char) -> Errcode;
    fn lookup(*mut Filsys, u32, *const c_char, c_int, *mut c_char, *mut u32) -> Errcode;
    fn expand_dir(*mut Filsys, u32) -> Errcode;
    fn inode_alloc_stats2(*mut Filsys, u32, c_int, c_int);
    fn update_bb_inode(*mut Filsys, *mut c_void) -> Errcode;
    fn create_resize_inode(*mut Filsys) -> Errcode;
    fn default_journal_size(u64) -> c_int;
    fn add_journal_inode2(*mut Filsys, u32, u64, c_int) -> Errcode;
    fn close_free(*mut *mut Filsys) -> Errcode;
    fn free(*mut Filsys);
}

struct Api {
    functions: Functions,
    /// `unix_io_manager`, an opaque `struct struct_io_manager`.
    io_manager: *mut c_void,
    error_message: unsafe extern "C" fn(c_long) -> *const c_char,
}

// SAFETY: the manager is a table of functions in the library that nobody writes to.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

fn api() -> Result<&'static Api, Error> {
    static API: OnceLock<Result<Api, libloading::Error>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(|_| Error::Missing {
        what: "libext2fs.so.2 with libcom_err.so.2, of 1.43 or later",
        package: "e2fsprogs",
    })
}

fn load() -> Result<Api, libloading::Error> {
    // SAFETY: the constructors of these two libraries do nothing that needs a precondition.
    let ext2fs = unsafe { Library::new("libext2fs.so.2") }?;
    // SAFETY: as above.
    let com_err = unsafe { Library::new("libcom_err.so.2") }?;
    let functions = Functions::resolve(&ext2fs)?;
    // SAFETY: the library exports `io_manager unix_io_manager`, a variable that holds a pointer.
    let io_manager = unsafe { ext2fs.get::<*mut *mut c_void>("unix_io_manager") }?;
    // SAFETY: the symbol's address is that of an initialised variable of the library.
    let io_manager = unsafe { **io_manager };
    // SAFETY: the type is the prototype in ext2_err.h.
    let initialize =
        unsafe { ext2fs.get::<unsafe extern "C" fn()>("initialize_ext2_error_table") }?;
    // SAFETY: it registers a static table, under the lock of libcom_err.
    unsafe { initialize() };
    // SAFETY: the type is the prototype in com_err.h.
    let error_message = *unsafe { com_err.get("error_message") }?;
    // Never unloaded: the functions above live as long as the process.
    std::mem::forget((ext2fs, com_err));
    Ok(Api {
        functions,
        io_manager,
        error_message,
    })
}

/// A filesystem being made. Dropped without [`Filesystem::finish`], it writes nothing more.
pub(super) struct Filesystem {
    api: &'static Api,
    handle: NonNull<Filsys>,
    device: String,
}

impl Filesystem {
    /// `ext2fs_initialize`: lays out the groups for what `parameters` say and opens the device with
    /// `O_EXCL`. Nothing is written yet.
    pub(super) fn initialize(device: &Path, parameters: &mut Super) -> Result<Self, Error> {
        let api = api()?;
        let name = CString::new(device.as_os_str().as_bytes())
            .map_err(|_| SysError::new("ext2fs_initialize", device.display(), Errno::EINVAL))?;
        let mut handle = ptr::null_mut();
        // SAFETY: all pointers are valid for the call; the library copies the name and parameters.
        let code = unsafe {
            (api.functions.initialize)(
                name.as_ptr(),
                FLAGS,
                parameters,
                api.io_manager,
                &raw mut handle,
            )
        };
        let device = device.display().to_string();
        check(api, "ext2fs_initialize", &device, code)?;
        let Some(handle) = NonNull::new(handle) else {
            return Err(SysError::new("ext2fs_initialize", device, Errno::EFAULT).into());
        };
        let filesystem = Self {
            api,
            handle,
            device,
        };
        filesystem.check_layout()?;
        Ok(filesystem)
    }

    /// A library whose handle looks different is refused before anything is written.
    fn check_layout(&self) -> Result<(), Error> {
        // SAFETY: the library allocated the handle and returned success.
        let handle = unsafe { self.handle.as_ref() };
        // SAFETY: the pointer is null or the library's superblock of 1,024 bytes.
        let superblock = unsafe { handle.superblock.as_ref() };
        let known = handle.magic == MAGIC
            && superblock.is_some_and(|s| {
                s.get_u16(56) == 0xEF53 && 1024_u64 << s.get_u32(24) == u64::from(handle.blocksize)
            });
        if known {
            return Ok(());
        }
        Err(
            SysError::new("ext2fs_initialize", &self.device, Errno::ENOSYS)
                .with_detail("this libext2fs has another layout than the one known (1.43 to 1.47)")
                .into(),
        )
    }

    fn raw(&self) -> *mut Filsys {
        self.handle.as_ptr()
    }

    fn check(&self, call: &'static str, code: Errcode) -> Result<(), Error> {
        check(self.api, call, &self.device, code)
    }

    /// The superblock that the library will write.
    pub(super) fn superblock(&mut self) -> &mut Super {
        // SAFETY: the handle is live, and its layout was checked.
        let superblock = unsafe { self.handle.as_ref() }.superblock;
        // SAFETY: it is valid until the handle is freed, and `&mut self` makes it unaliased.
        unsafe { &mut *superblock }
    }

    /// Block groups.
    pub(super) fn groups(&self) -> u32 {
        // SAFETY: the handle is live, and its layout was checked.
        unsafe { self.handle.as_ref() }.group_desc_count
    }

    /// Takes the checksum seed from the UUID in the superblock.
    pub(super) fn init_checksum_seed(&mut self) {
        // SAFETY: the handle is live.
        unsafe { (self.api.functions.init_csum_seed)(self.raw()) };
    }

    /// Finds room for bitmaps and inode tables.
    pub(super) fn allocate_tables(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is live.
        let code = unsafe { (self.api.functions.allocate_tables)(self.raw()) };
        self.check("ext2fs_allocate_tables", code)
    }

    /// Blocks in use from `first` to `last`, both included.
    pub(super) fn used_blocks(&mut self, first: u64, last: u64) -> Result<u64, Error> {
        let mut used = 0;
        // SAFETY: the handle is live, and the result is a u64.
        let code = unsafe {
            (self.api.functions.count_used_clusters)(self.raw(), first, last, &raw mut used)
        };
        self.check("ext2fs_count_used_clusters", code)?;
        Ok(used)
    }

    /// First block of a group's inode table.
    pub(super) fn inode_table(&self, group: u32) -> u64 {
        // SAFETY: the handle is live, and the caller counts below `groups`.
        unsafe { (self.api.functions.inode_table_loc)(self.raw(), group) }
    }

    /// Inodes at the end of a group's table that were never used.
    pub(super) fn unused_inodes(&self, group: u32) -> u32 {
        // SAFETY: the handle is live, and the caller counts below `groups`.
        unsafe { (self.api.functions.bg_itable_unused)(self.raw(), group) }
    }

    /// Says that a group's inode table was zeroed whole, so that the kernel need not.
    pub(super) fn mark_table_zeroed(&mut self, group: u32) {
        // SAFETY: the handle is live, and the caller counts below `groups`.
        unsafe { (self.api.functions.bg_flags_set)(self.raw(), group, INODE_ZEROED) };
        // SAFETY: as above.
        unsafe { (self.api.functions.group_desc_csum_set)(self.raw(), group) };
    }

    /// Writes zeros.
    pub(super) fn zero_blocks(&mut self, first: u64, count: u32) -> Result<(), Error> {
        let count = c_int::try_from(count)
            .map_err(|_| SysError::new("ext2fs_zero_blocks2", &self.device, Errno::EOVERFLOW))?;
        // SAFETY: the handle is live; the two results may be null.
        let code = unsafe {
            (self.api.functions.zero_blocks2)(
                self.raw(),
                first,
                count,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        self.check("ext2fs_zero_blocks2", code)
    }

    /// Writes an inode of zeros, with its checksum. `inode_size` is that of the filesystem.
    pub(super) fn clear_inode(&mut self, inode: u32, inode_size: u16) -> Result<(), Error> {
        let mut zeros = vec![0_u64; usize::from(inode_size).div_ceil(8)];
        let size = c_int::from(inode_size);
        // SAFETY: the handle is live; the buffer has `size` bytes and the alignment of an inode.
        let code = unsafe {
            (self.api.functions.write_inode_full)(
                self.raw(),
                inode,
                zeros.as_mut_ptr().cast(),
                size,
            )
        };
        self.check("ext2fs_write_inode_full", code)
    }

    /// Sets an inode's type and permissions.
    pub(super) fn set_mode(&mut self, number: u32, mode: u16) -> Result<(), Error> {
        let mut inode = Inode {
            mode: 0,
            rest: [0; 126],
        };
        // SAFETY: the handle is live, and the buffer is one struct ext2_inode.
        let code = unsafe { (self.api.functions.read_inode)(self.raw(), number, &raw mut inode) };
        self.check("ext2fs_read_inode", code)?;
        inode.mode = mode;
        // SAFETY: as above.
        let code = unsafe { (self.api.functions.write_inode)(self.raw(), number, &raw mut inode) };
        self.check("ext2fs_write_inode", code)
    }

    /// Makes the root directory (root:root 0755).
    pub(super) fn make_root(&mut self, root: u32) -> Result<(), Error> {
        // SAFETY: the handle is live; a null name makes a directory that is its own parent.
        let code = unsafe { (self.api.functions.mkdir)(self.raw(), root, root, ptr::null()) };
        self.check("ext2fs_mkdir", code)
    }

    /// Makes a directory in `parent` and returns its inode.
    pub(super) fn make_directory(&mut self, parent: u32, name: &CStr) -> Result<u32, Error> {
        // SAFETY: the handle is live, and the name ends with NUL.
        let code = unsafe { (self.api.functions.mkdir)(self.raw(), parent, 0, name.as_ptr()) };
        self.check("ext2fs_mkdir", code)?;
        let length = c_int::try_from(name.count_bytes()).unwrap_or(c_int::MAX);
        let mut inode = 0;
        // SAFETY: the handle is live; a null buffer makes the library allocate its own.
        let code = unsafe {
            (self.api.functions.lookup)(
                self.raw(),
                parent,
                name.as_ptr(),
                length,
                ptr::null_mut(),
                &raw mut inode,
            )
        };
        self.check("ext2fs_lookup", code)?;
        Ok(inode)
    }

    /// Adds one empty block to a directory.
    pub(super) fn expand_directory(&mut self, inode: u32) -> Result<(), Error> {
        // SAFETY: the handle is live.
        let code = unsafe { (self.api.functions.expand_dir)(self.raw(), inode) };
        self.check("ext2fs_expand_dir", code)
    }

    /// Marks an inode used, in its bitmap and the group's counts.
    pub(super) fn take_inode(&mut self, inode: u32) {
        // SAFETY: the handle is live, and reserved inodes exist in every filesystem.
        unsafe { (self.api.functions.inode_alloc_stats2)(self.raw(), inode, 1, 0) };
    }

    /// Writes the inode that lists bad blocks, with none in it.
    pub(super) fn write_no_bad_blocks(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is live; a null list is an empty one.
        let code = unsafe { (self.api.functions.update_bb_inode)(self.raw(), ptr::null_mut()) };
        self.check("ext2fs_update_bb_inode", code)
    }

    /// Reserves descriptor blocks for growing while mounted.
    pub(super) fn create_resize_inode(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is live.
        let code = unsafe { (self.api.functions.create_resize_inode)(self.raw()) };
        self.check("ext2fs_create_resize_inode", code)
    }

    /// The journal's size for a filesystem of this many blocks, in blocks; `None` when it is too small for one.
    pub(super) fn default_journal_blocks(&self, blocks: u64) -> Option<u32> {
        // SAFETY: a pure function.
        let size = unsafe { (self.api.functions.default_journal_size)(blocks) };
        u32::try_from(size).ok().filter(|&size| size > 0)
    }

    /// Makes the journal inode, with the journal's superblock written and its other blocks left as they are.
    /// With `zeroed` they are written too.
    pub(super) fn add_journal(&mut self, blocks: u32, zeroed: bool) -> Result<(), Error> {
        let flags = if zeroed { 0 } else { MKJOURNAL_LAZYINIT };
        // The goal "anywhere" lets the library choose the middle, as mke2fs does.
        // SAFETY: the handle is live.
        let code =
            unsafe { (self.api.functions.add_journal_inode2)(self.raw(), blocks, u64::MAX, flags) };
        self.check("ext2fs_add_journal_inode2", code)
    }

    /// Writes everything, fsyncs, closes.
    pub(super) fn finish(self) -> Result<(), Error> {
        let this = std::mem::ManuallyDrop::new(self);
        let (api, mut handle) = (this.api, this.raw());
        // SAFETY: the handle is live, and `this` is never dropped: it is freed once, here.
        let code = unsafe { (api.functions.close_free)(&raw mut handle) };
        check(api, "ext2fs_close_free", &this.device, code)
    }
}

impl Drop for Filesystem {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used after this.
        unsafe { (self.api.functions.free)(self.raw()) };
    }
}

fn check(api: &Api, call: &'static str, device: &str, code: Errcode) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    // Small codes are plain errnos.
    if let Ok(number @ 1..=4095) = i32::try_from(code) {
        return Err(SysError::new(call, device, Errno::from_raw(number)).into());
    }
    // SAFETY: returns a string that is static, or the library's own buffer for an unknown code.
    let message = unsafe { (api.error_message)(code) };
    let message = if message.is_null() {
        String::new()
    } else {
        // SAFETY: not null, ends with NUL, copied at once.
        unsafe { CStr::from_ptr(message) }
            .to_string_lossy()
            .into_owned()
    };
    Err(Error::Ext2 {
        call,
        device: device.to_owned(),
        code,
        message,
    })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_handle_begins_as_in_ext2fs_h() {
        assert_eq!(offset_of!(Filsys, superblock), 32);
        assert_eq!(offset_of!(Filsys, blocksize), 40);
        assert_eq!(offset_of!(Filsys, group_desc_count), 48);
        assert_eq!(offset_of!(Filsys, inode_blocks_per_group), 72);
        assert_eq!(size_of::<Super>(), 1024);
        assert_eq!(size_of::<Inode>(), 128);
    }
}
