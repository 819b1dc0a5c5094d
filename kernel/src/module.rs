//! Kernel modules: whether one is there, never loading one.

use std::path::Path;

use crate::error::SysError;

/// Whether a module is loaded or built in (`<sys>/module/<name>` exists; `-` in the name is `_`).
pub fn is_present(sys: &Path, name: &str) -> bool {
    let _ = (sys, name);
    unimplemented!()
}

/// A module parameter, e.g. `nvme_core`, `multipath`; `None` when the module or parameter is absent.
pub fn parameter(sys: &Path, name: &str, parameter: &str) -> Result<Option<String>, SysError> {
    let _ = (sys, name, parameter);
    unimplemented!()
}
