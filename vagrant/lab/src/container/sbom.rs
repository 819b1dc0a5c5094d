//! The bill of materials: SPDX 2.3, of Debian packages and of the crates that are in the driver.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Package, VERSION};
use crate::tiers;

/// A crate in the driver.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crate {
    name: String,
    version: String,
    licence: String,
}

/// The crates that Cargo.lock pins for the driver, without those that only build or test it.
pub(super) fn crates() -> Result<Vec<Crate>> {
    let output = tiers::cargo()
        .args([
            "tree",
            "--locked",
            "--package",
            "zvolt",
            "--edges",
            "normal",
        ])
        .args(["--no-dedupe", "--prefix", "none", "--format", "{p}|{l}"])
        .output()
        .context("run cargo tree")?;
    ensure!(
        output.status.success(),
        "cargo tree failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let mut all: Vec<Crate> = text.lines().filter_map(read).collect();
    all.sort();
    all.dedup();
    ensure!(!all.is_empty(), "cargo tree names no crate");
    Ok(all)
}

/// `name v1.2.3 (where from)|licence`.
fn read(line: &str) -> Option<Crate> {
    let (package, licence) = line.split_once('|')?;
    let mut words = package.split(' ');
    Some(Crate {
        name: words.next()?.to_owned(),
        version: words.next()?.strip_prefix('v')?.to_owned(),
        licence: licence.replace('/', " OR "),
    })
}

/// The document, as text.
pub(super) fn document(image: &str, debs: &[Package], crates: &[Crate]) -> Result<String> {
    let debian = debs.iter().map(|package| {
        let Package {
            name,
            version,
            architecture,
            ..
        } = package;
        let locator = format!(
            "pkg:deb/debian/{name}@{}?arch={architecture}",
            escaped(version)
        );
        // Their terms are in the image: usr/share/doc/NAME/copyright.
        entry("deb", name, version, "NOASSERTION", &locator)
    });
    let rust = crates.iter().map(|one| {
        let locator = format!("pkg:cargo/{}@{}", one.name, escaped(&one.version));
        entry("crate", &one.name, &one.version, &one.licence, &locator)
    });
    let contents: Vec<Value> = debian.chain(rust).collect();
    let whole = json!({
        "SPDXID": "SPDXRef-image", "name": image, "versionInfo": VERSION, "downloadLocation": "NOASSERTION",
        "licenseConcluded": "NOASSERTION", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
        "filesAnalyzed": false, "primaryPackagePurpose": "CONTAINER",
    });
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image")];
    for one in &contents {
        let id = one["SPDXID"].as_str().unwrap_or_default();
        relations.push(relation("SPDXRef-image", "CONTAINS", id));
    }
    let packages = [vec![whole], contents].concat();
    let document = json!({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{image}-{VERSION}"),
        "documentNamespace": format!("urn:zvolt:image:{image}:{VERSION}"),
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: zvolt-lab"]},
        "packages": packages,
        "relationships": relations,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn entry(kind: &str, name: &str, version: &str, licence: &str, locator: &str) -> Value {
    json!({
        "SPDXID": format!("SPDXRef-{kind}-{}", id(&format!("{name}-{version}"))),
        "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION", "licenseDeclared": licence, "copyrightText": "NOASSERTION",
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator,
        }],
    })
}

fn relation(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

/// Letters, digits, '.' and '-' are all that an SPDX identifier has.
fn id(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    text.chars()
        .map(|c| if plain(c) { c } else { '-' })
        .collect()
}

/// What a package URL keeps for itself.
fn escaped(version: &str) -> String {
    version
        .replace('%', "%25")
        .replace('+', "%2B")
        .replace(':', "%3A")
        .replace('~', "%7E")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crates_line_is_read_as_cargo_writes_it() {
        let read = read("caps v0.5.6|MIT/Apache-2.0").unwrap();
        assert_eq!(
            (read.name.as_str(), read.version.as_str()),
            ("caps", "0.5.6")
        );
        assert_eq!(read.licence, "MIT OR Apache-2.0");
        assert!(super::read("zvolt v0.1.0 (/somewhere)|Apache-2.0").is_some());
        assert!(super::read("").is_none());
    }

    #[test]
    fn the_driver_has_its_crates_and_none_that_only_builds_it() {
        let all = crates().unwrap();
        let has = |name: &str| all.iter().any(|one| one.name == name);
        assert!(has("zvolt") && has("tokio") && has("kube"));
        assert!(!has("protox") && !has("tempfile") && !has("clippy"));
    }

    #[test]
    fn identifiers_and_package_urls_keep_to_their_grammar() {
        assert_eq!(id("libstdc++6-1:2~3"), "libstdc--6-1-2-3");
        assert_eq!(
            escaped("1:1.3+really-1~deb13u1"),
            "1%3A1.3%2Breally-1%7Edeb13u1"
        );
    }
}
