//! What arrives by RPC is data: each request is checked here, before anything is done with it (rule 12).

use std::path::{Component, Path, PathBuf};

use zvolt_kernel::mount::Access;
use zvolt_proto::csi;

use super::status::{Kind, Refusal};
use crate::model::access::ReadOnly;
use crate::model::capability::{self, Capability, Form};
use crate::model::names::{CSI_STRING_MAX, is_handle, is_node_id};
use crate::model::publish::{Content, Target};
use crate::model::shown;
use crate::model::volume::VolumeMode;
use crate::node::{ExpandRequest, PublishRequest, StageRequest};

/// Longest path that the kernel takes, in bytes (PATH_MAX with its NUL).
const PATH_MAX: usize = 4096;

/// A volume ID, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VolumeId {
    /// It may be one of ours.
    Handle(String),
    /// It is a CSI string, but no handle: no volume of ours can have it.
    Foreign(String),
}

/// A volume ID of the controller's calls.
pub(super) fn volume_id(id: &str) -> Result<VolumeId, Refusal> {
    self::id("volume_id", id)
}

/// The same of another field.
pub(super) fn id(field: &str, id: &str) -> Result<VolumeId, Refusal> {
    string(field, id)?;
    if id.contains('/') || id == "." || id == ".." {
        return Err(Refusal::invalid(format!(
            "{field} is {}: it is no path",
            shown(id)
        )));
    }
    Ok(if is_handle(id) {
        VolumeId::Handle(id.to_owned())
    } else {
        VolumeId::Foreign(id.to_owned())
    })
}

/// A volume ID of the node's calls, which only come for volumes of ours.
pub(super) fn handle(id: &str) -> Result<String, Refusal> {
    match volume_id(id)? {
        VolumeId::Handle(handle) => Ok(handle),
        VolumeId::Foreign(id) => Err(Refusal::invalid(format!(
            "volume_id is {}, which CreateVolume of this driver never gives",
            shown(&id)
        ))),
    }
}

/// A volume ID of the node's calls that only ask for a volume: one that cannot be ours is not there.
pub(super) fn known_handle(id: &str) -> Result<String, Refusal> {
    match volume_id(id)? {
        VolumeId::Handle(handle) => Ok(handle),
        VolumeId::Foreign(id) => Err(Refusal::new(
            Kind::NotFound,
            format!("no volume {} is on this node", shown(&id)),
        )),
    }
}

/// The name in CreateVolume.
pub(super) fn name(name: &str) -> Result<(), Refusal> {
    string("name", name)
}

/// A node ID; see NodeGetInfo.
pub(super) fn node_id(id: &str) -> Result<(), Refusal> {
    string("node_id", id)?;
    if is_node_id(id) {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "node_id is {}, which NodeGetInfo of this driver never gives: 1 to 63 letters, digits, '.', '-' and '_'",
        shown(id)
    )))
}

/// A string of CSI: there, at most 128 bytes, no control characters.
pub(super) fn string(field: &str, text: &str) -> Result<(), Refusal> {
    let problem = match text {
        "" => "is missing".to_owned(),
        text if text.len() > CSI_STRING_MAX => {
            format!(
                "is {}: at most {CSI_STRING_MAX} bytes are possible",
                shown(text)
            )
        }
        text if text.chars().any(char::is_control) => {
            format!("is {}: control characters are not possible", shown(text))
        }
        _ => return Ok(()),
    };
    Err(Refusal::invalid(format!("{field} {problem}")))
}

/// The capability of a call that has one.
pub(super) fn capability(given: Option<&csi::VolumeCapability>) -> Result<Capability, Refusal> {
    use csi::volume_capability::AccessType;
    use csi::volume_capability::access_mode::Mode;

    let given = given.ok_or_else(|| Refusal::invalid("volume_capability is missing"))?;
    let number = given.access_mode.as_ref().map_or(0, |mode| mode.mode);
    let mode = Mode::try_from(number)
        .map_or_else(|_| number.to_string(), |mode| mode.as_str_name().to_owned());
    let form = match &given.access_type {
        Some(AccessType::Mount(mount)) => Form::Mount {
            fs_type: &mount.fs_type,
            flags: &mount.mount_flags,
            group: &mount.volume_mount_group,
        },
        Some(AccessType::Block(_)) => Form::Block,
        None => Form::Unknown,
    };
    Ok(capability::check(&mode, form)?)
}

