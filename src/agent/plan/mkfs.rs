//! Making a filesystem, as the Volume has it.

use zvolt_kernel::format::{Ext4Options, Inodes, Options, XfsSetting};

use super::super::observe::{Failure, Format};
use super::super::steps::{Act, Step};
use crate::model::mkfs::{self, Choices, Ext4, Xfs};
use crate::model::names::{self, Identity};
use crate::model::volume::{Volume, reason};

/// Formatting and its record, on a zvol that is pending.
pub(super) fn steps(volume: &Volume, identity: &Identity) -> Result<Vec<Step>, Failure> {
    let dataset = names::zvol(&volume.spec.pool, &volume.metadata.name);
    let uuid = identity.filesystem_uuid;
    Ok(vec![
        Act::Appear {
            dataset: dataset.clone(),
        }
        .into(),
        Act::Format {
            dataset: dataset.clone(),
            options: options(volume)?,
            uuid,
        }
        .into(),
        Act::RecordFormat {
            dataset,
            record: Format::record(volume.spec.fs_type, uuid),
        }
        .into(),
    ])
}

/// How the filesystem is made.
pub(super) fn options(volume: &Volume) -> Result<Options, Failure> {
    let bad = |why: String| Failure::lasting(reason::BAD_PROPERTY, format!("mkfsOptions: {why}"));
    let spec = &volume.spec;
    match mkfs::choices(spec.fs_type, &spec.mkfs_options).map_err(bad)? {
        Choices::Ext4(choices) => Ok(Options::Ext4(ext4(&choices))),
        Choices::Xfs(Xfs(settings)) => settings
            .iter()
            .map(|s| Some((XfsSetting::named(s.flag, s.key)?, s.value)))
            .collect::<Option<_>>()
            .map(Options::Xfs)
            .ok_or_else(|| bad("this version cannot set all of it".into())),
    }
}

fn ext4(choices: &Ext4) -> Ext4Options {
    Ext4Options {
        reserved_hundredths: choices.reserved_hundredths,
        inodes: match choices.inodes {
            mkfs::Inodes::BySize => Inodes::BySize,
            mkfs::Inodes::BytesEach(bytes) => Inodes::BytesEach(bytes),
            mkfs::Inodes::Count(count) => Inodes::Count(count),
        },
        inode_size: choices.inode_size,
        journal: choices.journal,
        large_dir: choices.large_dir,
        inline_data: choices.inline_data,
        encrypt: choices.encrypt,
        verity: choices.verity,
        stride: choices.stride,
        stripe_width: choices.stripe_width,
        eager_tables: choices.eager_tables,
        eager_journal: choices.eager_journal,
    }
}

#[cfg(test)]
mod tests {
    use zvolt_kernel::probe::FsKind;

    use super::*;
    use crate::model::volume::FsType;
    use crate::store::conformance::volume;

    fn with(fs_type: FsType, text: &str) -> Result<Options, Failure> {
        let mut volume = volume("v");
        volume.spec.fs_type = fs_type;
        volume.spec.mkfs_options = mkfs::words(text).unwrap_or_default();
        options(&volume)
    }

    #[test]
    fn nothing_chosen_is_the_plain_filesystem() {
        for (fs_type, kind) in [(FsType::Ext4, FsKind::Ext4), (FsType::Xfs, FsKind::Xfs)] {
            assert_eq!(with(fs_type, ""), Ok(Options::plain(kind)));
        }
    }

    #[test]
    fn all_that_the_model_takes_the_kernel_room_can_do() {
        let text = "-m bigtime=1,crc=1,finobt=1,inobtcount=1,reflink=1,rmapbt=0 -i size=512,maxpct=25,sparse=1,nrext64=1 \
                    -n size=4k -s size=512 -d agcount=4,su=64k,sw=2 -l size=64m,su=64k,lazy-count=1";
        let Ok(Options::Xfs(settings)) = with(FsType::Xfs, text) else {
            panic!("{:?}", with(FsType::Xfs, text));
        };
        assert_eq!(settings.len(), 18);
        let Ok(Options::Ext4(chosen)) = with(FsType::Ext4, "-m 1 -N 99 -O ^has_journal") else {
            panic!("ext4");
        };
        assert_eq!(
            (chosen.reserved_hundredths, chosen.inodes),
            (100, Inodes::Count(99))
        );
        assert!(!chosen.journal);
    }

    #[test]
    fn words_that_the_controller_would_not_have_written_are_final() {
        let refused = with(FsType::Xfs, "-m 1").unwrap_err();
        assert_eq!(refused.reason, reason::BAD_PROPERTY);
    }
}
