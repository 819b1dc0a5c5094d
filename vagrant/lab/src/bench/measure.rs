//! The jobs, one after the other, on drivers that run as users run them.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use zvolt_bench::job::{Job, RAW, Volume, Work};
use zvolt_bench::sample::Sample;

use super::Effort;
use super::scale::Scale;
use crate::fleet::{KUBELET, Member, SOCKET, STORAGE, assert_clean, scrub};
use crate::orchestrator::{Csi, Wanted};
use crate::{Lab, Vm, progress, quote};

/// Where the machines have the benchmark.
pub(super) const PROGRAM: &str = "/usr/local/bin/zvolt-bench";
/// The consumer.
pub(super) const NODE: &str = "node0";

/// How many pods start at the same time.
const AT_ONCE: [usize; 3] = [1, 8, 32];
/// How often they do.
const ROUNDS_AT_ONCE: u32 = 5;

/// All that was measured: samples by case.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// `ext4`, `xfs`, `raw`, `local`, `admit`, `at once`, `create`, and those of [`Scale`].
    pub(super) cases: Vec<(String, Vec<Sample>)>,
    /// What was found with many volumes.
    pub(super) scale: Option<Scale>,
    /// Resident bytes of the node's driver with nothing staged.
    pub(super) resident: u64,
    /// Nanoseconds that the timeline itself costs a step, on this machine and not emulated.
    pub(super) timeline: u64,
}

/// Runs every job and leaves the machines clean.
pub(super) fn all(lab: &Lab, effort: Effort) -> Result<Taken> {
    for name in [NODE, STORAGE] {
        scrub(lab.vm(name))?;
    }
    let (storage, node) = (Member::storage(lab), Member::node(lab, NODE));
    // The lab's tests have it log everything; users do not.
    for member in [&storage, &node] {
        member.start_with(&[("RUST_LOG", "info")])?;
    }
    let bench = Bench {
        lab,
        controller: storage.csi()?,
        effort,
    };
    let mut taken = Taken {
        resident: resident(node.vm())?,
        ..Taken::default()
    };
    let outcome = bench.run(&mut taken).and_then(|()| {
        if effort.many > 0 {
            let mut scale = bench.scale(effort.many, &storage, &node)?;
            taken.cases.append(&mut scale.cases);
            taken.scale = Some(scale);
        }
        Ok(())
    });
    for member in [&node, &storage] {
        member.stop()?;
    }
    outcome?;
    assert_clean(lab, &[STORAGE, NODE])?;
    Ok(taken)
}

pub(super) struct Bench<'a> {
    lab: &'a Lab,
    pub(super) controller: Csi,
    pub(super) effort: Effort,
}

