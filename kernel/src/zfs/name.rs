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
    let bad = |why: &str| {
        Err(
            SysError::new("dataset name", format!("{name:?}"), Errno::EINVAL)
                .with_detail(why)
                .into(),
        )
    };
    if name.len() >= DATASET_MAX {
        return bad("longer than 255 bytes");
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return bad("a pool's name begins with a letter");
    }
    let component = |part: &str| {
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.: ".contains(&b);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(known)
    };
    if !name.split('/').all(component) {
        return bad("each part has letters, digits and -_.: only, and is not empty, . or ..");
    }
    CString::new(name).or_else(|_| bad("holds a NUL"))
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

/// `tank` of `tank/csi/block/x`.
pub(super) fn pool(dataset: &str) -> &str {
    dataset.split('/').next().unwrap_or(dataset)
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
    }
}
