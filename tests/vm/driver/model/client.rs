//! One orchestrator: makes the calls, repeats those whose outcome it does not know, as an orchestrator
//! must, and compares what it sees with the model.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tonic::{Code, Status};
use zvolt_lab::fleet::KUBELET;
use zvolt_lab::orchestrator::Csi;
use zvolt_proto::csi;
use zvolt_proto::csi::volume_capability::access_mode::Mode;
use zvolt_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use zvolt_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::world::{Answer, Form, On, Op, Origin, Volume, World};
use crate::fleet::lab;

/// How long a call is repeated before the test gives up.
const PATIENCE: Duration = Duration::from_secs(240);
const MIB: i64 = 1 << 20;

/// The sockets, and the model that they are compared with.
pub(super) struct Client<'a> {
    pub(super) controller: &'a Csi,
    pub(super) nodes: &'a HashMap<&'static str, Csi>,
    pub(super) world: World,
}

/// What a call gave that is of use later.
#[derive(Debug, Default)]
struct Got {
    bytes: Option<i64>,
    text: Option<String>,
    ids: Option<Vec<String>>,
}

impl Client<'_> {
    /// Makes one call, checks its answer, and moves the model on.
    pub(super) fn run(&mut self, op: &Op) {
        let expected = self.world.expect(op);
        let answer = self.until_known(op);
        match (expected, answer) {
            (Answer::Fine, Ok(got)) => self.check(op, &got),
            (Answer::Refused(code), Err(status)) if status.code() == code => return,
            (expected, Ok(got)) => panic!("{op:?}: {expected:?} is expected, and it gave {got:?}"),
            (expected, Err(status)) => panic!(
                "{op:?}: {expected:?} is expected: {:?}: {}",
                status.code(),
                status.message()
            ),
        }
        self.world.apply(op);
    }

    /// Repeats a call until its outcome is known: the process may have been killed under it.
    #[allow(
        clippy::disallowed_methods,
        reason = "an orchestrator waits between its tries too"
    )]
    fn until_known(&self, op: &Op) -> Result<Got, Status> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.call(op) {
                Err(status) if is_unknown(&status) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                outcome => return outcome,
            }
        }
    }

    /// The size and content that the model has.
    fn check(&self, op: &Op, got: &Got) {
        match op {
            Op::Create { mib, .. } | Op::Expand(_, mib) => {
                let at_least = match op {
                    Op::Expand(name, _) => self.world.volumes[name].mib.max(*mib),
                    _ => *mib,
                };
                let bytes = got.bytes.unwrap_or_default();
                assert!(bytes >= at_least * MIB, "{op:?}: {bytes} bytes");
            }
            Op::Read(name) => {
                let token = self.world.volumes[name].token.as_deref().unwrap_or("");
                assert_eq!(got.text.as_deref(), Some(token), "{op:?}");
            }
            Op::ListVolumes => {
                let expected: Vec<_> = self.world.volumes.keys().cloned().collect();
                assert_eq!(got.ids.as_ref(), Some(&expected), "{op:?}");
            }
            Op::ListSnapshots => {
                let mut expected: Vec<_> = self
                    .world
                    .snapshots
                    .iter()
                    .map(|(name, s)| s.id(name))
                    .collect();
                expected.sort();
                assert_eq!(got.ids.as_ref(), Some(&expected), "{op:?}");
            }
            Op::Snap { name, source } => {
                let mib = match self.world.snapshots.get(name) {
                    Some(snapshot) => snapshot.mib,
                    None => self.world.volumes[source].mib,
                };
                assert_eq!(got.bytes, Some(mib * MIB), "{op:?}");
            }
            Op::Get(name) => {
                let on = self.world.volumes[name].on.as_ref();
                let expected: Vec<_> = on.iter().map(|on| on.node.to_owned()).collect();
                assert_eq!(got.ids.as_ref(), Some(&expected), "{op:?}");
            }
            _ => {}
        }
    }

    fn call(&self, op: &Op) -> Result<Got, Status> {
        let controller = self.controller;
        match op {
            Op::Create {
                name,
                form,
                mib,
                origin,
            } => {
                let made = controller.create_raw(csi::CreateVolumeRequest {
                    name: name.clone(),
                    capacity_range: range(*mib),
                    volume_capabilities: vec![capability(*form, false)],
                    parameters: HashMap::from([("pool".into(), "tank".into())]),
                    volume_content_source: source(origin),
                    ..Default::default()
                })?;
                Ok(bytes(made.capacity_bytes))
            }
            Op::Delete(name) => controller.delete(name).map(nothing),
            Op::Attach {
                name,
                node,
                read_only,
            } => self.attach(name, node, *read_only).map(nothing),
            Op::Detach(name) => {
                let node = self.on(name).map_or("node0", |on| on.node);
                controller.controller_unpublish(name, node).map(nothing)
            }
            Op::Stage(name) => self.stage(name).map(nothing),
            Op::Unstage(name) => self
                .node_of(name)
                .unstage(name, &staging(name))
                .map(nothing),
            Op::Publish(name, target) => self.publish(name, *target).map(nothing),
            Op::Unpublish(name, t) => self
                .node_of(name)
                .unpublish(name, &target(name, *t))
                .map(nothing),
            Op::Write(name, token) => {
                self.write(name, token);
                Ok(Got::default())
            }
            Op::Read(name) => Ok(Got {
                text: Some(self.read(name)),
                ..Got::default()
            }),
            Op::Stats(name) => self.stats(name),
            Op::Expand(name, mib) => self.expand(name, *mib),
            Op::Modify(name, compression) => {
                let request = csi::ControllerModifyVolumeRequest {
                    volume_id: name.clone(),
                    mutable_parameters: HashMap::from([(
                        "compression".into(),
                        (*compression).into(),
                    )]),
                    ..Default::default()
                };
                let mut client = controller.controller();
                controller
                    .call(client.controller_modify_volume(controller.request(request)))
                    .map(nothing)
            }
            Op::Get(name) => self.get(name),
            Op::Snap { name, source } => {
                let request = csi::CreateSnapshotRequest {
                    source_volume_id: source.clone(),
                    name: name.clone(),
                    ..Default::default()
                };
                let mut client = controller.controller();
                let reply = controller.call(client.create_snapshot(controller.request(request)))?;
                let snapshot = reply.snapshot.expect("a reply has its snapshot");
                assert!(snapshot.ready_to_use, "{op:?}");
                Ok(bytes(snapshot.size_bytes))
            }
            Op::DeleteSnap(name) => {
                let snapshot_id = match self.world.snapshots.get(name) {
                    Some(snapshot) => snapshot.id(name),
                    None => format!("{name}@{name}"),
                };
                let request = csi::DeleteSnapshotRequest {
                    snapshot_id,
                    ..Default::default()
                };
                let mut client = controller.controller();
                controller
                    .call(client.delete_snapshot(controller.request(request)))
                    .map(nothing)
            }
            Op::ListVolumes => self.list_volumes(),
            Op::ListSnapshots => self.list_snapshots(),
        }
    }

    fn attach(
        &self,
        name: &str,
        node: &str,
        readonly: bool,
    ) -> Result<HashMap<String, String>, Status> {
        let form = self.volume(name).map_or(Form::Ext4, |v| v.form);
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: name.into(),
            node_id: node.into(),
            volume_capability: Some(capability(form, readonly)),
            readonly,
            ..Default::default()
        };
        let mut client = self.controller.controller();
        let reply = self
            .controller
            .call(client.controller_publish_volume(self.controller.request(request)))?;
        Ok(reply.publish_context)
    }

    fn stage(&self, name: &str) -> Result<(), Status> {
        let (on, volume) = (self.on(name).expect("attached"), &self.world.volumes[name]);
        let request = csi::NodeStageVolumeRequest {
            volume_id: name.into(),
            publish_context: self.attach(name, on.node, on.read_only)?,
            staging_target_path: staging(name),
            volume_capability: Some(capability(volume.form, on.read_only)),
            ..Default::default()
        };
        let node = self.node_of(name);
        let mut client = node.node();
        node.call(client.node_stage_volume(node.request(request)))
            .map(drop)
    }

    fn publish(&self, name: &str, number: u8) -> Result<(), Status> {
        let (on, volume) = (self.on(name).expect("attached"), &self.world.volumes[name]);
        let request = csi::NodePublishVolumeRequest {
            volume_id: name.into(),
            publish_context: self.attach(name, on.node, on.read_only)?,
            staging_target_path: staging(name),
            target_path: target(name, number),
            volume_capability: Some(capability(volume.form, on.read_only)),
            readonly: on.read_only,
            ..Default::default()
        };
        let node = self.node_of(name);
        let mut client = node.node();
        node.call(client.node_publish_volume(node.request(request)))
            .map(drop)
    }

    fn expand(&self, name: &str, mib: i64) -> Result<Got, Status> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: name.into(),
            capacity_range: range(mib),
            ..Default::default()
        };
        let mut client = self.controller.controller();
        let grown = self
            .controller
            .call(client.controller_expand_volume(self.controller.request(request)))?;
        let published = self.on(name).and_then(|on| on.targets.first().copied());
        let Some(number) = published.filter(|_| grown.node_expansion_required) else {
            return Ok(bytes(grown.capacity_bytes));
        };
        let request = csi::NodeExpandVolumeRequest {
            volume_id: name.into(),
            volume_path: target(name, number),
            staging_target_path: staging(name),
            capacity_range: range(mib),
            ..Default::default()
        };
        let node = self.node_of(name);
        let mut client = node.node();
        node.call(client.node_expand_volume(node.request(request)))?;
        Ok(bytes(grown.capacity_bytes))
    }

    fn stats(&self, name: &str) -> Result<Got, Status> {
        let number = self.on(name).and_then(|on| on.targets.first().copied());
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: name.into(),
            volume_path: target(name, number.expect("published")),
            staging_target_path: staging(name),
        };
        let node = self.node_of(name);
        let mut client = node.node();
        let reply = node.call(client.node_get_volume_stats(node.request(request)))?;
        assert!(reply.usage.iter().any(|usage| usage.total > 0), "{reply:?}");
        Ok(Got::default())
    }

    fn get(&self, name: &str) -> Result<Got, Status> {
        let request = csi::ControllerGetVolumeRequest {
            volume_id: name.into(),
        };
        let mut client = self.controller.controller();
        let reply = self
            .controller
            .call(client.controller_get_volume(self.controller.request(request)))?;
        Ok(Got {
            ids: Some(reply.status.unwrap_or_default().published_node_ids),
            ..Got::default()
        })
    }

    /// All of this orchestrator's volumes, page by page.
    fn list_volumes(&self) -> Result<Got, Status> {
        let mut ids = Vec::new();
        let mut starting_token = String::new();
        loop {
            let request = csi::ListVolumesRequest {
                max_entries: 3,
                starting_token,
            };
            let mut client = self.controller.controller();
            let page = self
                .controller
                .call(client.list_volumes(self.controller.request(request)))?;
            ids.extend(
                page.entries
                    .into_iter()
                    .filter_map(|e| e.volume)
                    .map(|v| v.volume_id),
            );
            starting_token = page.next_token;
            if starting_token.is_empty() {
                return Ok(self.own(ids));
            }
        }
    }

    fn list_snapshots(&self) -> Result<Got, Status> {
        let mut ids = Vec::new();
        let mut starting_token = String::new();
        loop {
            let request = csi::ListSnapshotsRequest {
                max_entries: 3,
                starting_token,
                ..Default::default()
            };
            let mut client = self.controller.controller();
            let page = self
                .controller
                .call(client.list_snapshots(self.controller.request(request)))?;
            let snapshots = page.entries.into_iter().filter_map(|e| e.snapshot);
            ids.extend(snapshots.map(|s| s.snapshot_id));
            starting_token = page.next_token;
            if starting_token.is_empty() {
                return Ok(self.own(ids));
            }
        }
    }

    /// Those that this orchestrator has made: others are at work too.
    fn own(&self, mut ids: Vec<String>) -> Got {
        let mine = format!("{}-", self.world.prefix);
        ids.retain(|id| id.starts_with(&mine));
        ids.sort();
        Got {
            ids: Some(ids),
            ..Got::default()
        }
    }

    fn write(&self, name: &str, token: &str) {
        let path = self.any_target(name);
        let command = match self.world.volumes[name].form {
            Form::Ext4 => format!("echo {token} > {path}/token && sync -f {path}/token"),
            Form::Raw => format!(
                "echo {token} | dd of={path} bs=4k count=1 conv=sync,fsync,notrunc oflag=direct iflag=fullblock status=none"
            ),
        };
        let node = self.on(name).map_or("node0", |on| on.node);
        lab()
            .vm(node)
            .ok(&command)
            .expect("a published volume is written");
    }

    fn read(&self, name: &str) -> String {
        let path = self.any_target(name);
        let command = match self.world.volumes[name].form {
            Form::Ext4 => format!("cat {path}/token 2>/dev/null || true"),
            Form::Raw => {
                format!("dd if={path} bs=4k count=1 iflag=direct status=none | tr -d '\\0'")
            }
        };
        let node = self.on(name).map_or("node0", |on| on.node);
        let out = lab()
            .vm(node)
            .ok(&command)
            .expect("a published volume is read");
        out.trim().to_owned()
    }

    fn any_target(&self, name: &str) -> String {
        let number = self.on(name).and_then(|on| on.targets.first().copied());
        target(name, number.expect("published"))
    }

    fn volume(&self, name: &str) -> Option<&Volume> {
        self.world.volumes.get(name)
    }

    fn on(&self, name: &str) -> Option<&On> {
        self.volume(name)?.on.as_ref()
    }

    fn node_of(&self, name: &str) -> &Csi {
        &self.nodes[self.on(name).expect("attached").node]
    }
}