impl Bench<'_> {
    fn run(&self, taken: &mut Taken) -> Result<()> {
        let kinds: &[&str] = if self.effort.whole {
            &["ext4", "xfs", RAW]
        } else {
            &["ext4"]
        };
        for kind in kinds {
            let id = self.volume(kind, "per-volume")?;
            let pooled = self.volume(kind, "pooled")?;
            let samples =
                progress::part(&format!("stage and publish, {kind}, over NVMe/TCP"), || {
                    let work = Work::Remote {
                        volume: self.admitted(&id, kind, NODE)?,
                        warm: Some(self.admitted(&pooled, kind, NODE)?),
                    };
                    let samples = self.job(NODE, self.effort.rounds, work)?;
                    for id in [&id, &pooled] {
                        self.controller.controller_unpublish(id, NODE)?;
                    }
                    Ok(samples)
                })?;
            taken.cases.push(((*kind).to_owned(), samples));
            if *kind == "ext4" {
                self.beside_the_network(&id, taken)?;
            }
            for id in [&id, &pooled] {
                self.controller.delete(id)?;
            }
        }
        if self.effort.whole {
            taken.cases.push(("at once".into(), self.at_once()?));
        }
        let samples = progress::part("create and delete", || {
            let work = Work::Create {
                pool: "tank".into(),
                size: 1 << 30,
                fs_type: "ext4".into(),
                port: 1,
            };
            self.job(STORAGE, self.effort.others, work)
        })?;
        taken.cases.push(("create".into(), samples));
        Ok(())
    }

    /// Many pods that start at the same time.
    fn at_once(&self) -> Result<Vec<Sample>> {
        let most = AT_ONCE.iter().max().copied().unwrap_or_default();
        let mut volumes = Vec::new();
        progress::part(&format!("making {most} volumes"), || {
            for n in 0..most {
                let wanted = Wanted::named(&format!("pvc-bench-{n}"));
                let id = self.controller.create(&wanted)?.volume_id;
                volumes.push(self.admitted(&id, "ext4", NODE)?);
            }
            Ok(())
        })?;
        let samples = progress::part(&format!("stage and publish, {AT_ONCE:?} at once"), || {
            let work = Work::AtOnce {
                volumes: volumes.clone(),
                numbers: AT_ONCE.to_vec(),
            };
            self.job(NODE, ROUNDS_AT_ONCE.min(self.effort.rounds), work)
        })?;
        for volume in volumes {
            self.controller.controller_unpublish(&volume.id, NODE)?;
            self.controller.delete(&volume.id)?;
        }
        Ok(samples)
    }

    /// What is done on the storage host with a volume.
    fn beside_the_network(&self, id: &str, taken: &mut Taken) -> Result<()> {
        let samples = progress::part("stage and publish, ext4, on the storage host", || {
            let mut volume = self.admitted(id, "ext4", STORAGE)?;
            let link = format!("readlink -f /dev/zvol/tank/csi/block/{id}");
            let device = self.lab.vm(STORAGE).ok(&link)?;
            volume.device = Some(device.trim().into());
            let samples = self.job(STORAGE, self.effort.others, Work::Local(volume))?;
            self.controller.controller_unpublish(id, STORAGE)?;
            Ok(samples)
        })?;
        taken.cases.push(("local".into(), samples));
        let samples = progress::part("controller publish", || {
            let volume = self.admitted(id, "ext4", NODE)?;
            self.controller.controller_unpublish(id, NODE)?;
            let work = Work::Admit {
                volume,
                node: NODE.into(),
                host_nqn: "nqn.2014-08.org.nvmexpress:uuid:6f0c1b52-floor".into(),
            };
            self.job(STORAGE, self.effort.others, work)
        })?;
        taken.cases.push(("admit".into(), samples));
        Ok(())
    }

    /// A volume with a filesystem or none, to which nodes come by `attach`.
    pub(super) fn volume(&self, kind: &str, attach: &str) -> Result<String> {
        let name = format!("pvc-bench-{kind}-{attach}");
        let wanted = Wanted::named(&name).fs(kind).parameter("attach", attach);
        Ok(self.controller.create(&wanted)?.volume_id)
    }

    /// A volume as the benchmark wants it, with `node` admitted.
    pub(super) fn admitted(&self, id: &str, fs_type: &str, node: &str) -> Result<Volume> {
        let context = self.controller.controller_publish(id, node, fs_type)?;
        let get = |key: &str| -> Result<&String> {
            let value: Option<&String> = HashMap::get(&context, key);
            value.with_context(|| format!("the publish context has no {key}"))
        };
        Ok(Volume {
            id: id.to_owned(),
            fs_type: fs_type.to_owned(),
            kubelet_dir: KUBELET.into(),
            nqn: get("nqn")?.clone(),
            portal: get("portal")?.parse()?,
            uuid: get("namespaceUUID")?.parse()?,
            device: None,
            context,
        })
    }

    pub(super) fn job(&self, machine: &str, rounds: u32, work: Work) -> Result<Vec<Sample>> {
        let job = Job {
            socket: SOCKET.into(),
            rounds,
            work,
        };
        let command = format!(
            "printf %s {} | {PROGRAM}",
            quote(&serde_json::to_string(&job)?)
        );
        let out = self.lab.vm(machine).ok(&command)?;
        let samples: Vec<Sample> = out
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()
            .context("read the samples")?;
        ensure!(!samples.is_empty(), "the job gave no sample");
        Ok(samples)
    }
}

/// Resident bytes of the driver on a machine (proc_pid_status(5), `VmRSS`).
pub(super) fn resident(vm: &Vm) -> Result<u64> {
    let out =
        vm.ok("sed -n 's/^VmRSS:[^0-9]*\\([0-9]*\\) kB/\\1/p' /proc/$(pgrep -x zvolt)/status")?;
    let kib: u64 = out.trim().parse().context("VmRSS")?;
    Ok(kib * 1024)
}
