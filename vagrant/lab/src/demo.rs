//! `cargo lab demo`: a block volume's whole life on real kernels, with its timeline.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use zvolt_proto::trace::Operation;

use crate::Lab;
use crate::fleet::{Member, STORAGE, assert_clean, scrub, staging_path, target_path};
use crate::orchestrator::{Csi, Wanted};

const VOLUME: &str = "pvc-demo";
const FS_TYPE: &str = "ext4";

/// What the demo saw.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Every step of every call, in order.
    pub steps: Vec<Row>,
    /// Every call as the orchestrator sees it: name, host, milliseconds.
    pub calls: Vec<Row>,
    /// SHA-256 of what was written through node0 and read through node1.
    pub checksum: String,
    /// What the kernel said to a write of node0 after it was fenced.
    pub fenced: String,
}

/// A line of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The call that it belongs to.
    pub call: String,
    /// Step name, or the call's own.
    pub name: String,
    /// Where it ran.
    pub host: String,
    /// Milliseconds.
    pub ms: f64,
}

struct Demo<'a> {
    lab: &'a Lab,
    storage: Member<'a>,
    nodes: Vec<(Member<'a>, Csi)>,
    controller: Csi,
    calls: Vec<Row>,
}

/// Runs the whole life and gives what was seen. Leaves the machines clean and the drivers stopped.
pub fn run(lab: &Lab) -> Result<Report> {
    for name in ["node0", "node1", STORAGE] {
        scrub(lab.vm(name))?;
    }
    let storage = Member::storage(lab);
    storage.start()?;
    let controller = storage.csi()?;
    let mut nodes = Vec::new();
    for name in ["node0", "node1"] {
        let member = Member::node(lab, name);
        member.start()?;
        let csi = member.csi()?;
        nodes.push((member, csi));
    }
    let mut demo = Demo {
        lab,
        storage,
        nodes,
        controller,
        calls: Vec::new(),
    };
    let outcome = demo.life();
    let steps = demo.steps();
    for (member, _) in &demo.nodes {
        member.stop()?;
    }
    demo.storage.stop()?;
    let (checksum, fenced) = outcome?;
    assert_clean(lab, &[STORAGE, "node0", "node1"])?;
    Ok(Report {
        steps: steps?,
        calls: demo.calls,
        checksum,
        fenced,
    })
}

