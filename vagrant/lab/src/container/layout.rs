//! The OCI image layout (image-spec 1.1): blobs by their digest, an index that names the manifest, all in one tar.

use std::env::consts::ARCH;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{PROGRAM, USER, VERSION};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// No moment is part of an image.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// A blob in the layout.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.size})
    }
}

/// Makes the layout of a tree of files in `scratch`, and its tar. Gives the manifest's digest.
pub(super) fn write(scratch: &Path, root: &Path, reference: &str, file: &Path) -> Result<String> {
    let layout = scratch.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let plain = scratch.join("layer.tar");
    tar(root, &plain)?;
    let packed = scratch.join("layer.tar.gz");
    gzip(&plain, &packed)?;
    let layer = keep(&blobs, &fs::read(&packed)?)?;
    let config = json!({
        "created": EPOCH,
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": [format!("/{PROGRAM}")],
            // mkfs.xfs and e2fsck are looked for by their places.
            "Env": ["PATH=/usr/sbin:/usr/bin"],
            "Labels": {
                "org.opencontainers.image.title": "zvolt",
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(&fs::read(&plain)?)]},
        "history": [{"created": EPOCH, "created_by": "cargo lab image"}],
    });
    let config = keep(&blobs, config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.descriptor(CONFIG),
        "layers": [layer.descriptor(LAYER)],
    });
    let manifest = keep(&blobs, manifest.to_string().as_bytes())?;
    let mut entry = manifest.descriptor(MANIFEST);
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    entry["annotations"] = json!({
        // By the first containerd names it, by the second skopeo and the like.
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": VERSION,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    super::write(&layout.join("index.json"), &index.to_string())?;
    let version = json!({"imageLayoutVersion": "1.0.0"});
    super::write(&layout.join("oci-layout"), &version.to_string())?;
    tar(&layout, file)?;
    Ok(manifest.digest)
}

/// As OCI, and Go, call this machine's kind.
fn architecture() -> &'static str {
    match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn keep(blobs: &Path, bytes: &[u8]) -> Result<Blob> {
    let digest = digest(bytes);
    let name = digest.trim_start_matches("sha256:");
    fs::write(blobs.join(name), bytes).with_context(|| format!("write blob {name}"))?;
    Ok(Blob {
        digest,
        size: bytes.len() as u64,
    })
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A tar that depends on the tree alone.
fn tar(tree: &Path, file: &Path) -> Result<()> {
    let status = Command::new("tar")
        .args(["--create", "--format=gnu", "--sort=name", "--mtime=@0"])
        .args(["--owner=0", "--group=0", "--numeric-owner", "--file"])
        .arg(file)
        .arg("--directory")
        .args([tree, Path::new(".")])
        .status()
        .context("run tar")?;
    ensure!(
        status.success(),
        "tar of {} failed ({status})",
        tree.display()
    );
    Ok(())
}

fn gzip(file: &Path, packed: &Path) -> Result<()> {
    let mut child = Command::new("gzip")
        .args(["--no-name", "--best", "--stdout"])
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .context("run gzip")?;
    if let Some(mut output) = child.stdout.take() {
        io::copy(&mut output, &mut File::create(packed)?)?;
    }
    let status = child.wait()?;
    ensure!(
        status.success(),
        "gzip of {} failed ({status})",
        file.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_gives_one_digest_whenever_and_in_whatever_order_it_was_written() {
        let digests = [["a", "b"], ["b", "a"]].map(|names| {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("root");
            fs::create_dir(&root).unwrap();
            for name in names {
                super::super::write(&root.join(name), name).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            let file = dir.path().join("image.tar");
            let told = write(dir.path(), &root, "localhost/x:1", &file).unwrap();
            (told, digest(&fs::read(file).unwrap()))
        });
        assert_eq!(digests[0], digests[1]);
    }

    #[test]
    fn every_blob_is_there_under_its_digest_and_the_manifest_leads_to_all() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        let told = write(
            dir.path(),
            &root,
            "localhost/x:1",
            &dir.path().join("image.tar"),
        )
        .unwrap();
        let layout = dir.path().join("layout");
        let blob = |digest: &str| {
            let bytes = fs::read(layout.join("blobs").join(digest.replace(':', "/"))).unwrap();
            assert_eq!(super::digest(&bytes), digest);
            bytes
        };
        let index: Value =
            serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
        assert_eq!(index["manifests"][0]["digest"], told);
        let manifest: Value = serde_json::from_slice(&blob(&told)).unwrap();
        blob(manifest["layers"][0]["digest"].as_str().unwrap());
        let config: Value =
            serde_json::from_slice(&blob(manifest["config"]["digest"].as_str().unwrap())).unwrap();
        let plain = digest(&fs::read(dir.path().join("layer.tar")).unwrap());
        assert_eq!(config["rootfs"]["diff_ids"][0], plain);
        assert_eq!(config["config"]["User"], "65532:65532");
    }
}
