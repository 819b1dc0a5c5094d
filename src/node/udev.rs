//! What udevd is told of our namespaces: to leave them alone.
//!
//! By its own rules it reads every new disk in search of what it may hold, and once more whenever somebody who wrote to
//! it lets it go. That competes with a pod's start for the CPU, the device and its queue, and has LVM activate what is a
//! pod's (C-16). Nothing of ours is found by udev's links.

use std::fs;
use std::path::Path;

use zvolt_kernel::SysError;

use crate::model::names::NQN_PREFIX;

/// udevd reads it within seconds, in one order with its own rules; gone with the next boot (udev(7)).
pub const RULES_DIR: &str = "/run/udev/rules.d";
/// After `60-block.rules`, which has disks watched, and before `60-persistent-storage.rules`, which reads them.
const FILE: &str = "60-nvme-zvolt.rules";

fn rules() -> String {
    format!(
        "# By zvolt: its namespaces are neither read nor watched (zvolt node --help: --stock-udev).\n\
         SUBSYSTEM==\"block\", KERNEL==\"nvme*\", ATTRS{{subsysnqn}}==\"{NQN_PREFIX}*\", \\\n  \
         ENV{{UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG}}=\"1\", OPTIONS+=\"nowatch\"\n"
    )
}

/// Writes the rules where they are not there already. `false` where no udevd runs.
pub(super) fn quiet(dir: &Path) -> Result<bool, SysError> {
    let file = dir.join(FILE);
    if fs::read_to_string(&file).is_ok_and(|text| text == rules()) {
        return Ok(true);
    }
    match dir.parent() {
        Some(run) if run.exists() => {}
        _ => return Ok(false),
    }
    fs::create_dir_all(dir).map_err(|e| SysError::io("mkdir", dir, &e))?;
    // udevd skips names without the ending: it reads the whole file or none.
    let partial = dir.join(format!("{FILE}.partial"));
    fs::write(&partial, rules()).map_err(|e| SysError::io("write", &partial, &e))?;
    fs::rename(&partial, &file).map_err(|e| SysError::io("rename", &file, &e))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_once_and_only_where_udev_is() {
        let run = tempfile::tempdir().expect("a directory");
        let dir = run.path().join("udev/rules.d");
        assert!(!quiet(&dir).expect("no udev"), "no udevd, no rules");
        fs::create_dir(run.path().join("udev")).expect("mkdir");
        assert!(quiet(&dir).expect("written"));
        let file = dir.join(FILE);
        let text = fs::read_to_string(&file).expect("read");
        assert!(text.contains(NQN_PREFIX), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        let written = fs::metadata(&file).and_then(|m| m.modified());
        assert!(quiet(&dir).expect("as they are"));
        let now = fs::metadata(&file).and_then(|m| m.modified());
        assert_eq!(now.expect("mtime"), written.expect("mtime"));
        fs::write(&file, "# old\n").expect("write");
        assert!(quiet(&dir).expect("anew"));
        assert_eq!(fs::read_to_string(&file).expect("read"), text);
        assert_eq!(fs::read_dir(&dir).expect("readdir").count(), 1);
    }
}
