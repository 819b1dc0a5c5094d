//! Tier `image`: the container images of the driver as it is released.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Counts, build};
use crate::container::{self, Built, PROGRAM, RECIPES, USER, VERSION};
use crate::{cleanup, host};

type Check = fn(&Images) -> Result<()>;

const CHECKS: [(&str, Check); 6] = [
    (
        "packages that are fetched again give the same digests",
        |images| {
            let again = images.dir.join("again");
            for (first, second) in images.built.iter().zip(images.build_in(&again)?) {
                ensure!(
                    first.digest == second.digest,
                    "{}: {} and {}",
                    first.reference,
                    first.digest,
                    second.digest
                );
                let files = [&first.file, &second.file, &first.sbom, &second.sbom].map(fs::read);
                let [one, other, bill, other_bill] = files;
                ensure!(one? == other?, "{}: the files differ", first.reference);
                ensure!(
                    bill? == other_bill?,
                    "{}: the bills of materials differ",
                    first.reference
                );
            }
            Ok(())
        },
    ),
    (
        "another program reads them, and finds the same digest",
        |images| {
            for built in &images.built {
                let place = format!("oci-archive:{}:{VERSION}", built.file.display());
                let about: Value =
                    serde_json::from_str(&said(Command::new("skopeo").args(["inspect", &place]))?)?;
                ensure!(about["Digest"] == built.digest, "{about:#}");
                let config: Value = serde_json::from_str(&said(
                    Command::new("skopeo").args(["inspect", "--config", &place]),
                )?)?;
                ensure!(
                    config["config"]["User"] == format!("{USER}:{USER}"),
                    "{config:#}"
                );
                ensure!(
                    config["config"]["Entrypoint"][0] == format!("/{PROGRAM}"),
                    "{config:#}"
                );
            }
            Ok(())
        },
    ),
    ("the driver starts in each", |images| {
        for root in images.roots()? {
            let version = said(in_root(&root).arg(format!("/{PROGRAM}")).arg("--version"))?;
            ensure!(version.trim() == format!("zvolt {VERSION}"), "{version}");
        }
        Ok(())
    }),
    (
        "the agent's programs and libraries find all that they need",
        |images| {
            let root = &images.roots()?[0];
            for program in ["mkfs.xfs", "e2fsck"] {
                said(in_root(root).arg(format!("/usr/sbin/{program}")).arg("-V"))?;
            }
            for library in [
                "libzfs.so.6",
                "libzfs_core.so.3",
                "libnvpair.so.3",
                "libext2fs.so.2",
                "libcom_err.so.2",
            ] {
                let loader = ["/lib64/ld-linux-x86-64.so.2", "--list"];
                let needs = said(
                    in_root(root)
                        .args(loader)
                        .arg(format!("/lib/x86_64-linux-gnu/{library}")),
                )?;
                ensure!(!needs.contains("not found"), "{library}: {needs}");
            }
            Ok(())
        },
    ),
    (
        "there is no ZFS for nodes, and no shell and no setuid program at all",
        |images| {
            let roots = images.roots()?;
            ensure!(
                found(&roots[0], &|path, _| named(path, "libzfs"))?.is_some(),
                "the agent's has no ZFS"
            );
            ensure!(
                found(&roots[1], &|path, _| named(path, "libzfs"))?.is_none(),
                "the nodes' has ZFS"
            );
            for root in &roots {
                for shell in ["sh", "bash", "dash"] {
                    ensure!(
                        !root.join("usr/bin").join(shell).exists(),
                        "{}: {shell}",
                        root.display()
                    );
                }
                let risen = found(root, &|_, mode| mode & 0o6000 != 0)?;
                ensure!(risen.is_none(), "setuid or setgid: {risen:?}");
            }
            Ok(())
        },
    ),
    (
        "every package has its licence and its line in the bill of materials",
        |images| {
            for ((recipe, built), root) in RECIPES.iter().zip(&images.built).zip(images.roots()?) {
                let bill: Value = serde_json::from_str(&fs::read_to_string(&built.sbom)?)?;
                let listed = bill["packages"].as_array().context("packages")?;
                ensure!(
                    listed.len() == 1 + built.packages + built.crates,
                    "{}",
                    listed.len()
                );
                for package in container::packages(recipe.list, &images.debs)? {
                    let is_it = |p: &&Value| {
                        p["name"] == *package.name && p["versionInfo"] == *package.version
                    };
                    ensure!(
                        listed.iter().any(|p| is_it(&p)),
                        "{} is in no line",
                        package.name
                    );
                    let licence = root
                        .join("usr/share/doc")
                        .join(&package.name)
                        .join("copyright");
                    ensure!(licence.exists(), "{} is missing", licence.display());
                }
            }
            Ok(())
        },
    ),
];

