//! From the numbers of libzfs_core and libzfs to [`Error`].

mod snapshots;

use std::ffi::{CString, c_int};

use nix::errno::Errno;
use nix::libc;

use super::ffi::handle::Failure;
use super::{Error, Snapshot, name};
use crate::error::SysError;

pub(super) use snapshots::{held, not_destroyed, not_promoted, not_rolled_back, not_snapped};

/// `zfs_errno_t` (`sys/fs/zfs.h`), what may come here.
mod zfs_errno {
    use std::ffi::c_int;

    pub(super) const IOC_CMD_UNAVAIL: c_int = 1029;
    pub(super) const IOC_ARG_BADTYPE: c_int = 1032;
    pub(super) const WRONG_PARENT: c_int = 1033;
    pub(super) const EXPORT_IN_PROGRESS: c_int = 1038;
    pub(super) const BADPROP: c_int = 1044;
}

/// `zfs_error_t` (`libzfs.h`); these did not move between 2.1 and 2.3.
mod ezfs {
    use std::ffi::c_int;

    pub(super) const NOMEM: c_int = 2000;
    pub(super) const BADPROP: c_int = 2001;
    pub(super) const PROPREADONLY: c_int = 2002;
    pub(super) const PROPTYPE: c_int = 2003;
    pub(super) const PROPNONINHERIT: c_int = 2004;
    pub(super) const PROPSPACE: c_int = 2005;
    pub(super) const BUSY: c_int = 2007;
    pub(super) const EXISTS: c_int = 2008;
    pub(super) const NOENT: c_int = 2009;
    pub(super) const DSREADONLY: c_int = 2011;
    pub(super) const VOLTOOBIG: c_int = 2012;
    pub(super) const INVALIDNAME: c_int = 2013;
    pub(super) const PERM: c_int = 2031;
    pub(super) const NOSPC: c_int = 2032;
}

/// `lzc_create` or `lzc_clone` failed; `names` are the properties that it was given.
pub(super) fn created(call: &'static str, dataset: &str, names: &str, code: c_int) -> Error {
    let bad = |property: &str, detail: &str| Error::BadProperty {
        name: dataset.to_owned(),
        property: property.to_owned(),
        value: String::new(),
        detail: format!("{detail} ({})", number(code)),
    };
    match code {
        libc::ENOENT => Error::NotFound {
            name: name::parent(dataset).unwrap_or(dataset).to_owned(),
        },
        libc::EDOM => bad("volblocksize", "is larger than zfs_max_recordsize"),
        libc::ENOTSUP => bad(
            names,
            "one of them needs a feature that is not enabled on the pool: zpool upgrade",
        ),
        libc::EINVAL | libc::ERANGE | libc::E2BIG | zfs_errno::BADPROP => {
            bad(names, "the kernel does not take one of them")
        }
        zfs_errno::WRONG_PARENT => sys(call, dataset, code, "its parent is a volume"),
        _ => common(call, dataset, code),
    }
}

/// Whether the kernel may have made the dataset, and then failed to set a property.
pub(super) fn is_of_a_property(code: c_int) -> bool {
    matches!(
        code,
        libc::EDOM
            | libc::ENOTSUP
            | libc::EINVAL
            | libc::ERANGE
            | libc::E2BIG
            | libc::ENOSPC
            | libc::EDQUOT
            | zfs_errno::BADPROP
    )
}

/// The same error, of a clone that was made all the same and could not be taken back.
pub(super) fn left(error: Error, code: c_int) -> Error {
    let and_left = |detail: String| {
        format!(
            "{detail}; it was made without what failed, and could not be destroyed again: {}",
            number(code)
        )
    };
    match error {
        Error::NoSpace { name, detail } => Error::NoSpace {
            name,
            detail: and_left(detail),
        },
        Error::BadProperty {
            name,
            property,
            value,
            detail,
        } => Error::BadProperty {
            name,
            property,
            value,
            detail: and_left(detail),
        },
        other => other,
    }
}

/// `lzc_destroy` failed, and the dataset is there and not in use.
pub(super) fn destroyed(dataset: &str, code: c_int) -> Error {
    match code {
        // Never recursive: what is below is somebody's.
        libc::EEXIST => Error::Busy {
            name: dataset.to_owned(),
            detail: "it has children (zfs list -r -t all)".to_owned(),
        },
        _ => common("lzc_destroy", dataset, code),
    }
}