/// The capabilities of a volume: at least one, and all of one kind and one filesystem.
pub(super) fn capabilities(given: &[csi::VolumeCapability]) -> Result<Capability, Refusal> {
    let mut all = given.iter().map(|one| capability(Some(one)));
    let mut first = all.next().ok_or_else(|| {
        Refusal::invalid("volume_capabilities is missing: name what the volume is for")
    })??;
    for other in all {
        let other = other?;
        if first.volume_mode != other.volume_mode {
            return Err(Refusal::invalid(
                "volume_capabilities ask for mount and block: one volume is one of them",
            ));
        }
        match (first.fs_type, other.fs_type) {
            (Some(one), Some(other)) if one != other => {
                return Err(Refusal::invalid(
                    "volume_capabilities ask for ext4 and xfs: one volume has one filesystem",
                ));
            }
            (one, other) => first.fs_type = one.or(other),
        }
    }
    Ok(first)
}

/// NodeStageVolume.
pub(super) fn stage(
    request: &csi::NodeStageVolumeRequest,
    kubelet_dir: &Path,
) -> Result<StageRequest, Refusal> {
    let volume = handle(&request.volume_id)?;
    let staging_path = path(
        "staging_target_path",
        &request.staging_target_path,
        kubelet_dir,
    )?;
    let capability = capability(request.volume_capability.as_ref())?;
    let target = Target::from_context(&request.publish_context)?;
    agree(&capability, &target)?;
    let access = access(&capability, &target, false);
    let mut mount_flags = capability.mount_flags;
    mount_flags.retain(|flag| flag != "ro" && flag != "rw");
    Ok(StageRequest {
        volume,
        target,
        staging_path,
        access,
        mount_flags,
    })
}

/// NodePublishVolume.
pub(super) fn publish(
    request: &csi::NodePublishVolumeRequest,
    kubelet_dir: &Path,
) -> Result<PublishRequest, Refusal> {
    let volume = handle(&request.volume_id)?;
    let target_path = path("target_path", &request.target_path, kubelet_dir)?;
    let staging_path = path(
        "staging_target_path",
        &request.staging_target_path,
        kubelet_dir,
    )?;
    let capability = capability(request.volume_capability.as_ref())?;
    let target = Target::from_context(&request.publish_context)?;
    agree(&capability, &target)?;
    Ok(PublishRequest {
        volume,
        staging_path,
        target_path,
        mode: capability.mode,
        access: access(&capability, &target, request.readonly),
        target,
    })
}

/// What is asked for is what ControllerPublishVolume has opened.
fn agree(capability: &Capability, target: &Target) -> Result<(), Refusal> {
    match (capability.volume_mode, target.content) {
        (VolumeMode::Filesystem, Content::Filesystem { .. })
        | (VolumeMode::Block, Content::Raw) => Ok(()),
        (VolumeMode::Filesystem, Content::Raw) => Err(Refusal::invalid(
            "volume_capability asks for a mount, but publish_context \"volumeMode\" says that the volume is a raw \
             device: ask for block",
        )),
        (VolumeMode::Block, Content::Filesystem { .. }) => Err(Refusal::invalid(
            "volume_capability asks for block, but publish_context \"volumeMode\" says that the volume has a \
             filesystem: ask for a mount",
        )),
    }
}

/// Rule 5: whoever says that nothing is to be written is right.
fn access(capability: &Capability, target: &Target, readonly: bool) -> Access {
    let by_flag = capability.mount_flags.iter().any(|flag| flag == "ro");
    let read_only = ReadOnly::of(capability.mode, readonly || by_flag);
    match read_only.is_set() || target.read_only.is_set() {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    }
}