/// The images, built for the checks.
struct Images {
    dir: PathBuf,
    debs: PathBuf,
    program: PathBuf,
    built: Vec<Built>,
}

/// The names of the checks.
pub(super) fn names() -> Vec<String> {
    CHECKS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// Runs the checks whose names have `filter` in them.
pub(super) fn run(filter: Option<&str>, counts: &mut Counts) -> Result<()> {
    let is_wanted = |name: &str| filter.is_none_or(|f| name.contains(f));
    if !CHECKS.iter().any(|(name, _)| is_wanted(name)) {
        return Ok(());
    }
    host::require(host::CONTAINER_TESTS)?;
    let program = build::release("zvolt")?;
    let dir = std::env::temp_dir().join(format!("zvolt-image-{}", std::process::id()));
    fs::create_dir(&dir)?;
    let _guard = {
        let dir = dir.clone();
        cleanup::on_end(move || {
            let _ = crate::cache::remove(&dir);
        })
    };
    let mut images = Images {
        debs: dir.join("once/debs"),
        dir,
        program,
        built: Vec::new(),
    };
    images.built = images.build_in(&images.dir.join("once"))?;
    for (name, check) in CHECKS.iter().filter(|(name, _)| is_wanted(name)) {
        match check(&images) {
            Ok(()) => {
                println!("ok      {name}");
                counts.passed += 1;
            }
            Err(error) => {
                println!("FAILED  {name}: {error:#}");
                counts.failed += 1;
            }
        }
    }
    Ok(())
}

impl Images {
    fn build_in(&self, folder: &Path) -> Result<Vec<Built>> {
        let debs = folder.join("debs");
        fs::create_dir_all(&debs)?;
        container::fetch(&debs)?;
        let all = RECIPES.iter();
        all.map(|recipe| container::assemble(recipe, &debs, &self.program, folder))
            .collect()
    }

    /// The files of each, unpacked of its layer as a runtime does.
    fn roots(&self) -> Result<Vec<PathBuf>> {
        let all = RECIPES.iter().zip(&self.built);
        all.map(|(recipe, built)| {
            let root = self.dir.join("roots").join(recipe.name);
            if !root.exists() {
                unpack(
                    &built.file,
                    &self.dir.join("blobs").join(recipe.name),
                    &root,
                )?;
            }
            Ok(root)
        })
        .collect()
    }
}

fn unpack(file: &Path, layout: &Path, root: &Path) -> Result<()> {
    for dir in [layout, root] {
        fs::create_dir_all(dir)?;
    }
    said(
        Command::new("tar")
            .arg("-xf")
            .arg(file)
            .arg("-C")
            .arg(layout),
    )?;
    let read = |digest: &Value| -> Result<Value> {
        let digest = digest.as_str().context("a digest")?;
        let blob = layout.join("blobs").join(digest.replace(':', "/"));
        Ok(serde_json::from_slice(&fs::read(blob)?)?)
    };
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let manifest = read(&index["manifests"][0]["digest"])?;
    let layer = manifest["layers"][0]["digest"]
        .as_str()
        .context("a layer")?;
    let layer = layout.join("blobs").join(layer.replace(':', "/"));
    let mut command = host::root_command("tar");
    command.args(["-xzpf"]).arg(layer).arg("-C").arg(root);
    said(&mut command).map(drop)
}

fn in_root(root: &Path) -> Command {
    let mut command = host::root_command("chroot");
    command.arg(format!("--userspec={USER}:{USER}")).arg(root);
    command
}

/// What a command printed; both streams, for e2fsck tells its version on the other.
fn said(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{command:?} failed ({}): {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

fn named(path: &Path, prefix: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// The first file below a folder that fits by its path and mode.
fn found(folder: &Path, fits: &dyn Fn(&Path, u32) -> bool) -> Result<Option<PathBuf>> {
    use std::os::unix::fs::MetadataExt;
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let about = fs::symlink_metadata(&path)?;
        if about.is_dir() {
            if let Some(path) = found(&path, fits)? {
                return Ok(Some(path));
            }
        } else if fits(&path, about.mode()) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