/// Whether the call may have been done or not: the process died, or another call of the volume runs.
fn is_unknown(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Aborted
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
    )
}

fn source(origin: &Origin) -> Option<csi::VolumeContentSource> {
    let source = match origin {
        Origin::Nothing => return None,
        Origin::Snapshot { id, .. } => Type::Snapshot(SnapshotSource {
            snapshot_id: id.clone(),
        }),
        Origin::Volume(name) => Type::Volume(VolumeSource {
            volume_id: name.clone(),
        }),
    };
    Some(csi::VolumeContentSource {
        r#type: Some(source),
    })
}

fn staging(name: &str) -> String {
    format!("{KUBELET}/plugins/{name}")
}

fn target(name: &str, number: u8) -> String {
    format!("{KUBELET}/pods/{name}-{number}")
}

fn range(mib: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes: mib * MIB,
        limit_bytes: 0,
    })
}

fn bytes(bytes: i64) -> Got {
    Got {
        bytes: Some(bytes),
        ..Got::default()
    }
}

fn nothing<T>(_: T) -> Got {
    Got::default()
}

fn capability(form: Form, read_only: bool) -> csi::VolumeCapability {
    let mode = match read_only {
        true => Mode::SingleNodeReaderOnly,
        false => Mode::SingleNodeMultiWriter,
    };
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(match form {
            Form::Ext4 => AccessType::Mount(MountVolume {
                fs_type: "ext4".into(),
                ..MountVolume::default()
            }),
            Form::Raw => AccessType::Block(BlockVolume {}),
        }),
    }
}
