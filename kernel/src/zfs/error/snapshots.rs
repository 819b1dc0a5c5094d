//! Of calls on snapshots.

use std::ffi::c_int;

use nix::libc;

use super::super::{Error, Snapshot, name};
use super::{common, some_of, sys};

/// Why a snapshot cannot be destroyed; `None` when it could not be read again.
pub(in crate::zfs) fn held(snapshot: Option<&Snapshot>, code: c_int) -> String {
    match snapshot {
        Some(it) if code == libc::EEXIST && !it.clones.is_empty() => format!(
            "it has clones: {}",
            some_of(it.clones.iter().map(String::as_str))
        ),
        Some(it) if code == libc::EBUSY && it.holds > 0 => {
            format!("it has {} holds (zfs holds)", it.holds)
        }
        Some(_) if code == libc::EBUSY => {
            "it is open: it is being sent, or its device or mount is in use".to_owned()
        }
        _ => "it has clones or holds, or is open (zfs get clones,userrefs)".to_owned(),
    }
}

/// `lzc_snapshot` failed at `snapshot`, whose dataset is there.
pub(in crate::zfs) fn not_snapped(snapshot: &str, code: c_int) -> Error {
    let name = snapshot.to_owned();
    match code {
        libc::ENOSPC => Error::NoSpace {
            name,
            detail: "ENOSPC: with a refreservation, a snapshot needs as much as the volume holds"
                .to_owned(),
        },
        libc::EDQUOT => Error::NoSpace {
            name,
            detail: "EDQUOT: a quota or a snapshot_limit is reached".to_owned(),
        },
        libc::EBUSY => Error::Busy {
            name: name::halves(snapshot).0.to_owned(),
            detail: "it is being received, or a receive did not end (zfs receive -A)".to_owned(),
        },
        libc::ENOTSUP => sys("lzc_snapshot", snapshot, code, "zpool upgrade"),
        _ => common("lzc_snapshot", snapshot, code),
    }
}

/// `lzc_destroy_snaps` failed for another reason than that it is held or gone.
pub(in crate::zfs) fn not_destroyed(snapshot: &str, code: c_int) -> Error {
    common("lzc_destroy_snaps", snapshot, code)
}

/// `lzc_promote` failed on a dataset that is there; `conflict` is what stands after the `@` on both sides.
pub(in crate::zfs) fn not_promoted(dataset: &str, conflict: &str, code: c_int) -> Error {
    let call = "lzc_promote";
    match code {
        libc::EEXIST => Error::Exists {
            name: format!("{dataset}@{conflict}"),
        },
        libc::EBUSY => Error::Busy {
            name: dataset.to_owned(),
            detail: "a snapshot of its origin is open: it is being sent, or its device is in use"
                .to_owned(),
        },
        libc::EINVAL => sys(call, dataset, code, "it is no clone"),
        libc::ENAMETOOLONG => sys(
            call,
            dataset,
            code,
            "a snapshot that moves to it would have a name of more than 255 bytes",
        ),
        _ => common(call, dataset, code),
    }
}

/// The rollback failed on a dataset and to a snapshot that are there.
pub(in crate::zfs) fn not_rolled_back(snapshot: &str, code: c_int, said: &str) -> Error {
    let call = "zfs.sync.rollback";
    let dataset = name::halves(snapshot).0;
    match code {
        libc::EBUSY => Error::Busy {
            name: dataset.to_owned(),
            detail: "it is open or mounted (fuser -v)".to_owned(),
        },
        libc::EEXIST => sys(
            call,
            snapshot,
            code,
            "it is not the newest snapshot, or there is a newer bookmark",
        ),
        libc::ENOSPC | libc::EDQUOT => common(call, dataset, code),
        _ if said.is_empty() => common(call, snapshot, code),
        _ => sys(call, snapshot, code, said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_says_what_holds_a_snapshot() {
        let mut it = Snapshot::default();
        assert!(held(Some(&it), libc::EBUSY).contains("open"));
        it.holds = 2;
        assert_eq!(held(Some(&it), libc::EBUSY), "it has 2 holds (zfs holds)");
        it.clones = vec!["t/y".to_owned()];
        assert_eq!(held(Some(&it), libc::EEXIST), "it has clones: t/y");
        assert!(held(None, libc::EEXIST).contains("clones or holds"));
    }

    #[test]
    fn a_snapshot_that_has_no_space_says_why() {
        for code in [libc::ENOSPC, libc::EDQUOT] {
            assert!(matches!(
                not_snapped("t/x@s", code),
                Error::NoSpace { name, .. } if name == "t/x@s"
            ));
        }
        assert!(matches!(
            not_snapped("t/x@s", libc::EEXIST),
            Error::Exists { name } if name == "t/x@s"
        ));
    }

    #[test]
    fn bug_c_74_a_promotion_names_the_snapshot_in_the_way() {
        assert!(matches!(
            not_promoted("t/clone", "s", libc::EEXIST),
            Error::Exists { name } if name == "t/clone@s"
        ));
        assert!(
            not_promoted("t/x", "", libc::EINVAL)
                .to_string()
                .contains("no clone")
        );
    }
}
