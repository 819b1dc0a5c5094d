//! Kernel modules: whether one is there, never loading one.

use std::path::Path;

use crate::attr;
use crate::error::SysError;

/// Whether a module is loaded or built in (`<sys>/module/<name>` exists; `-` in the name is `_`).
///
/// A built-in module without parameters shows nothing in sysfs: of those that zvolt needs, `nvmet` and
/// `nvme-loop` have none.
pub fn is_present(sys: &Path, name: &str) -> bool {
    sys.join("module").join(name.replace('-', "_")).is_dir()
}

/// A module parameter, e.g. `nvme_core`, `multipath`; `None` when the module or parameter is absent.
pub fn parameter(sys: &Path, name: &str, parameter: &str) -> Result<Option<String>, SysError> {
    let module = sys.join("module").join(name.replace('-', "_"));
    attr::read_if_present(&module.join("parameters").join(parameter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_by_either_spelling() {
        let sys = tempfile::tempdir().expect("a directory");
        let parameters = sys.path().join("module/nvme_core/parameters");
        std::fs::create_dir_all(&parameters).expect("mkdir");
        std::fs::write(parameters.join("multipath"), "Y\n").expect("write");
        assert!(is_present(sys.path(), "nvme-core"));
        assert!(!is_present(sys.path(), "nvme-tcp"));
        let value = parameter(sys.path(), "nvme_core", "multipath").expect("read");
        assert_eq!(value.as_deref(), Some("Y"));
        assert_eq!(
            parameter(sys.path(), "nvme_core", "other").expect("read"),
            None
        );
    }
}