/// Why a dataset is in use; `None` when its snapshots could not be read.
pub(super) fn in_use(snapshots: Option<&[Snapshot]>) -> String {
    match snapshots {
        None => {
            "it is open or mounted, or has snapshots (zfs list -t snapshot, fuser -v)".to_owned()
        }
        Some([]) => "it is open or mounted (fuser -v)".to_owned(),
        Some(snapshots) => format!(
            "it has snapshots: {}",
            some_of(snapshots.iter().map(|snapshot| snapshot.name.as_str()))
        ),
    }
}

/// The first few names, and how many more.
fn some_of<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 3;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names.take(SHOWN).collect::<Vec<_>>().join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}

/// `lzc_rename` failed on a dataset that is there, to a parent that is there.
pub(super) fn renamed(from: &str, to: &str, code: c_int) -> Error {
    let call = "lzc_rename";
    match code {
        libc::EEXIST => Error::Exists {
            name: to.to_owned(),
        },
        libc::EINVAL => sys(call, from, code, "a dataset cannot go below itself"),
        libc::ENAMETOOLONG => sys(
            call,
            from,
            code,
            "it, a snapshot of it, or what is below it would have a name of more than 255 bytes",
        ),
        zfs_errno::WRONG_PARENT => sys(call, to, code, "its parent is a volume"),
        _ => common(call, from, code),
    }
}

fn common(call: &'static str, dataset: &str, code: c_int) -> Error {
    let name = dataset.to_owned();
    match code {
        libc::EEXIST => Error::Exists { name },
        libc::ENOSPC | libc::EDQUOT => Error::NoSpace {
            name,
            detail: number(code),
        },
        libc::EBUSY => Error::Busy {
            name,
            detail: number(code),
        },
        zfs_errno::EXPORT_IN_PROGRESS => Error::Busy {
            name,
            detail: "the pool is being exported".to_owned(),
        },
        libc::EAGAIN => sys(
            call,
            dataset,
            code,
            "the pool is suspended: zpool status, zpool clear",
        ),
        libc::EPERM => sys(call, dataset, code, "needs CAP_SYS_ADMIN on the host"),
        libc::EROFS => sys(call, dataset, code, "the pool is imported read-only"),
        zfs_errno::IOC_CMD_UNAVAIL..=zfs_errno::IOC_ARG_BADTYPE => sys(
            call,
            dataset,
            libc::ENOTSUP,
            "the loaded zfs module is of another version than the libraries: reboot after an upgrade",
        ),
        _ => sys(call, dataset, code, ""),
    }
}

fn sys(call: &'static str, dataset: &str, code: c_int, hint: &str) -> Error {
    let detail = match Errno::from_raw(code) {
        Errno::UnknownErrno => format!("ZFS error {code} {hint}").trim_end().to_owned(),
        _ => hint.to_owned(),
    };
    SysError::new(call, dataset, Errno::from_raw(code))
        .with_detail(detail)
        .into()
}

fn number(code: c_int) -> String {
    match Errno::from_raw(code) {
        Errno::UnknownErrno => format!("ZFS error {code}"),
        errno => format!("{errno:?}"),
    }
}

/// A libzfs call on a dataset or pool failed.
pub(super) fn failed(call: &'static str, subject: &str, failure: Failure) -> Error {
    let name = subject.to_owned();
    let errno = match failure.code {
        ezfs::NOENT => return Error::NotFound { name },
        ezfs::EXISTS => return Error::Exists { name },
        ezfs::BUSY => {
            return Error::Busy {
                name,
                detail: failure.description,
            };
        }
        ezfs::NOSPC => {
            return Error::NoSpace {
                name,
                detail: failure.description,
            };
        }
        ezfs::NOMEM => Errno::ENOMEM,
        ezfs::PERM => Errno::EPERM,
        ezfs::INVALIDNAME => Errno::EINVAL,
        ezfs::DSREADONLY => Errno::EROFS,
        _ => Errno::EIO,
    };
    SysError::new(call, subject, errno)
        .with_detail(format!(
            "{}: {} (libzfs {})",
            failure.action, failure.description, failure.code
        ))
        .into()
}

/// `zfs_prop_set` or `zfs_prop_inherit` failed.
pub(super) fn not_set(
    call: &'static str,
    dataset: &str,
    property: &str,
    value: &str,
    failure: Failure,
) -> Error {
    match failure.code {
        // A reservation, or a size whose reservation grows with it, does not fit.
        ezfs::PROPSPACE if matches!(property, "reservation" | "refreservation" | "volsize") => {
            Error::NoSpace {
                name: dataset.to_owned(),
                detail: failure.description,
            }
        }
        ezfs::BADPROP
        | ezfs::PROPREADONLY
        | ezfs::PROPTYPE
        | ezfs::PROPNONINHERIT
        | ezfs::PROPSPACE
        | ezfs::VOLTOOBIG => Error::BadProperty {
            name: dataset.to_owned(),
            property: property.to_owned(),
            value: value.to_owned(),
            detail: failure.description,
        },
        _ => failed(call, dataset, failure),
    }
}

