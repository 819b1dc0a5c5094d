//! The packages of the images: fetched and verified by apt, unpacked and not configured.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::write;
use crate::cache::{self, contained, into_place, key_of, logged};
use crate::{host, progress, quote, tiers};

const SUITE: &str = "trixie";
const LISTS: &str = "deploy/image";
/// To be raised when the way of fetching changes what comes out.
const FORMAT: &str = "1";
/// Scanners of images look for packages here where no package manager is.
const STATUS: &str = "var/lib/dpkg/status.d";

/// A package, as a file.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) architecture: String,
    about: String,
    file: PathBuf,
}

/// The packages that a list of `deploy/image` names.
fn listed(list: &str) -> Result<Vec<String>> {
    let file = tiers::workspace().join(LISTS).join(list);
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// Every package of every image, each once.
fn all() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for recipe in super::RECIPES {
        all.extend(listed(recipe.list)?);
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// The folder with all of them; fetched when it is not there yet.
pub(super) fn cached() -> Result<PathBuf> {
    let cache = cache::dir()?;
    let key = key_of(&[FORMAT, SUITE, &all()?.join(",")]);
    let place = cache.join(format!("debs-{key}"));
    if !place.exists() {
        let _lock = cache::lock(&cache)?;
        if !place.exists() {
            progress::part(
                "fetching the images' packages (once; half a minute)",
                || into_place(&place, fetch),
            )?;
            cache::forget_old(&cache, &["debs-"], &[&place])?;
        }
    }
    Ok(place)
}

/// Fetches all of them into a folder that is there. What they depend on comes along, and is in no image that does not
/// name it.
pub(super) fn fetch(folder: &Path) -> Result<()> {
    let keep = format!(
        "cp \"$1\"/var/cache/apt/archives/*.deb {}",
        quote(&folder.to_string_lossy())
    );
    let mut command = contained("mmdebstrap");
    command.args(["--mode=root", "--variant=extract", "--format=null"]);
    command.arg("--components=main,contrib");
    command.arg(format!("--include={}", all()?.join(",")));
    command.arg("--aptopt=APT::Install-Recommends \"false\"");
    command.arg(format!("--extract-hook={keep}"));
    command.arg(SUITE).arg("-");
    command.args(host::debian_mirror());
    logged(command, &folder.join("log"), "mmdebstrap")
}

/// The packages of a list, in a folder that has them.
pub(crate) fn packages(list: &str, debs: &Path) -> Result<Vec<Package>> {
    let listed = listed(list)?;
    listed
        .iter()
        .map(|name| Package::find(name, debs))
        .collect()
}

impl Package {
    fn find(name: &str, debs: &Path) -> Result<Self> {
        let prefix = format!("{name}_");
        let files = fs::read_dir(debs).with_context(|| format!("read {}", debs.display()))?;
        let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
        let file = files.find(|path| {
            path.file_name()
                .is_some_and(|file| file.to_string_lossy().starts_with(&prefix))
        });
        let file = file.with_context(|| format!("{SUITE} has no package {name}"))?;
        let about = dpkg_deb("--field", &file, None)?;
        let field = |key: &str| {
            let line = about.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim().to_owned())
                .with_context(|| format!("{} has no field {key}", file.display()))
        };
        Ok(Self {
            name: name.to_owned(),
            version: field("Version:")?,
            architecture: field("Architecture:")?,
            about,
            file,
        })
    }

    /// Its files, but for what is for reading; the licence stays.
    pub(super) fn unpack(&self, root: &Path) -> Result<()> {
        dpkg_deb("--extract", &self.file, Some(root))?;
        for read in ["info", "lintian", "locale", "man"] {
            cache::remove(&root.join("usr/share").join(read))?;
        }
        let doc = root.join("usr/share/doc").join(&self.name);
        if doc.is_dir() && !doc.is_symlink() {
            for entry in fs::read_dir(&doc)? {
                let path = entry?.path();
                if path.is_dir() && !path.is_symlink() {
                    fs::remove_dir_all(path)?;
                } else if !path.ends_with("copyright") {
                    fs::remove_file(path)?;
                }
            }
        }
        let status = root.join(STATUS);
        fs::create_dir_all(&status)?;
        fs::set_permissions(&status, PermissionsExt::from_mode(0o755))?;
        write(&status.join(&self.name), &self.about)
    }
}

fn dpkg_deb(verb: &str, file: &Path, into: Option<&Path>) -> Result<String> {
    let output = Command::new("dpkg-deb")
        .arg(verb)
        .arg(file)
        .args(into)
        .output()
        .context("run dpkg-deb")?;
    ensure!(
        output.status.success(),
        "dpkg-deb {verb} {} failed ({}): {}",
        file.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
