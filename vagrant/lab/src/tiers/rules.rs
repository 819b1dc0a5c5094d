//! Every rule that is never broken has a test that names it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::workspace;

/// The rules of the table in CONTRIBUTING.md.
const RULES: std::ops::RangeInclusive<u32> = 1..=13;

/// The numbers of the rules that the tests below `dir` name: `fn rule_04_…`.
fn named_below(dir: &Path, found: &mut BTreeSet<u32>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.extend(text.split("fn rule_").skip(1).filter_map(|rest| {
                let (number, _) = rest.split_once('_')?;
                number.parse::<u32>().ok()
            }));
        }
    }
}

#[test]
fn every_rule_has_a_test_in_the_lab_that_names_it() {
    let mut found = BTreeSet::new();
    named_below(&workspace().join("tests/vm"), &mut found);
    let missing: Vec<u32> = RULES.filter(|rule| !found.contains(rule)).collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
}

#[test]
fn the_table_has_these_rules() {
    let text = fs::read_to_string(workspace().join("CONTRIBUTING.md")).unwrap();
    for rule in RULES {
        let row = format!("| {rule} |");
        assert!(text.contains(&row), "{row}");
    }
    assert!(!text.contains(&format!("| {} |", RULES.end() + 1)));
}
