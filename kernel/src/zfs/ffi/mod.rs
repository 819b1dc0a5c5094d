//! libnvpair, libzfs_core and libzfs of OpenZFS 2.1 to 2.3, loaded at run time by soname (C-84).
//!
//! The prototypes are those of `sys/nvpair.h`, `libzfs_core.h`, `libzfs.h`, `zfs_prop.h`. They did not change
//! between these versions except for `const`. Nothing of a struct's layout is assumed.

mod event;
pub(super) mod handle;
mod lzc;
pub(super) mod nvlist;
pub(super) mod pool;

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;

use super::Error;
pub(super) use lzc::Refusal;

/// Newest first; 5 was never released.
const LIBZFS: [&str; 3] = ["libzfs.so.7", "libzfs.so.6", "libzfs.so.4"];
const LIBZFS_CORE: &str = "libzfs_core.so.3";
const LIBNVPAIR: &str = "libnvpair.so.3";

/// A table of functions, each under the name of its symbol.
macro_rules! functions {
    ($table:ident { $(fn $symbol:ident($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        pub(super) struct $table {
            $($symbol: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $table {
            pub(super) fn resolve(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($symbol: {
                        // SAFETY: the type is the prototype in the library's header.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(stringify!($symbol))
                        }?;
                        *symbol
                    },)*
                })
            }
        }
    };
}
use functions;

functions!(Tables {
    fn zfs_version_userland(*mut c_char, c_int) -> *const c_char;
    fn zfs_name_to_prop(*const c_char) -> c_int;
    fn zfs_prop_get_type(c_int) -> c_int;
    fn zfs_prop_readonly(c_int) -> c_int;
    fn zfs_prop_setonce(c_int) -> c_int;
    fn zfs_prop_valid_for_type(c_int, c_int, c_int) -> c_int;
    fn zfs_prop_string_to_index(c_int, *const c_char, *mut u64) -> c_int;
    fn zfs_prop_index_to_string(c_int, u64, *mut *const c_char) -> c_int;
    fn zfs_prop_values(c_int) -> *const c_char;
});

/// What kind of dataset: `zfs_type_t`, and `enum lzc_dataset_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `ZFS_TYPE_FILESYSTEM`.
    Filesystem,
    /// `ZFS_TYPE_VOLUME`.
    Volume,
}

impl Kind {
    const fn zfs_type(self) -> c_int {
        match self {
            Self::Filesystem => 1 << 0,
            Self::Volume => 1 << 2,
        }
    }

    const fn lzc_type(self) -> c_int {
        match self {
            Self::Filesystem => 2,
            Self::Volume => 3,
        }
    }
}

/// How a native property's value is stored (`zprop_type_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PropType {
    Number,
    String,
    Index,
}

/// A native property (`zfs_prop_t`), an index into the tables of one libzfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prop(c_int);

/// The three libraries.
pub(super) struct Libraries {
    nv: nvlist::Functions,
    core: lzc::Functions,
    tables: Tables,
    zfs: handle::Functions,
    pool: pool::Functions,
    event: event::Functions,
    /// Version of the userland, `2.3.9-1`.
    pub(super) userland: String,
}

/// Loads the libraries once. A failure is not remembered: they may be installed later.
pub(super) fn libraries(module_version: Option<&str>) -> Result<&'static Libraries, Error> {
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    if let Some(libraries) = LIBRARIES.get() {
        return Ok(libraries);
    }
    let loaded = load(module_version)?;
    Ok(LIBRARIES.get_or_init(|| loaded))
}

/// With several versions installed, the module's own is preferred; else the newest (C-83).
fn load(module_version: Option<&str>) -> Result<Libraries, Error> {
    let mut first: Result<Libraries, Error> =
        Err(not_installed(LIBZFS[1], "no known soname was tried"));
    for soname in LIBZFS {
        match load_one(soname) {
            Ok(libraries)
                if module_version
                    .is_none_or(|module| super::same_release(&libraries.userland, module)) =>
            {
                return Ok(libraries);
            }
            Ok(libraries) if first.is_err() => first = Ok(libraries),
            Ok(_) => {}
            Err(error) if first.is_err() && soname == LIBZFS[1] => first = Err(error),
            Err(_) => {}
        }
    }
    first
}

fn load_one(soname: &'static str) -> Result<Libraries, Error> {
    let zfs = open(soname)?;
    let core = open(LIBZFS_CORE)?;
    let nv = open(LIBNVPAIR)?;
    let lacks = |name: &'static str| move |e: libloading::Error| not_installed(name, &words(&e));
    let tables = Tables::resolve(&zfs).map_err(lacks(soname))?;
    let libraries = Libraries {
        userland: userland(&tables),
        tables,
        nv: nvlist::Functions::resolve(&nv).map_err(lacks(LIBNVPAIR))?,
        core: lzc::Functions::resolve(&core).map_err(lacks(LIBZFS_CORE))?,
        zfs: handle::Functions::resolve(&zfs).map_err(lacks(soname))?,
        pool: pool::Functions::resolve(&zfs).map_err(lacks(soname))?,
        event: event::Functions::resolve(&zfs).map_err(lacks(soname))?,
    };
    // Never unloaded: the functions above live as long as the process.
    std::mem::forget((zfs, core, nv));
    Ok(libraries)
}