/// NodeExpandVolume.
pub(super) fn expand(request: &csi::NodeExpandVolumeRequest) -> Result<ExpandRequest, Refusal> {
    let volume = known_handle(&request.volume_id)?;
    let path = any_path("volume_path", &request.volume_path)?;
    if request.volume_capability.is_some() {
        capability(request.volume_capability.as_ref())?;
    }
    let bytes = |field: &str, value: i64| {
        u64::try_from(value).map_err(|_| {
            Refusal::invalid(format!(
                "capacity_range.{field} is {value}: bytes are at least 0"
            ))
        })
    };
    let range = request.capacity_range.unwrap_or_default();
    let required_bytes = bytes("required_bytes", range.required_bytes)?;
    let limit = bytes("limit_bytes", range.limit_bytes)?;
    if limit != 0 && limit < required_bytes {
        return Err(Refusal::invalid(format!(
            "capacity_range has limit_bytes={limit} below required_bytes={required_bytes}"
        )));
    }
    Ok(ExpandRequest {
        volume,
        path,
        staging_path: optional_path("staging_target_path", &request.staging_target_path)?,
        required_bytes,
        limit_bytes: Some(limit).filter(|limit| *limit != 0),
    })
}

/// A path that something is looked for at; one where nothing of ours can be has nothing there.
pub(super) fn any_path(field: &str, text: &str) -> Result<PathBuf, Refusal> {
    let problem = match text {
        "" => return Err(Refusal::invalid(format!("{field} is missing"))),
        text if text.len() >= PATH_MAX => "at most 4095 bytes are possible",
        text if text.chars().any(char::is_control) => "control characters are not possible",
        text => return Ok(PathBuf::from(text)),
    };
    Err(Refusal::invalid(format!(
        "{field} is {}: {problem}",
        shown(text)
    )))
}

/// The same where it may be left out.
pub(super) fn optional_path(field: &str, text: &str) -> Result<Option<PathBuf>, Refusal> {
    match text {
        "" => Ok(None),
        text => any_path(field, text).map(Some),
    }
}