impl Demo<'_> {
    fn life(&mut self) -> Result<(String, String)> {
        let controller = self.controller.clone();
        let wanted = Wanted::named(VOLUME).fs(FS_TYPE);
        let volume = self.call("CreateVolume", STORAGE, || controller.create(&wanted))?;
        let id = volume.volume_id;
        let (staging, target) = (staging_path(&id), target_path(&id, "demo"));

        self.bring_to(0, &id, &staging, &target)?;
        let written = self.lab.vm("node0").ok(&format!(
            "dd if=/dev/urandom of={target}/data bs=1M count=16 conv=fsync status=none && sha256sum < {target}/data"
        ))?;

        // The orchestrator gives up on node0 while the volume is still mounted there: it is fenced.
        self.call("ControllerUnpublishVolume", STORAGE, || {
            controller.controller_unpublish(&id, "node0")
        })?;
        let late = self.lab.vm("node0").run(&format!(
            "timeout 30 dd if=/dev/zero of={target}/late bs=4k count=1 oflag=direct status=none"
        ))?;
        ensure!(
            late.status != 0,
            "node0 could still write after it was fenced"
        );
        let fenced = late
            .stderr
            .lines()
            .last()
            .unwrap_or("no answer")
            .trim()
            .to_owned();

        self.bring_to(1, &id, &staging, &target)?;
        let read = self
            .lab
            .vm("node1")
            .ok(&format!("sha256sum < {target}/data"))?;
        ensure!(
            read == written,
            "node1 read {} where node0 wrote {}",
            read.trim(),
            written.trim()
        );
        ensure!(
            self.lab
                .vm("node1")
                .run(&format!("test -e {target}/late"))?
                .status
                != 0,
            "a write of node0 after the fence reached the volume"
        );

        self.let_go(1, &id, &staging, &target)?;
        self.call("ControllerUnpublishVolume", STORAGE, || {
            controller.controller_unpublish(&id, "node1")
        })?;
        self.let_go(0, &id, &staging, &target)?;
        self.call("DeleteVolume", STORAGE, || controller.delete(&id))?;
        Ok((
            written
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned(),
            fenced,
        ))
    }

    fn bring_to(&mut self, node: usize, id: &str, staging: &str, target: &str) -> Result<()> {
        let controller = self.controller.clone();
        let (host, csi) = self.node(node);
        self.lab
            .vm(&host)
            .ok(&format!("mkdir -p {staging} $(dirname {target})"))?;
        let context = self.call("ControllerPublishVolume", STORAGE, || {
            controller.controller_publish(id, &host, FS_TYPE)
        })?;
        self.call("NodeStageVolume", &host, || {
            csi.stage(id, &context, staging, FS_TYPE)
        })?;
        self.call("NodePublishVolume", &host, || {
            csi.publish(id, &context, staging, target, FS_TYPE, false)
        })
    }

    fn let_go(&mut self, node: usize, id: &str, staging: &str, target: &str) -> Result<()> {
        let (host, csi) = self.node(node);
        self.call("NodeUnpublishVolume", &host, || csi.unpublish(id, target))?;
        self.call("NodeUnstageVolume", &host, || csi.unstage(id, staging))
    }

    fn node(&self, index: usize) -> (String, Csi) {
        let (member, csi) = &self.nodes[index];
        (member.vm().name().to_owned(), csi.clone())
    }

    fn call<T>(
        &mut self,
        name: &str,
        host: &str,
        act: impl FnOnce() -> Result<T, tonic::Status>,
    ) -> Result<T> {
        let begin = Instant::now();
        let outcome = act();
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        self.calls.push(Row {
            call: name.to_owned(),
            name: name.to_owned(),
            host: host.to_owned(),
            ms,
        });
        outcome
            .map_err(|status| anyhow::anyhow!("{:?}: {}", status.code(), status.message()))
            .with_context(|| format!("{name} on {host}"))
    }

    /// The steps that the drivers themselves have timed, in the order in which they began.
    fn steps(&self) -> Result<Vec<Row>> {
        let mut operations: Vec<(String, Operation)> = Vec::new();
        let sockets = self
            .nodes
            .iter()
            .map(|(member, csi)| (member.vm().name(), csi))
            .chain([(STORAGE, &self.controller)]);
        for (host, csi) in sockets {
            let of_host = csi.operations(VOLUME).map_err(|status| {
                anyhow::anyhow!("no timeline from {host}: {}", status.message())
            })?;
            operations.extend(of_host.into_iter().map(|o| (host.to_owned(), o)));
        }
        if operations.is_empty() {
            bail!("the drivers have no timeline of {VOLUME}");
        }
        operations.sort_by_key(|(_, o)| o.started_unix_nanos);
        let mut rows = Vec::new();
        for (host, operation) in operations {
            for step in operation.steps {
                rows.push(Row {
                    call: operation.name.clone(),
                    name: step.name,
                    host: host.clone(),
                    ms: step.duration_nanos as f64 / 1e6,
                });
            }
        }
        Ok(rows)
    }
}

impl Report {
    /// As tables for a terminal, at most 80 columns wide.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{:<26} {:<24} {:<9} {:>9}",
            "OPERATION", "STEP", "HOST", "ms"
        );
        let mut last = None;
        for row in &self.steps {
            let here = Some((&row.call, &row.host));
            let call = if last == here { "" } else { row.call.as_str() };
            last = here;
            let _ = writeln!(
                out,
                "{call:<26} {:<24} {:<9} {:>9.2}",
                row.name, row.host, row.ms
            );
        }
        let _ = writeln!(
            out,
            "\n{:<51} {:<9} {:>9}",
            "CALL, AS THE ORCHESTRATOR SEES IT", "HOST", "ms"
        );
        for row in &self.calls {
            let _ = writeln!(out, "{:<51} {:<9} {:>9.2}", row.name, row.host, row.ms);
        }
        let _ = writeln!(
            out,
            "\nwritten through node0, read through node1: sha256 {}\n\
             node0 after it was fenced: {}\n\
             left in ZFS, configfs, sysfs and the mount tables: nothing",
            self.checksum, self.fenced
        );
        out
    }
}