/// A native property and its value for the call.
pub(super) fn c_pair(
    dataset: &str,
    property: &str,
    value: &str,
) -> Result<(CString, CString), Error> {
    match (CString::new(property), CString::new(value)) {
        (Ok(name), Ok(text)) if !property.is_empty() => Ok((name, text)),
        _ => Err(Error::BadProperty {
            name: dataset.to_owned(),
            property: property.to_owned(),
            value: value.to_owned(),
            detail: "is empty or holds a NUL".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_create_that_fails_names_what_is_to_do() {
        let text = |code| {
            created(
                "lzc_create",
                "tank/csi/block/x",
                "volsize, compression",
                code,
            )
            .to_string()
        };
        assert_eq!(text(libc::ENOENT), "tank/csi/block does not exist");
        assert_eq!(text(libc::EEXIST), "tank/csi/block/x exists already");
        assert_eq!(
            text(libc::ENOSPC),
            "tank/csi/block/x: no space left: ENOSPC"
        );
        assert_eq!(
            text(libc::EDQUOT),
            "tank/csi/block/x: no space left: EDQUOT"
        );
        assert!(matches!(
            created("lzc_create", "t/x", "volsize, compression", libc::EINVAL),
            Error::BadProperty { property, .. } if property == "volsize, compression"
        ));
        assert!(text(zfs_errno::BADPROP).contains("ZFS error 1044"));
        assert!(text(libc::EAGAIN).contains("zpool clear"));
    }

    #[test]
    fn rule_07_what_a_failed_clone_leaves_is_told() {
        for code in (1..1100).filter(|&code| is_of_a_property(code)) {
            let error = left(created("lzc_clone", "t/c", "volsize", code), libc::EBUSY);
            assert!(
                error.to_string().ends_with("destroyed again: EBUSY"),
                "{code}: {error}"
            );
        }
    }

    #[test]
    fn rule_06_a_destroy_that_would_have_to_be_recursive_is_busy() {
        assert!(matches!(
            destroyed("t/x", libc::EEXIST),
            Error::Busy { detail, .. } if detail.contains("children")
        ));
    }

    fn snapshot(name: &str) -> Snapshot {
        Snapshot {
            name: name.to_owned(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn busy_says_who_holds_it() {
        let four: Vec<_> = ["t/x@1", "t/x@2", "t/x@3", "t/x@4"].map(snapshot).into();
        assert_eq!(
            in_use(Some(&four)),
            "it has snapshots: t/x@1, t/x@2, t/x@3 and 1 more"
        );
        assert_eq!(in_use(Some(&[])), "it is open or mounted (fuser -v)");
        assert!(in_use(None).contains("or has snapshots"));
    }

    #[test]
    fn bug_c_85_a_module_of_another_version_says_reboot() {
        for code in 1029..=1032 {
            assert!(
                destroyed("t/x", code).to_string().contains("reboot"),
                "{code}"
            );
        }
    }

    fn failure(code: c_int) -> Failure {
        Failure {
            code,
            action: "cannot open 't/x'".to_owned(),
            description: "words".to_owned(),
        }
    }

    #[test]
    fn rule_02_only_noent_is_not_found() {
        for code in (1999..2100).filter(|&code| code != ezfs::NOENT) {
            let error = failed("zfs_open", "t/x", failure(code));
            assert!(!matches!(error, Error::NotFound { .. }), "{code}");
        }
        assert!(matches!(
            failed("zfs_open", "t/x", failure(ezfs::NOENT)),
            Error::NotFound { .. }
        ));
    }

    #[test]
    fn a_reservation_that_does_not_fit_is_no_space() {
        assert!(matches!(
            not_set(
                "zfs_prop_set",
                "t/x",
                "volsize",
                "1",
                failure(ezfs::PROPSPACE)
            ),
            Error::NoSpace { .. }
        ));
        assert!(matches!(
            not_set(
                "zfs_prop_set",
                "t/x",
                "quota",
                "1",
                failure(ezfs::PROPSPACE)
            ),
            Error::BadProperty { .. }
        ));
    }
}
