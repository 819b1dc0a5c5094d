//! What a caller may ask of a volume's use: only what holds.

use super::access::AccessMode;
use super::volume::{FsType, VolumeMode};

/// Longest mount option, in bytes.
pub const MOUNT_FLAG_MAX: usize = 256;
/// All mount options together, in bytes: what CSI allows a list of strings.
pub const MOUNT_FLAGS_MAX: usize = 4 << 10;

/// Options that say what to mount, or where, instead of how: the driver decides that. Some name a
/// second device, which nobody has checked.
const DRIVER_OPTIONS: [&str; 21] = [
    "bind",
    "rbind",
    "remount",
    "move",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "private",
    "rprivate",
    "unbindable",
    "runbindable",
    "loop",
    "offset",
    "sizelimit",
    "source",
    "fd",
    "journal_dev",
    "journal_path",
    "logdev",
    "rtdev",
];

/// SELinux labels: categories in them are parted by commas (`s0:c1,c2`), so callers put them in quotes.
const LABEL_OPTIONS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

/// How the volume is to appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form<'a> {
    /// A mounted filesystem.
    Mount {
        /// Its type; empty leaves it to the volume.
        fs_type: &'a str,
        /// Mount options.
        flags: &'a [String],
        /// Supplemental group; the driver does not take one.
        group: &'a str,
    },
    /// A raw device.
    Block,
    /// The caller did not say.
    Unknown,
}

/// A capability that the driver can serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capability {
    /// Who may use the volume at the same time.
    pub mode: AccessMode,
    /// Filesystem or raw device.
    pub volume_mode: VolumeMode,
    /// The filesystem that was asked for; none for a raw device.
    pub fs_type: Option<FsType>,
    /// Mount options, checked.
    pub mount_flags: Vec<String>,
}

/// A capability that the driver cannot serve, and why.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("volume_capability: {0}")]
pub struct Unsupported(String);

/// Checks one capability; `mode` is the access mode's name in CSI.
pub fn check(mode: &str, form: Form<'_>) -> Result<Capability, Unsupported> {
    if mode == "UNKNOWN" {
        return refuse("access_mode is missing: SINGLE_NODE_WRITER, say");
    }
    let mode = AccessMode::parse(mode)
        .ok_or_else(|| Unsupported(format!("access_mode {mode} is not known to this version")))?;
    if mode == AccessMode::MultiNodeSingleWriter {
        return refuse(
            "access_mode MULTI_NODE_SINGLE_WRITER is not supported: a target takes writes for all nodes or for none",
        );
    }
    let (fs_type, flags, group) = match form {
        Form::Mount {
            fs_type,
            flags,
            group,
        } => (fs_type, flags, group),
        Form::Block => {
            return Ok(Capability {
                mode,
                volume_mode: VolumeMode::Block,
                ..Capability::default()
            });
        }
        Form::Unknown => return refuse("access_type is missing: mount or block"),
    };
    if mode == AccessMode::MultiNodeMultiWriter {
        return refuse(
            "access_mode MULTI_NODE_MULTI_WRITER needs a raw block volume: ext4 and xfs have one writer",
        );
    }
    if !group.is_empty() {
        return refuse("volume_mount_group is not supported: leave it empty");
    }
    let fs_type = match fs_type {
        "" => None,
        name => Some(FsType::parse(name).ok_or_else(|| {
            Unsupported(format!(
                "fs_type {} is not supported: ext4 or xfs",
                super::shown(name)
            ))
        })?),
    };
    if flags.iter().map(String::len).sum::<usize>() > MOUNT_FLAGS_MAX {
        return refuse(format!(
            "mount_flags are longer than {MOUNT_FLAGS_MAX} bytes together"
        ));
    }
    let mount_flags = flags.iter().map(|flag| mount_flag(flag));
    Ok(Capability {
        mode,
        volume_mode: VolumeMode::Filesystem,
        fs_type,
        mount_flags: mount_flags.collect::<Result<_, _>>()?,
    })
}

/// A mount option is one option: anything that could become two, or another mount, is refused. Gives it
/// as the kernel takes it.
fn mount_flag(flag: &str) -> Result<String, Unsupported> {
    if let Some((key, value)) = flag.split_once('=')
        && LABEL_OPTIONS.contains(&key)
    {
        return label(key, value);
    }
    let fine = !flag.is_empty()
        && flag.len() <= MOUNT_FLAG_MAX
        && flag.bytes().all(|b| b.is_ascii_graphic() && b != b',')
        && !flag.starts_with(['-', '=']);
    if !fine {
        return refuse(format!(
            "mount_flags has {}: one option each, of at most {MOUNT_FLAG_MAX} visible ASCII characters, with no comma",
            super::shown(flag)
        ));
    }
    let key = flag.split('=').next().unwrap_or(flag);
    if DRIVER_OPTIONS.contains(&key) || key.to_ascii_lowercase().starts_with("x-") {
        return refuse(format!(
            "mount_flags has {flag:?}, which is not an option of a filesystem: drop it"
        ));
    }
    Ok(flag.to_owned())
}

