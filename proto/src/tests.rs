//! Pins what is on the wire, and that secrets stay out of Debug.

use std::collections::BTreeSet;

use prost::Message;
use prost_types::field_descriptor_proto::Label;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
};

use crate::csi;

const KEY: &str = "dhchap-key-name";
const VALUE: &str = "DHHC-1:00:hunter2";

/// Shows each message with a secret in it in every way that Debug has.
macro_rules! shown_with_secrets {
    ($($message:ident)*) => {
        [$({
            let message = csi::$message {
                secrets: [(KEY.to_owned(), VALUE.to_owned())].into(),
                ..Default::default()
            };
            let wrapped = tonic::Request::new(message.clone());
            (stringify!($message), format!("{message:?} {message:#?} {wrapped:?}"))
        }),*]
    };
}

#[test]
#[allow(clippy::needless_update, reason = "one of them has no other field")]
fn rule_11_secrets_never_reach_debug_output() {
    let shown = shown_with_secrets! {
        ControllerExpandVolumeRequest ControllerGetVolumeHealthRequest
        ControllerListVolumeHealthRequest ControllerModifyVolumeRequest
        ControllerPublishVolumeRequest ControllerUnpublishVolumeRequest
        CreateSnapshotRequest CreateVolumeGroupSnapshotRequest CreateVolumeRequest
        DeleteSnapshotRequest DeleteVolumeGroupSnapshotRequest DeleteVolumeRequest
        GetMetadataAllocatedRequest GetMetadataDeltaRequest GetSnapshotRequest
        GetVolumeGroupSnapshotRequest ListSnapshotsRequest NodeExpandVolumeRequest
        NodeGetStorageHealthRequest NodePublishVolumeRequest NodeStageVolumeRequest
        ValidateVolumeCapabilitiesRequest
    };
    for (name, text) in &shown {
        assert!(!text.contains(KEY), "{name} shows a secret's key: {text}");
        assert!(!text.contains(VALUE), "{name} shows a secret: {text}");
        assert!(text.contains("secrets: <redacted>"), "{name}: {text}");
    }
    // None is left out: the list above, the marks in the proto and the names of fields agree.
    let tried: BTreeSet<_> = shown
        .iter()
        .map(|(name, _)| format!("{name}.secrets"))
        .collect();
    let marked: BTreeSet<_> = csi::SECRETS.iter().map(|s| (*s).to_owned()).collect();
    let named: BTreeSet<_> = lines(&file("csi.v1"))
        .into_iter()
        .filter_map(|line| line.split_once(" =").map(|(name, _)| name.to_owned()))
        .filter(|name| name.to_lowercase().contains("secret"))
        .collect();
    assert_eq!(tried, marked);
    assert_eq!(tried, named);
}

#[test]
fn debug_shows_what_is_no_secret() {
    let request = csi::NodeStageVolumeRequest {
        volume_id: "pvc-1".into(),
        staging_target_path: "/var/lib/kubelet/stage".into(),
        ..Default::default()
    };
    let text = format!("{request:?}");
    assert!(text.contains("pvc-1") && text.contains("/var/lib/kubelet/stage"));
}

#[test]
fn every_service_and_call_of_csi_1_13_is_there() {
    let csi = file("csi.v1");
    let mut calls: Vec<_> = csi
        .service
        .iter()
        .map(|service| (service.name(), service.method.len()))
        .collect();
    calls.sort_unstable();
    assert_eq!(
        calls,
        [
            ("Controller", 17),
            ("GroupController", 4),
            ("Identity", 3),
            ("Node", 10),
            ("SnapshotMetadata", 2),
        ]
    );
}

#[test]
fn numbers_and_types_are_the_published_ones() {
    let lines = lines(&file("csi.v1"));
    for known in [
        "CreateVolumeRequest.capacity_range = 2 message CapacityRange",
        "NodeStageVolumeRequest.publish_context = 2 map<string, string>",
        "NodePublishVolumeRequest.readonly = 6 bool",
        "ControllerPublishVolumeResponse.publish_context = 1 map<string, string>",
        "NodeExpandVolumeRequest.secrets = 6 map<string, string>",
        "Volume.volume_id = 2 string",
        "NodeGetInfoResponse.max_volumes_per_node = 2 int64",
        "VolumeCapability.AccessMode.Mode.SINGLE_NODE_SINGLE_WRITER = 6",
        "ControllerServiceCapability.RPC.Type.PUBLISH_UNPUBLISH_VOLUME = 2",
        "NodeServiceCapability.RPC.Type.STAGE_UNSTAGE_VOLUME = 1",
        "SnapshotMetadata.GetMetadataDelta(GetMetadataDeltaRequest) stream GetMetadataDeltaResponse",
    ] {
        assert!(lines.contains(known), "missing: {known}");
    }
}

