//! Names of datasets and user properties, checked before libzfs_core would cut them short.

use std::ffi::CString;

use nix::errno::Errno;

use super::Error;
use crate::error::SysError;

/// `ZFS_MAX_DATASET_NAME_LEN` (`sys/fs/zfs.h`), with its NUL.
const DATASET_MAX: usize = 256;
/// `ZAP_MAXNAMELEN` and `ZAP_MAXVALUELEN` (`sys/fs/zfs.h`), with their NULs.
const PROPERTY_MAX: usize = 256;
const VALUE_MAX: usize = 8192;

/// The grammar of zfs_namecheck.c, for filesystems and volumes: no snapshot, no bookmark.
pub(super) fn dataset(name: &str) -> Result<CString, Error> {
    check("dataset name", name, name)
}

/// `dataset@component`.
pub(super) fn snapshot(name: &str) -> Result<CString, Error> {
    let call = "snapshot name";
    match name.split_once('@') {
        Some((dataset, component)) if is_component(component) => check(call, name, dataset),
        Some(_) => Err(bad(
            call,
            name,
            "after the @ are letters, digits, blanks and -_.: only, and not nothing, . or ..",
        )),
        None => Err(bad(call, name, "a snapshot is named dataset@snapshot")),
    }
}

/// `name` has `dataset` in it, and is within the limit as a whole.
fn check(call: &'static str, name: &str, dataset: &str) -> Result<CString, Error> {
    if name.len() >= DATASET_MAX {
        return Err(bad(call, name, "longer than 255 bytes"));
    }
    if !dataset.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(bad(call, name, "a pool's name begins with a letter"));
    }
    if !dataset.split('/').all(is_component) {
        return Err(bad(
            call,
            name,
            "each part has letters, digits, blanks and -_.: only, and is not empty, . or ..",
        ));
    }
    CString::new(name).map_err(|_| bad(call, name, "holds a NUL"))
}

fn is_component(part: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.: ".contains(&b);
    !part.is_empty() && part != "." && part != ".." && part.bytes().all(known)
}

fn bad(call: &'static str, name: &str, why: &str) -> Error {
    SysError::new(call, format!("{name:?}"), Errno::EINVAL)
        .with_detail(why)
        .into()
}

/// `zfs_prop_user` and the limits of the ZAP that holds it.
pub(super) fn user_property(
    dataset: &str,
    name: &str,
    value: &str,
) -> Result<(CString, CString), Error> {
    let bad = |why: &str| {
        Err(Error::BadProperty {
            name: dataset.to_owned(),
            property: name.to_owned(),
            value: value.to_owned(),
            detail: why.to_owned(),
        })
    };
    let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b":-._".contains(&b);
    if !name.contains(':') || !name.bytes().all(known) {
        return bad(
            "a user property's name has a colon, and lower-case letters, digits and :-._ only",
        );
    }
    if name.len() >= PROPERTY_MAX || value.len() >= VALUE_MAX {
        return bad("names have at most 255 bytes, values 8191");
    }
    match (CString::new(name), CString::new(value)) {
        (Ok(name), Ok(value)) => Ok((name, value)),
        _ => bad("the value holds a NUL"),
    }
}

/// `tank/csi/block` of `tank/csi/block/x`; `None` for a pool.
pub(super) fn parent(dataset: &str) -> Option<&str> {
    dataset.rsplit_once('/').map(|(parent, _)| parent)
}

/// `tank` of `tank/csi/block/x` or `tank@s`.
pub(super) fn pool(name: &str) -> &str {
    name.split(['/', '@']).next().unwrap_or(name)
}

/// Whether both are in one pool; [`Errno::EXDEV`] when not.
pub(super) fn same_pool(call: &'static str, one: &str, other: &str) -> Result<(), Error> {
    if pool(one) == pool(other) {
        return Ok(());
    }
    Err(SysError::new(call, other, Errno::EXDEV)
        .with_detail(format!("it must be in pool {}, like {one}", pool(one)))
        .into())
}

/// `tank/x` and `s` of `tank/x@s`.
pub(super) fn halves(snapshot: &str) -> (&str, &str) {
    snapshot.split_once('@').unwrap_or((snapshot, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_by_the_grammar() {
        for good in [
            "tank",
            "tank/csi/block/pvc-0a",
            "t/a.b_c:d e",
            &format!("t/{}", "x".repeat(253)),
        ] {
            assert!(dataset(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/tank",
            "tank/",
            "tank//x",
            "tank/..",
            "tank/./x",
            "1tank",
            "tank@snap",
            "tank/x#b",
            "tank/%recv",
            "tank/a\nb",
            "tank/a\0b",
            "tank/ä",
            "tank/$ORIGIN",
            &format!("t/{}", "x".repeat(254)),
        ] {
            let error = dataset(bad).unwrap_err();
            assert!(
                matches!(&error, Error::Sys(e) if e.errno == Errno::EINVAL),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn snapshots_by_the_grammar() {
        for good in [
            "tank@s",
            "tank/csi/block/pvc-0a@snapshot-1",
            "t/a b@x y:z_0.1",
            &format!("t/x@{}", "s".repeat(251)),
        ] {
            assert!(snapshot(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "tank/x",
            "tank/x@",
            "@s",
            "tank/x@a@b",
            "tank/x@a/b",
            "tank/x@..",
            "tank/x@a#b",
            "tank/x@%recv",
            "tank/x@a,b",
            "tank/x@a\0",
            "1tank@s",
            "tank/@s",
            &format!("t/x@{}", "s".repeat(252)),
        ] {
            let error = snapshot(bad).unwrap_err();
            assert!(
                matches!(&error, Error::Sys(e) if e.errno == Errno::EINVAL),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn bug_c_9_a_blank_is_a_name_and_a_plus_is_refused_saying_why() {
        assert!(dataset("tank 1/my volume").is_ok());
        let error = dataset("tank/a+b").unwrap_err().to_string();
        assert!(error.contains("a+b") && error.contains("blanks"), "{error}");
    }

    #[test]
    fn user_properties_by_the_grammar() {
        assert!(user_property("t", "uk.co.example:handle", "pvc-1 ä").is_ok());
        for (name, value) in [
            ("handle", ""),
            ("uk:Handle", ""),
            ("uk:a b", ""),
            ("uk:a", "x\0y"),
            (format!("uk:{}", "a".repeat(253)).as_str(), ""),
            ("uk:a", &"v".repeat(8192)),
        ] {
            let error = user_property("t", name, value).unwrap_err();
            assert!(
                matches!(&error, Error::BadProperty { property, .. } if property == name),
                "{error}"
            );
        }
    }

    #[test]
    fn parents_and_pools() {
        assert_eq!(parent("tank/csi/block"), Some("tank/csi"));
        assert_eq!(parent("tank"), None);
        assert_eq!(pool("tank/csi/block"), "tank");
        assert_eq!(pool("tank"), "tank");
        assert_eq!(pool("tank@s"), "tank");
        assert_eq!(halves("tank/x@s"), ("tank/x", "s"));
    }
}
