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
    let size = if range.required == 0 {
        let wanted = if range.limit == 0 {
            DEFAULT
        } else {
            DEFAULT.min(range.limit)
        };
        wanted - wanted % block
    } else {
        rounded(range, block, fs_type)?
    };
    below_limit(range, block, size)?;
    let least = least(block, fs_type);
    if size < least {
        return Err(Error::OutOfRange(format!(
            "{size} bytes are too few for {}: {least} at least ({} MiB)",
            name(fs_type),
            least >> 20
        )));
    }
    Ok(size)
}

/// The bytes of a zvol that is made from a source of `source` bytes: never less than those.
pub fn of_copy(
    range: Range,
    block: u64,
    fs_type: Option<FsType>,
    source: u64,
) -> Result<u64, Error> {
    let size = match range.required {
        0 => source,
        _ => rounded(range, block, fs_type)?,
    };
    if size < source || (range.limit != 0 && range.limit < source) {
        return Err(Error::OutOfRange(format!(
            "the source has {source} bytes, and a volume that is made from it has no less: required_bytes is {}, \
             limit_bytes {}",
            range.required, range.limit
        )));
    }
    below_limit(range, block, size)?;
    Ok(size)
}

/// The bytes that a zvol of `now` bytes is to have: never less than it has.
pub fn grown(range: Range, block: u64, fs_type: Option<FsType>, now: u64) -> Result<u64, Error> {
    if range == Range::default() {
        return Err(Error::Invalid(
            "required_bytes is missing: say how large the volume is to be".to_owned(),
        ));
    }
    if range.limit != 0 && range.limit < now {
        return Err(Error::OutOfRange(format!(
            "the volume has {now} bytes, more than limit_bytes {}: it never shrinks",
            range.limit
        )));
    }
    if range.required <= now {
        return Ok(now);
    }
    let size = rounded(range, block, fs_type)?;
    below_limit(range, block, size)?;
    Ok(size)
}

/// The least bytes of a zvol with this filesystem, or without one: a multiple of `block`.
pub fn least(block: u64, fs_type: Option<FsType>) -> u64 {
    let least = fs_type.map_or(block, |fs_type| bounds(fs_type).0);
    least.next_multiple_of(block)
}

/// The most bytes of a zvol with this filesystem, or without one.
pub fn most(fs_type: Option<FsType>) -> u64 {
    fs_type.map_or(RAW_MOST, |fs_type| bounds(fs_type).1)
}

/// What is required, rounded up to the block.
fn rounded(range: Range, block: u64, fs_type: Option<FsType>) -> Result<u64, Error> {
    let most = most(fs_type);
    let rounded = range
        .required
        .checked_next_multiple_of(block)
        .filter(|size| *size <= most);
    rounded.ok_or_else(|| {
        Error::OutOfRange(format!(
            "required_bytes {} is more than {} can hold: {most} at most",
            range.required,
            name(fs_type)
        ))
    })
}

fn below_limit(range: Range, block: u64, size: u64) -> Result<(), Error> {
    if range.limit == 0 || size <= range.limit {
        return Ok(());
    }
    Err(Error::OutOfRange(format!(
        "no multiple of volBlockSize {block} lies between required_bytes {} and limit_bytes {}: the next is {size}",
        range.required, range.limit
    )))
}

fn name(fs_type: Option<FsType>) -> &'static str {
    fs_type.map_or("a raw device", FsType::as_str)
}

/// The least and the most bytes that a filesystem is made on. Least: what xfsprogs insists on, and
/// where ext4 still has a journal. Most: ext4 has 2^48 blocks but mke2fs and the kernel's 4 KiB pages
/// end at 1 EiB; XFS and ZFS end with the signed 64-bit offset.
fn bounds(fs_type: FsType) -> (u64, u64) {
    match fs_type {
        FsType::Ext4 => (16 << 20, 1 << 60),
        FsType::Xfs => (300 << 20, RAW_MOST),
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
    fn rule_07_a_raw_device_needs_one_block() {
        let raw = |required, limit| of_zvol(Range { required, limit }, BLOCK, None);
        assert_eq!(raw(1, 0), Ok(BLOCK));
        assert_eq!(raw(0, 4 * BLOCK), Ok(4 * BLOCK));
        assert!(
            matches!(raw(0, 5), Err(Error::OutOfRange(_))),
            "no block fits"
        );
        assert_eq!(least(128 << 10, None), 128 << 10);
        assert_eq!(least(128 << 10, Some(FsType::Ext4)), 16 << 20);
    }

    #[test]
    fn rule_07_a_copy_is_as_large_as_its_source_at_least() {
        let source = (1 << 30) + BLOCK;
        let copy =
            |required, limit| of_copy(Range { required, limit }, BLOCK, Some(FsType::Ext4), source);
        assert_eq!(copy(0, 0), Ok(source));
        assert_eq!(
            copy((1 << 30) + 1, 0),
            Ok(source),
            "the same request as the source's"
        );
        assert_eq!(copy(2 << 30, 0), Ok(2 << 30));
        for (required, limit) in [
            (1 << 30, 0),
            (0, 1 << 30),
            (1, 1 << 30),
            ((2 << 30) + 1, (2 << 30) + 2),
        ] {
            assert!(
                matches!(copy(required, limit), Err(Error::OutOfRange(_))),
                "{required} {limit}"
            );
        }
    }

    #[test]
    fn rule_07_a_volume_grows_to_the_block_and_never_shrinks() {
        let now = 1 << 30;
        let grown =
            |required, limit| grown(Range { required, limit }, BLOCK, Some(FsType::Ext4), now);
        assert_eq!(grown(now + 1, 0), Ok(now + BLOCK));
        assert_eq!(grown(now + 1, now + BLOCK), Ok(now + BLOCK));
        for same in [(now, 0), (1, 0), (0, now), (0, now + 5)] {
            assert_eq!(grown(same.0, same.1), Ok(now), "{same:?}");
        }
        for (required, limit) in [(now + 1, now + 2), (0, now - 1), (1, 5), (u64::MAX, 0)] {
            assert!(
                matches!(grown(required, limit), Err(Error::OutOfRange(_))),
                "{required} {limit}"
            );
        }
        assert!(matches!(grown(0, 0), Err(Error::Invalid(why)) if why.contains("required_bytes")));
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