/// The file was compared with the published one, descriptor by descriptor, and found equal but for
/// order and comments. Whoever changes it on purpose compares again, then writes the new number here.
#[test]
fn nothing_on_the_wire_has_changed_since_it_was_compared() {
    let lines = lines(&file("csi.v1"));
    let text = lines.iter().fold(String::new(), |all, l| all + l + "\n");
    assert_eq!(
        (lines.len(), fnv1a(text.as_bytes())),
        (418, 16_560_153_081_827_141_915),
        "the wire is now:\n{text}"
    );
}

#[test]
fn a_message_has_the_bytes_that_its_peers_send() {
    // Field 1, length-delimited, "v"; field 4, varint, 1.
    let bytes = [0x0a, 1, b'v', 0x20, 1];
    let request = csi::ControllerPublishVolumeRequest::decode(&bytes[..]).unwrap();
    assert_eq!((request.volume_id.as_str(), request.readonly), ("v", true));
    assert_eq!(request.encode_to_vec(), bytes);
}

fn file(package: &str) -> FileDescriptorProto {
    let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
    let set = FileDescriptorSet::decode(&bytes[..]).unwrap();
    set.file
        .into_iter()
        .find(|file| file.package() == package)
        .unwrap()
}

/// Everything that is on the wire, one fact a line, whatever the order in the file.
fn lines(file: &FileDescriptorProto) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for service in &file.service {
        for method in &service.method {
            let stream = |yes| if yes { "stream " } else { "" };
            lines.insert(format!(
                "{}.{}({}{}) {}{}",
                service.name(),
                method.name(),
                stream(method.client_streaming()),
                local(method.input_type()),
                stream(method.server_streaming()),
                local(method.output_type()),
            ));
        }
    }
    for one in &file.enum_type {
        enum_lines("", one, &mut lines);
    }
    for one in &file.message_type {
        message_lines("", one, &mut lines);
    }
    lines
}

fn message_lines(above: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{above}{}", message.name());
    lines.insert(name.clone());
    for field in &message.field {
        let entry = message.nested_type.iter().find(|nested| {
            is_map_entry(nested) && field.type_name().ends_with(&format!(".{}", nested.name()))
        });
        let kind = match (entry, field.label()) {
            (Some(entry), _) => {
                let kinds: Vec<_> = entry.field.iter().map(kind).collect();
                format!("map<{}>", kinds.join(", "))
            }
            (None, Label::Repeated) => format!("repeated {}", kind(field)),
            (None, _) => kind(field),
        };
        let choice = field.oneof_index.map_or("", |_| " oneof");
        lines.insert(format!(
            "{name}.{} = {} {kind}{choice}",
            field.name(),
            field.number()
        ));
    }
    for range in &message.reserved_range {
        lines.insert(format!(
            "{name} reserved {}..{}",
            range.start(),
            range.end()
        ));
    }
    let below = format!("{name}.");
    for one in &message.enum_type {
        enum_lines(&below, one, lines);
    }
    for one in message.nested_type.iter().filter(|m| !is_map_entry(m)) {
        message_lines(&below, one, lines);
    }
}

/// Such a message stands for the pairs of a map, and is in no source.
fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

fn kind(field: &FieldDescriptorProto) -> String {
    let kind = field.r#type().as_str_name().trim_start_matches("TYPE_");
    match field.type_name() {
        "" => kind.to_lowercase(),
        of => format!("{} {}", kind.to_lowercase(), local(of)),
    }
}

fn enum_lines(above: &str, one: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &one.value {
        lines.insert(format!(
            "{above}{}.{} = {}",
            one.name(),
            value.name(),
            value.number()
        ));
    }
    for range in &one.reserved_range {
        lines.insert(format!(
            "{above}{} reserved {}..={}",
            one.name(),
            range.start(),
            range.end()
        ));
    }
}

fn local(name: &str) -> &str {
    name.trim_start_matches(".csi.v1.")
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