fn open(soname: &'static str) -> Result<Library, Error> {
    // SAFETY: the constructors of these libraries only fill tables of their own.
    unsafe { Library::new(soname) }.map_err(|e| not_installed(soname, &words(&e)))
}

/// What the dynamic linker said, which the error keeps behind "dlopen failed".
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn not_installed(library: &str, reason: &str) -> Error {
    Error::NotInstalled {
        library: library.to_owned(),
        reason: reason.to_owned(),
    }
}

/// 2.0 to 2.1 fill the caller's buffer and return nothing; later ones ignore it and return a string.
/// libzfs.so.4 is either, and C's calling conventions let one call serve both.
fn userland(tables: &Tables) -> String {
    let mut buffer = [0_u8; 128];
    // SAFETY: the buffer has the size that is told, less one byte that stays zero.
    let returned = unsafe { (tables.zfs_version_userland)(buffer.as_mut_ptr().cast(), 127) };
    let text = match CStr::from_bytes_until_nul(&buffer) {
        Ok(text) if !text.is_empty() => text.to_string_lossy().into_owned(),
        _ => text(returned).unwrap_or_default(),
    };
    text.trim_start_matches("zfs-").to_owned()
}

/// A C string of the library, copied.
fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, and the library's strings end with NUL and outlive this copy.
    Some(
        unsafe { CStr::from_ptr(pointer) }
            .to_string_lossy()
            .into_owned(),
    )
}

impl Libraries {
    /// A native property by its name. Like all of the tables, only after a handle was made once.
    pub(super) fn prop(&self, name: &CStr) -> Option<Prop> {
        // SAFETY: reads tables that libzfs_init filled.
        let number = unsafe { (self.tables.zfs_name_to_prop)(name.as_ptr()) };
        (number >= 0).then_some(Prop(number))
    }

    /// `None` for a type that is not known here.
    pub(super) fn prop_type(&self, prop: Prop) -> Option<PropType> {
        // SAFETY: the number came from the same library.
        match unsafe { (self.tables.zfs_prop_get_type)(prop.0) } {
            0 => Some(PropType::Number),
            1 => Some(PropType::String),
            2 => Some(PropType::Index),
            _ => None,
        }
    }

    /// Whether the property can be set on a dataset that exists.
    pub(super) fn can_be_set(&self, prop: Prop) -> bool {
        // SAFETY: the number came from the same library.
        unsafe { (self.tables.zfs_prop_readonly)(prop.0) == 0 }
    }

    /// Whether the property can be given when a dataset is created, and never after.
    pub(super) fn is_set_once(&self, prop: Prop) -> bool {
        // SAFETY: the number came from the same library.
        unsafe { (self.tables.zfs_prop_setonce)(prop.0) != 0 }
    }

    pub(super) fn applies_to(&self, prop: Prop, kind: Kind) -> bool {
        // SAFETY: the number came from the same library.
        unsafe { (self.tables.zfs_prop_valid_for_type)(prop.0, kind.zfs_type(), 0) != 0 }
    }

    pub(super) fn index_of(&self, prop: Prop, value: &CStr) -> Option<u64> {
        let mut index = 0;
        // SAFETY: the number came from the same library, the value ends with NUL.
        let code = unsafe {
            (self.tables.zfs_prop_string_to_index)(prop.0, value.as_ptr(), &raw mut index)
        };
        (code == 0).then_some(index)
    }

    pub(super) fn index_name(&self, prop: Prop, index: u64) -> Option<String> {
        let mut name = std::ptr::null();
        // SAFETY: the number came from the same library; the string is one of its constants.
        let code = unsafe { (self.tables.zfs_prop_index_to_string)(prop.0, index, &raw mut name) };
        if code == 0 { text(name) } else { None }
    }

    /// The values that an index property takes, in words.
    pub(super) fn values(&self, prop: Prop) -> String {
        // SAFETY: the number came from the same library; the string is one of its constants.
        text(unsafe { (self.tables.zfs_prop_values)(prop.0) }).unwrap_or_default()
    }
}

impl std::fmt::Debug for Libraries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Libraries")
            .field("userland", &self.userland)
            .finish_non_exhaustive()
    }
}

/// Without the module libzfs_init would run modprobe; this looks first.
pub(super) const DEVICE: &str = "/dev/zfs";

/// `<sys>/module/zfs/version`, e.g. `2.3.9-1`; `None` without the module.
pub(super) fn module_version(sys: &Path) -> Result<Option<String>, crate::SysError> {
    crate::attr::read_if_present(&sys.join("module/zfs/version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_c_87_a_library_that_is_not_there_is_an_error_that_names_it() {
        let error = open("libzvolt-no-such.so.1").err().unwrap();
        let Error::NotInstalled { library, reason } = &error else {
            panic!("{error}");
        };
        assert_eq!(library, "libzvolt-no-such.so.1");
        assert!(reason.contains("libzvolt-no-such"), "{reason}");
        assert!(error.to_string().contains("zfsutils-linux"));
    }

    #[test]
    fn bug_c_85_the_module_tells_its_version_or_is_not_there() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(module_version(sys.path()).unwrap(), None);
        std::fs::create_dir_all(sys.path().join("module/zfs")).unwrap();
        std::fs::write(sys.path().join("module/zfs/version"), "2.3.9-1\n").unwrap();
        assert_eq!(
            module_version(sys.path()).unwrap().as_deref(),
            Some("2.3.9-1")
        );
    }
}