/// A path of an orchestrator. That no link leads out of the directory is seen when it is opened.
pub(super) fn path(field: &str, text: &str, kubelet_dir: &Path) -> Result<PathBuf, Refusal> {
    let refuse = |why: &str| {
        Err(Refusal::invalid(format!(
            "{field} is {}: {why}",
            shown(text)
        )))
    };
    let path = any_path(field, text)?;
    let below = match path.strip_prefix(kubelet_dir) {
        Ok(below) if path.is_absolute() => below,
        _ => return refuse(&format!("it must lie below {}", kubelet_dir.display())),
    };
    if below == Path::new("")
        || !below
            .components()
            .all(|c| matches!(c, Component::Normal(_)))
    {
        return refuse(&format!(
            "it must name something below {}, without '..'",
            kubelet_dir.display()
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::status::Kind;

    fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, word: &str) {
        let refusal = outcome.expect_err(word);
        assert_eq!(refusal.kind, Kind::InvalidArgument);
        assert!(
            refusal.message.contains(word),
            "{word} is missing in {}",
            refusal.message
        );
        assert!(
            !refusal.message.contains(char::is_control),
            "{:?}",
            refusal.message
        );
        assert!(refusal.message.len() < 400, "{}", refusal.message);
    }

    const HOSTILE: [&str; 9] = [
        "",
        "a/b",
        "/",
        "..",
        ".",
        "../../etc",
        "a\0b",
        "a\nb",
        "a\u{85}b",
    ];

    #[test]
    fn hostile_volume_ids_are_refused() {
        for id in HOSTILE {
            refused(volume_id(id), "volume_id");
            refused(handle(id), "volume_id");
        }
        refused(volume_id(&"x".repeat(129)), "volume_id");
        refused(volume_id(&"é".repeat(70)), "volume_id");
    }

    #[test]
    fn a_volume_id_of_somebody_else_is_just_that() {
        assert_eq!(volume_id("pvc-1"), Ok(VolumeId::Handle("pvc-1".into())));
        for id in ["Vol_1", "a b", &"x".repeat(64), "tank:vol@1"] {
            assert_eq!(volume_id(id), Ok(VolumeId::Foreign(id.into())));
            refused(handle(id), "volume_id");
        }
    }

    #[test]
    fn hostile_names_and_node_ids_are_refused() {
        for bad in ["", "a\0b", "a\nb", &"x".repeat(129)] {
            refused(name(bad), "name");
        }
        assert_eq!(name("Any Thing/.. at all"), Ok(()));
        for bad in HOSTILE.into_iter().chain(["a,b", "-a", "a b"]) {
            refused(node_id(bad), "node_id");
        }
        assert_eq!(node_id("node0.example.org"), Ok(()));
    }

    #[test]
    fn rule_12_paths_lie_below_the_kubelet_directory() {
        let base = Path::new("/var/lib/kubelet");
        for bad in [
            "",
            "relative",
            "/",
            "/etc/passwd",
            "/var/lib/kubelet",
            "/var/lib/kubelet/",
            "/var/lib/kubelet2/x",
            "/var/lib/kubelet/..",
            "/var/lib/kubelet/../../../srv",
            "/var/lib/kubelet/pods/../../x",
            "/var/lib/kubelet/a\0b",
            "/var/lib/kubelet/a\nb",
            &format!("/var/lib/kubelet/{}", "x".repeat(4096)),
        ] {
            refused(path("target_path", bad, base), "target_path");
        }
        let fine = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pvc-1/mount";
        assert_eq!(path("target_path", fine, base), Ok(PathBuf::from(fine)));
    }

    fn single_writer(fs_type: &str) -> csi::VolumeCapability {
        use csi::volume_capability::access_mode::Mode;
        use csi::volume_capability::{AccessMode, AccessType, MountVolume};
        csi::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: fs_type.into(),
                ..MountVolume::default()
            })),
        }
    }

    #[test]
    fn capabilities_are_there_and_agree() {
        refused(capability(None), "volume_capability");
        refused(capabilities(&[]), "volume_capabilities");
        refused(
            capabilities(&[single_writer("ext4"), single_writer("xfs")]),
            "one filesystem",
        );
        let mixed = capabilities(&[single_writer(""), single_writer("xfs")]).unwrap();
        assert_eq!(mixed.fs_type.map(|f| f.as_str()), Some("xfs"));
        let mut unknown = single_writer("");
        unknown.access_mode.as_mut().unwrap().mode = 77;
        refused(capability(Some(&unknown)), "77");
        refused(
            capability(Some(&csi::VolumeCapability::default())),
            "access_mode",
        );
    }

    #[test]
    fn node_calls_name_the_field_that_is_wrong() {
        let base = Path::new("/k");
        let mut request = csi::NodeStageVolumeRequest {
            volume_id: "pvc-1".into(),
            staging_target_path: "/k/staging".into(),
            volume_capability: Some(single_writer("ext4")),
            ..Default::default()
        };
        refused(stage(&request, base), "publish_context");
        request.volume_capability = None;
        refused(stage(&request, base), "volume_capability");
        request.staging_target_path = "/etc".into();
        refused(stage(&request, base), "staging_target_path");
        let mut request = csi::NodePublishVolumeRequest {
            volume_id: "pvc-1".into(),
            staging_target_path: "/k/staging".into(),
            target_path: "/k/target".into(),
            volume_capability: Some(single_writer("ext4")),
            readonly: true,
            ..Default::default()
        };
        refused(publish(&request, base), "publish_context");
        request.staging_target_path.clear();
        refused(publish(&request, base), "staging_target_path");
        request.target_path = "/k/../etc".into();
        refused(publish(&request, base), "target_path");
    }
}