/// A label loses its quotes: options travel to the kernel one by one, where a comma is no separator.
fn label(key: &str, value: &str) -> Result<String, Unsupported> {
    let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    let label = inner.unwrap_or(value);
    let fine = !label.is_empty()
        && label.len() <= MOUNT_FLAG_MAX
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.:,".contains(&b));
    if !fine {
        return refuse(format!(
            "mount_flags has {key}={}, which is no SELinux label: user:role:type:level",
            super::shown(value)
        ));
    }
    Ok(format!("{key}={label}"))
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Unsupported> {
    Err(Unsupported(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount<'a>(fs_type: &'a str, flags: &'a [String]) -> Form<'a> {
        Form::Mount {
            fs_type,
            flags,
            group: "",
        }
    }

    fn refused(mode: &str, form: Form<'_>, word: &str) {
        let error = check(mode, form).expect_err(word).to_string();
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }

    #[test]
    fn one_writer_on_one_node_with_a_mount() {
        let flags = [
            "noatime".to_owned(),
            "commit=30".to_owned(),
            "ro".to_owned(),
        ];
        let fine = check("SINGLE_NODE_WRITER", mount("xfs", &flags)).expect("fine");
        assert_eq!(
            (fine.fs_type, fine.mount_flags),
            (Some(FsType::Xfs), flags.to_vec())
        );
        let plain = check("SINGLE_NODE_WRITER", mount("", &[])).expect("fine");
        assert_eq!(plain.fs_type, None);
    }

    #[test]
    fn bug_c_102_an_selinux_label_keeps_its_commas_and_loses_its_quotes() {
        let label = "system_u:object_r:container_file_t:s0:c1,c2";
        for flag in [
            format!("context=\"{label}\""),
            format!("context={label}"),
            format!("rootcontext=\"{label}\""),
        ] {
            let fine = check("SINGLE_NODE_WRITER", mount("xfs", &[flag.clone()])).expect("fine");
            let key = flag.split('=').next().unwrap();
            assert_eq!(fine.mount_flags, [format!("{key}={label}")]);
        }
        for bad in [
            "context=",
            "context=\"\"",
            "context=\"a",
            "context=a\"b",
            "context=a b",
            "context=a,rw=1",
            "xcontext=a,b",
            "data=\"a,b\"",
        ] {
            refused(
                "SINGLE_NODE_WRITER",
                mount("", &[bad.to_owned()]),
                "mount_flags",
            );
        }
    }

    #[test]
    fn modes_that_hold_for_a_mount_and_for_a_raw_device() {
        for mode in [
            "SINGLE_NODE_WRITER",
            "SINGLE_NODE_SINGLE_WRITER",
            "SINGLE_NODE_MULTI_WRITER",
            "SINGLE_NODE_READER_ONLY",
            "MULTI_NODE_READER_ONLY",
        ] {
            let fine = check(mode, mount("ext4", &[])).expect(mode);
            assert_eq!(
                (fine.mode.as_str(), fine.volume_mode),
                (mode, VolumeMode::Filesystem)
            );
            assert_eq!(
                check(mode, Form::Block).expect(mode).volume_mode,
                VolumeMode::Block
            );
        }
        check("MULTI_NODE_MULTI_WRITER", Form::Block).expect("raw devices can be shared");
    }

    #[test]
    fn nothing_else_and_each_by_its_name() {
        refused("MULTI_NODE_MULTI_WRITER", mount("ext4", &[]), "raw block");
        for form in [mount("ext4", &[]), Form::Block] {
            refused("MULTI_NODE_SINGLE_WRITER", form, "MULTI_NODE_SINGLE_WRITER");
        }
        refused("77", mount("ext4", &[]), "77");
        refused("UNKNOWN", mount("ext4", &[]), "access_mode");
        refused("SINGLE_NODE_WRITER", Form::Unknown, "access_type");
        refused("SINGLE_NODE_WRITER", mount("btrfs", &[]), "btrfs");
        let group = Form::Mount {
            fs_type: "ext4",
            flags: &[],
            group: "1000",
        };
        refused("SINGLE_NODE_WRITER", group, "volume_mount_group");
    }

    #[test]
    fn rule_12_a_mount_flag_is_one_option_of_a_filesystem() {
        let long = "x".repeat(MOUNT_FLAG_MAX + 1);
        for bad in [
            "",
            "a,b",
            "a\0",
            "a\nb",
            "a b",
            "-o",
            "=x",
            "é",
            &long,
            "bind",
            "remount",
            "loop",
            "loop=/dev/loop0",
            "source=/dev/sda",
            "logdev=/dev/sda",
            "journal_path=/dev/sda",
            "X-mount.mkdir",
            "x-systemd.automount",
        ] {
            refused(
                "SINGLE_NODE_WRITER",
                mount("", &[bad.to_owned()]),
                "mount_flags",
            );
        }
        let many = vec!["x".repeat(200); 21];
        refused("SINGLE_NODE_WRITER", mount("", &many), "mount_flags");
    }
}
