//! Parameters of unknown origin.

use super::*;

fn parse(given: &[(&str, &str)]) -> Result<Parameters, BadParameter> {
    let mut map = HashMap::from([(POOL.to_owned(), "tank".to_owned())]);
    map.extend(
        given
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
    );
    Parameters::parse(&map)
}

#[test]
fn a_pool_is_enough() {
    let parsed = parse(&[]).unwrap();
    assert_eq!(
        (parsed.pools, parsed.block),
        (vec!["tank".to_owned()], None)
    );
    assert_eq!((parsed.fs_type, parsed.tuning), (None, Tuning::default()));
    assert_eq!(Parameters::parse(&HashMap::new()).unwrap_err().key, POOL);
}

#[test]
fn the_help_names_every_parameter_and_fits_a_terminal() {
    let text = help();
    assert!(TABLE.iter().all(|known| text.contains(known.key)));
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn the_documentation_has_this_table() {
    let text = include_str!("../../../docs/parameters.md");
    let rows: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let expected: Vec<_> = TABLE
        .iter()
        .map(|known| {
            let given = match known.given {
                Given::AtCreation => "creation",
                Given::AnyTime => "creation, later",
                Given::Later => "later",
            };
            let Known {
                key,
                values,
                meaning,
                ..
            } = known;
            format!("| `{key}` | {meaning} | {values} | {given} |")
        })
        .collect();
    assert_eq!(rows, expected, "docs/parameters.md is to have these rows");
}

#[test]
fn unknown_ones_are_refused_by_name_with_the_known_ones() {
    let error = parse(&[("colour", "blue")]).unwrap_err().to_string();
    assert!(error.contains("colour"), "{error}");
    for known in TABLE.iter().filter(|known| known.given != Given::Later) {
        assert!(error.contains(known.key), "{error}");
    }
    let hostile = parse(&[("a\nb\0", "x")]).unwrap_err().to_string();
    assert!(
        !hostile.contains('\n') && !hostile.contains('\0'),
        "{hostile}"
    );
}

#[test]
fn hostile_values_are_refused_by_key() {
    for (key, value) in [
        (POOL, ""),
        (POOL, "a/b"),
        (POOL, "../x"),
        (POOL, "1pool"),
        (POOL, "a\0"),
        (POOL, "a b"),
        (POOL, "mirror"),
        (POOL, "raidz2"),
        (POOL, "log"),
        (POOL, &"p".repeat(64)),
        (TYPE, "filesystem"),
        (TYPE, "file"),
        (TRANSPORT, "iscsi"),
        (ATTACH, "warm"),
        (ATTACH, "Pooled"),
        (FS_TYPE, "btrfs"),
        (K8S_FS_TYPE, ""),
        (BLOCK_SIZE, "3k"),
        (BLOCK_SIZE, "256k"),
        (BLOCK_SIZE, "256"),
        (BLOCK_SIZE, "k"),
        (BLOCK_SIZE, ""),
        (BLOCK_SIZE, "+16k"),
        (BLOCK_SIZE, "99999999999999999999g"),
        (BLOCK_SIZE, "18446744073709551615g"),
        (BLOCK_SIZE_ALIAS, "16q"),
        (MKFS_OPTIONS, ""),
        (MKFS_OPTIONS, "-d name=/dev/sda"),
        (COMPRESSION, "best"),
        (COMPRESSION, "zstd-10"),
        (COMPRESSION, "zstd-0"),
        (COMPRESSION, "zstd-fast-"),
        (COMPRESSION, "lz4,off"),
        (CLAIM_NAME, "A\n"),
        (PV_NAME, "../x"),
    ] {
        assert_eq!(parse(&[(key, value)]).unwrap_err().key, key, "{value:?}");
    }
    assert!(
        parse(&[(COMPRESSION, &"x".repeat(MAP_MAX))])
            .unwrap_err()
            .problem
            .contains("4096")
    );
}

#[test]
fn block_sizes_have_one_form() {
    for (text, form) in [
        ("16k", "16k"),
        ("16384", "16k"),
        ("16K", "16k"),
        ("512", "512"),
        ("128k", "128k"),
        ("0001k", "1k"),
    ] {
        for key in [BLOCK_SIZE, BLOCK_SIZE_ALIAS] {
            let block = parse(&[(key, text)]).unwrap().block.unwrap();
            assert_eq!(vol_block_size(block), form);
            assert_eq!(block_bytes(form), Some(block));
        }
    }
}

#[test]
fn two_names_of_one_parameter_must_agree() {
    let same = parse(&[
        (FS_TYPE, "xfs"),
        (K8S_FS_TYPE, "xfs"),
        (BLOCK_SIZE, "8k"),
        (BLOCK_SIZE_ALIAS, "8192"),
    ])
    .unwrap();
    assert_eq!((same.fs_type, same.block), (Some(FsType::Xfs), Some(8192)));
    assert_eq!(
        parse(&[(FS_TYPE, "xfs"), (K8S_FS_TYPE, "ext4")])
            .unwrap_err()
            .key,
        FS_TYPE
    );
    assert_eq!(
        parse(&[(BLOCK_SIZE, "8k"), (BLOCK_SIZE_ALIAS, "16k")])
            .unwrap_err()
            .key,
        BLOCK_SIZE
    );
}

#[test]
fn compressions_have_the_apis_names() {
    for text in [
        "on",
        "off",
        "lz4",
        "gzip",
        "zstd",
        "zstd-1",
        "zstd-9",
        "zstd-3-fast",
    ] {
        let tuning = parse(&[(COMPRESSION, text)]).unwrap().tuning;
        assert_eq!(tuning.compression, text);
    }
    assert_eq!(
        parse(&[(COMPRESSION, "zstd-fast-3")])
            .unwrap()
            .tuning
            .compression,
        "zstd-3-fast"
    );
}

#[test]
fn changes_leave_what_is_not_given() {
    let before = Tuning {
        compression: "lz4".into(),
        sync: "always".into(),
        ..Tuning::default()
    };
    let map = |key: &str, value: &str| HashMap::from([(key.to_owned(), value.to_owned())]);
    let after = |key, value| Changes::parse(&map(key, value)).unwrap().apply(&before);
    assert_eq!(
        after(SYNC, "disabled"),
        Tuning {
            sync: "disabled".into(),
            ..before.clone()
        }
    );
    assert_eq!(
        after(REFRESERVATION, "auto").provisioning,
        Provisioning::Thick
    );
    let lz4 = Changes::parse(&map(COMPRESSION, "lz4")).unwrap();
    assert!(lz4.hold_for(&before) && !lz4.hold_for(&Tuning::default()));
    assert!(!lz4.is_empty() && Changes::parse(&HashMap::new()).unwrap().is_empty());
    for (key, value) in [
        (POOL, "tank"),
        (PROVISIONING, "thick"),
        (SYNC, "maybe"),
        (LOGBIAS, ""),
        (PRIMARYCACHE, "all,none"),
        (REFRESERVATION, "1G"),
    ] {
        let error = Changes::parse(&map(key, value)).unwrap_err();
        assert!(error.key.contains(key), "{error}");
    }
    assert!(
        parse(&[(REFRESERVATION, "auto")]).is_err(),
        "provisioning says it"
    );
}

#[test]
fn pools_to_choose_from_keep_their_order() {
    assert_eq!(
        parse(&[(POOL, "tank, fast")]).unwrap().pools,
        ["tank", "fast"]
    );
    for bad in ["tank,", ",", "tank,tank", "tank,a/b"] {
        assert_eq!(parse(&[(POOL, bad)]).unwrap_err().key, POOL, "{bad}");
    }
}

#[test]
fn the_claim_needs_both_names() {
    let claim = parse(&[(CLAIM_NAMESPACE, "demo"), (CLAIM_NAME, "data-0")])
        .unwrap()
        .claim
        .unwrap();
    assert_eq!(
        (claim.namespace.as_str(), claim.name.as_str()),
        ("demo", "data-0")
    );
    assert_eq!(parse(&[(CLAIM_NAME, "data-0")]).unwrap().claim, None);
}

#[test]
fn options_of_mkfs_are_words_and_mean_something_to_the_filesystem() {
    let parsed = parse(&[(MKFS_OPTIONS, " -m  1 -i 64k")]).unwrap();
    assert_eq!(parsed.mkfs_options, ["-m", "1", "-i", "64k"]);
    assert_eq!(
        check_mkfs_options(FsType::Ext4, &parsed.mkfs_options),
        Ok(())
    );
    let refused = check_mkfs_options(FsType::Xfs, &parsed.mkfs_options).unwrap_err();
    assert_eq!(refused.key, MKFS_OPTIONS);
    assert!(parse(&[]).unwrap().mkfs_options.is_empty());
}
