//! How large a volume becomes, from the caller's range (rule 7).

use super::volume::FsType;

/// Size when the caller gives none: 1 GiB.
pub const DEFAULT: u64 = 1 << 30;

/// The most bytes of a raw zvol: what a signed 64-bit offset reaches, as ZFS has it.
const RAW_MOST: u64 = i64::MAX.unsigned_abs();

/// The caller's range, in bytes; 0 leaves an end open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    /// At least.
    pub required: u64,
    /// At most.
    pub limit: u64,
}

/// A range that cannot be met.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// It makes no sense.
    #[error("capacity_range: {0}")]
    Invalid(String),
    /// It makes sense, and cannot be met.
    #[error("capacity_range: {0}")]
    OutOfRange(String),
}

impl Range {
    /// The range out of a request's two numbers.
    pub fn new(required: i64, limit: i64) -> Result<Self, Error> {
        let unsigned = |name: &str, value: i64| {
            u64::try_from(value)
                .map_err(|_| Error::Invalid(format!("{name} is {value}: it cannot be negative")))
        };
        let range = Self {
            required: unsigned("required_bytes", required)?,
            limit: unsigned("limit_bytes", limit)?,
        };
        if range.limit != 0 && range.required > range.limit {
            return Err(Error::Invalid(format!(
                "required_bytes {} is more than limit_bytes {}",
                range.required, range.limit
            )));
        }
        Ok(range)
    }

    /// Whether a volume of `bytes` is what the caller asks for.
    pub fn admits(self, bytes: u64) -> bool {
        bytes >= self.required && (self.limit == 0 || bytes <= self.limit)
    }
}

/// The bytes of a new zvol: a multiple of `block`, inside the range, and room enough for the filesystem,
/// where it gets one.
pub fn of_zvol(range: Range, block: u64, fs_type: Option<FsType>) -> Result<u64, Error> {
    let (least, most) = fs_type.map_or((block, RAW_MOST), bounds);
    let named = fs_type.map_or("a raw device", FsType::as_str);
    let size = if range.required == 0 {
        let wanted = if range.limit == 0 {
            DEFAULT
        } else {
            DEFAULT.min(range.limit)
        };
        wanted - wanted % block
    } else {
        let rounded = range
            .required
            .checked_next_multiple_of(block)
            .filter(|size| *size <= most);
        rounded.ok_or_else(|| {
            Error::OutOfRange(format!(
                "required_bytes {} is more than {named} can hold: {most} at most",
                range.required
            ))
        })?
    };
    if range.limit != 0 && size > range.limit {
        return Err(Error::OutOfRange(format!(
            "no multiple of volBlockSize {block} lies between required_bytes {} and limit_bytes {}: the next is {size}",
            range.required, range.limit
        )));
    }
    if size < least {
        return Err(Error::OutOfRange(format!(
            "{size} bytes are too few for {named}: {least} at least ({} MiB)",
            least >> 20
        )));
    }
    Ok(size)
}

/// The least and the most bytes that a filesystem is made on. Least: what xfsprogs insists on, and
/// where ext4 still has a journal. Most: ext4 has 2^48 blocks but mke2fs and the kernel's 4 KiB pages
/// end at 1 EiB; XFS and ZFS end with the signed 64-bit offset.
fn bounds(fs_type: FsType) -> (u64, u64) {
    match fs_type {
        FsType::Ext4 => (16 << 20, 1 << 60),
        FsType::Xfs => (300 << 20, i64::MAX.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 16 << 10;
    const GIB: i64 = 1 << 30;

    fn size(required: i64, limit: i64) -> Result<u64, Error> {
        of_zvol(Range::new(required, limit)?, BLOCK, Some(FsType::Ext4))
    }

    #[test]
    fn rule_07_required_rounds_up_to_the_block() {
        assert_eq!(size(GIB, 0), Ok(1 << 30));
        assert_eq!(size(GIB + 1, 0), Ok((1 << 30) + BLOCK));
        assert_eq!(size(GIB + 1, GIB + 16384), Ok((1 << 30) + BLOCK));
    }

    #[test]
    fn rule_07_the_limit_holds() {
        assert!(
            matches!(size(GIB + 1, GIB + 2), Err(Error::OutOfRange(why)) if why.contains("limit_bytes"))
        );
        assert_eq!(size(0, 100 << 20), Ok(100 << 20));
        assert_eq!(size(0, (100 << 20) + 5), Ok(100 << 20));
        assert_eq!(size(0, 0), Ok(DEFAULT));
        assert_eq!(size(0, 4 * GIB), Ok(DEFAULT));
    }

    #[test]
    fn hostile_ranges_are_told_by_their_name() {
        assert!(matches!(size(-1, 0), Err(Error::Invalid(why)) if why.contains("required_bytes")));
        assert!(
            matches!(size(0, i64::MIN), Err(Error::Invalid(why)) if why.contains("limit_bytes"))
        );
        assert!(matches!(size(2, 1), Err(Error::Invalid(_))));
        for huge in [i64::MAX, i64::MAX - 1, i64::MAX - 20_000, (1 << 60) + 1] {
            assert!(
                matches!(size(huge, 0), Err(Error::OutOfRange(why)) if why.contains("required_bytes")),
                "{huge}"
            );
        }
        let range = Range::new(i64::MAX, 0).unwrap();
        assert!(matches!(
            of_zvol(range, BLOCK, Some(FsType::Xfs)),
            Err(Error::OutOfRange(_))
        ));
    }

    #[test]
    fn what_a_filesystem_needs_is_said() {
        for (fs_type, least) in [(FsType::Ext4, 16 << 20), (FsType::Xfs, 300 << 20)] {
            let range = |required| Range { required, limit: 0 };
            assert_eq!(of_zvol(range(least), BLOCK, Some(fs_type)), Ok(least));
            let error = of_zvol(range(least - BLOCK), BLOCK, Some(fs_type))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(fs_type.as_str()) && error.contains(&least.to_string()),
                "{error}"
            );
        }
    }

    #[test]
    fn a_retry_is_judged_against_the_callers_range() {
        let made = (1 << 30) + BLOCK;
        assert!(Range::new(GIB + 1, 0).unwrap().admits(made));
        assert!(Range::new(0, 0).unwrap().admits(made));
        assert!(!Range::new(2 * GIB, 0).unwrap().admits(made));
        assert!(!Range::new(GIB, GIB).unwrap().admits(made));
    }
}
