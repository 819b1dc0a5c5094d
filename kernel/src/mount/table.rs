//! The mount table (`proc_pid_mountinfo(5)`). It grows with every mount on the machine: for
//! start-up checks only.

use std::path::{Path, PathBuf};

use crate::attr;
use crate::error::{Errno, SysError};

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount ID.
    pub id: u64,
    /// Where it is mounted.
    pub point: PathBuf,
    /// In a shared peer group (`shared:N`).
    pub shared: bool,
    /// Filesystem type.
    pub fs_type: String,
}

/// Parses the table. Lines that are none are skipped.
pub fn parse(text: &str) -> Vec<MountEntry> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<MountEntry> {
    // ID, parent, device, root, mount point, options, optional fields …, "-", type, source, options.
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let id = fields.next()?.parse().ok()?;
    let point = fields.nth(3)?;
    Some(MountEntry {
        id,
        point: PathBuf::from(unescape(point)),
        shared: fields.skip(1).any(|f| f.starts_with("shared:")),
        fs_type: after.split(' ').next()?.to_owned(),
    })
}

/// Blank, tab, newline and backslash stand as `\` and three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            out.push(code);
            rest = &tail[3..];
        } else {
            out.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The mount that `path` lies on: the last one with the longest mount point above it.
pub fn entry_of<'a>(table: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    table
        .iter()
        .filter(|entry| path.starts_with(&entry.point))
        .max_by_key(|entry| entry.point.components().count())
}

/// Whether the mount that `path` lies on is in a shared peer group.
pub fn is_shared(proc: &Path, path: &Path) -> Result<bool, SysError> {
    let path = path
        .canonicalize()
        .map_err(|e| SysError::io("realpath", path, &e))?;
    let file = proc.join("self/mountinfo");
    let table = parse(&attr::read(&file)?);
    entry_of(&table, &path)
        .map(|entry| entry.shared)
        .ok_or_else(|| {
            SysError::new("read", file.display(), Errno::ENOENT)
                .with_detail(path.display().to_string())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
26 24 0:5 / /dev rw,nosuid shared:2 - devtmpfs devtmpfs rw,size=4k
40 24 254:1 / /var/lib/kubelet rw - xfs /dev/vdb rw
41 40 254:1 /a /var/lib/kubelet/a\\040b rw shared:9 master:3 - xfs /dev/vdb rw
junk
";

    #[test]
    fn the_mount_of_a_path_is_the_deepest_above_it() {
        let table = parse(TABLE);
        assert_eq!(table.len(), 4);
        let at = |path: &str| entry_of(&table, Path::new(path)).expect("an entry").id;
        assert_eq!(at("/var/lib/kubelet/pods"), 40);
        assert_eq!(at("/var/lib/kubelet2"), 24);
        assert_eq!(at("/var/lib/kubelet/a b/c"), 41);
        assert_eq!(
            entry_of(&table, Path::new("/dev/null"))
                .expect("an entry")
                .fs_type,
            "devtmpfs"
        );
    }

    #[test]
    fn a_mount_is_shared_only_when_it_says_so() {
        let table = parse(TABLE);
        let shared: Vec<_> = table.iter().map(|e| e.shared).collect();
        assert_eq!(shared, [true, true, false, true]);
    }
}
