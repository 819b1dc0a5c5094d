//! Paths that arrive by RPC, resolved below the kubelet directory and nowhere else (rule 12).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use zvolt_kernel::mount;

use super::{Error, ErrorKind};

/// The kubelet directory, held open.
#[derive(Debug)]
pub(super) struct Base {
    path: PathBuf,
    dir: OwnedFd,
}

/// A path below the kubelet directory: its parent held open, so that nothing can be swapped under
/// it, and its last component, which need not exist.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) parent: OwnedFd,
    pub(super) name: OsString,
}

impl Base {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            path: path.to_owned(),
            dir: mount::open_base(path)?,
        })
    }

    /// The place at `path`; its parent must exist.
    pub(super) fn resolve(&self, path: &Path) -> Result<Place, Error> {
        self.resolve_if_present(path)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!(
                    "the directory above {} does not exist: the caller makes it",
                    path.display()
                ),
            )
        })
    }

    /// The place at `path`; `None` when its parent does not exist.
    pub(super) fn resolve_if_present(&self, path: &Path) -> Result<Option<Place>, Error> {
        let (parent, name) = split(&self.path, path)?;
        match mount::open_dir_beneath(self.dir.as_fd(), &parent) {
            Ok(parent) => Ok(Some(Place {
                path: path.to_owned(),
                parent,
                name,
            })),
            Err(e) if e.errno == zvolt_kernel::error::Errno::ENOENT => Ok(None),
            Err(e) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} leaves {}, by a link or otherwise: {e}",
                    path.display(),
                    self.path.display()
                ),
            )),
        }
    }
}

/// Splits a path below `base` into its parent, relative to `base`, and its last component.
fn split(base: &Path, path: &Path) -> Result<(PathBuf, OsString), Error> {
    let refuse = |why: &str| {
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{path:?} {why}: paths must lie below {}", base.display()),
        ))
    };
    let Ok(below) = path.strip_prefix(base) else {
        return refuse("is not below the kubelet directory");
    };
    if !below
        .components()
        .all(|c| matches!(c, Component::Normal(_)))
    {
        return refuse("has a component that is no name");
    }
    let Some(name) = below.file_name() else {
        return refuse("is the kubelet directory itself");
    };
    let parent = match below.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((parent, OsStr::to_owned(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_12_paths_stay_below_the_kubelet_directory() {
        let base = Path::new("/var/lib/kubelet");
        for bad in [
            "/etc/passwd",
            "/var/lib/kubelet",
            "/var/lib/kubelet/..",
            "/var/lib/kubelet/pods/../../x",
            "/var/lib/kubelet2/x",
            "relative",
            "",
        ] {
            let error = split(base, Path::new(bad)).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad}");
        }
        let (parent, name) = split(base, Path::new("/var/lib/kubelet/pods/1/mount")).expect("fine");
        assert_eq!(
            (parent.as_path(), name.as_os_str()),
            (Path::new("pods/1"), OsStr::new("mount"))
        );
        let (parent, _) = split(base, Path::new("/var/lib/kubelet/x")).expect("fine");
        assert_eq!(parent, Path::new("."));
    }
}
