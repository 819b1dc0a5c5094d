//! What grows with the number of volumes, and what must not: a node that has many staged, and an agent that starts with
//! many to export.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow};
use zvolt_bench::job::Work;
use zvolt_bench::sample::{Sample, Side};
use zvolt_proto::trace::Operation;

use super::measure::{Bench, NODE};
use crate::fleet::{FORGET_EXPORTS, Member, staging_path};
use crate::orchestrator::{Csi, Wanted};
use crate::snapshots::From;
use crate::{Vm, progress};

/// A node that has so many staged is the measure of one that has many.
const FEW: usize = 10;
/// How many calls at a time.
const AT_ONCE: usize = 8;
/// Seconds for which drivers without work are watched.
const WATCH: u64 = 20;
/// How often all is exported, by each side.
const STARTS: usize = 3;

/// What was found with many volumes.
#[derive(Debug, Default)]
pub(super) struct Scale {
    /// How many.
    pub(super) volumes: usize,
    /// Resident bytes of the node's driver with all staged.
    pub(super) node: u64,
    /// How often its threads woke in a minute, with nothing to do.
    pub(super) node_wakes: u64,
    /// The same of the storage host's driver.
    pub(super) storage_wakes: u64,
    /// Samples by case.
    pub(super) cases: Vec<(String, Vec<Sample>)>,
}

/// One of many.
struct Volume {
    id: String,
    context: HashMap<String, String>,
}

impl Bench<'_> {
    /// Makes so many volumes, measures with them, and takes them away.
    pub(super) fn scale(
        &self,
        many: usize,
        storage: &Member<'_>,
        node: &Member<'_>,
    ) -> Result<Scale> {
        let source = self.volume("ext4", "pooled")?;
        let probe = self.volume("ext4", "per-volume")?;
        let snapshot = self
            .controller
            .create_snapshot("bench-scale", &source)?
            .snapshot_id;
        let volumes = progress::part(&format!("making {many} volumes"), || {
            at_once(many, |n| self.one_more(n, &snapshot))
        })?;
        let mut scale = Scale {
            volumes: many,
            ..Scale::default()
        };
        let socket = node.csi()?;
        let mut staged = 0;
        for upto in [FEW.min(many), many] {
            progress::part(&format!("staging, up to {upto}"), || {
                stage(node.vm(), &socket, &volumes[staged..upto])
            })?;
            staged = upto;
            let samples = progress::part(&format!("stage and publish beside {upto}"), || {
                let volume = self.admitted(&probe, "ext4", NODE)?;
                let samples = self.job(NODE, self.effort.rounds, Work::Driver(volume))?;
                self.controller.controller_unpublish(&probe, NODE)?;
                Ok(samples)
            })?;
            scale.cases.push((beside(upto == many).to_owned(), samples));
        }
        scale.node = super::measure::resident(node.vm())?;
        progress::part("watching drivers that have nothing to do", || {
            scale.node_wakes = wakes(node.vm())?;
            scale.storage_wakes = wakes(storage.vm())?;
            Ok(())
        })?;
        progress::part("unstaging all", || {
            at_once(many, |n| {
                let id = &volumes[n].id;
                Ok(socket.unstage(id, &staging_path(id))?)
            })
        })?;
        let samples = progress::part("exporting all, as after a boot", || {
            exports(self, storage, &volumes)
        })?;
        scale.cases.push(("start".into(), samples));
        progress::part("taking them away", || {
            at_once(many, |n| {
                let id = &volumes[n].id;
                self.controller.controller_unpublish(id, NODE)?;
                Ok(self.controller.delete(id)?)
            })?;
            self.controller.delete_snapshot(&snapshot)?;
            self.controller.delete(&source)?;
            Ok(self.controller.delete(&probe)?)
        })?;
        Ok(scale)
    }

    fn one_more(&self, n: usize, snapshot: &str) -> Result<Volume> {
        let wanted = Wanted::named(&format!("pvc-many-{n}")).parameter("attach", "pooled");
        let made = self
            .controller
            .create_from(&wanted, From::Snapshot(snapshot));
        let id = made?.volume_id;
        let context = self.controller.controller_publish(&id, NODE, "ext4")?;
        Ok(Volume { id, context })
    }
}

/// All exports anew, by the agent and by bare configfs writes, in turn.
fn exports(bench: &Bench<'_>, storage: &Member<'_>, volumes: &[Volume]) -> Result<Vec<Sample>> {
    let zvols: Vec<String> = volumes
        .iter()
        .map(|v| format!("tank/csi/block/{}", v.id))
        .collect();
    let mut samples = Vec::new();
    for _ in 0..STARTS {
        storage.stop()?;
        storage.vm().ok(FORGET_EXPORTS)?;
        let bare = Work::Export {
            zvols: zvols.clone(),
        };
        samples.extend(bench.job(storage.vm().name(), 1, bare)?);
        // Until it says that it is ready: every volume has been looked at then, too.
        let launch = storage.launch(&[("RUST_LOG", "info")]);
        let timed = format!("t=$(date +%s%N); {launch} && echo $(($(date +%s%N) - t))");
        let nanos = storage.vm().ok(&timed)?.trim().parse();
        samples.push(Sample {
            side: Side::Driver,
            what: "export".into(),
            began: 0,
            nanos: nanos.context("nanoseconds")?,
            steps: sums(&storage.csi()?.operations("")?),
        });
    }
    Ok(samples)
}

/// What each step took, in all operations together: they run side by side, so that a sum may be longer than the whole.
fn sums(operations: &[Operation]) -> Vec<(String, u64)> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for operation in operations {
        for step in &operation.steps {
            let name = format!("{} {} (sum)", operation.name, step.name);
            match sums.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += step.duration_nanos,
                None => sums.push((name, step.duration_nanos)),
            }
        }
    }
    sums
}

/// The name of a case.
pub(super) fn beside(all: bool) -> &'static str {
    match all {
        true => "beside many",
        false => "beside few",
    }
}

fn stage(vm: &Vm, socket: &Csi, volumes: &[Volume]) -> Result<()> {
    let paths: Vec<String> = volumes.iter().map(|v| staging_path(&v.id)).collect();
    for some in paths.chunks(200) {
        vm.ok(&format!("mkdir -p {}", some.join(" ")))?;
    }
    at_once(volumes.len(), |n| {
        Ok(socket.stage(&volumes[n].id, &volumes[n].context, &paths[n], "ext4")?)
    })
    .map(drop)
}

/// How often the driver's threads wake in a minute: their voluntary context switches (proc_pid_status(5)).
fn wakes(vm: &Vm) -> Result<u64> {
    let count = "cat /proc/$p/task/*/status | awk '/^voluntary/ { n += $2 } END { print n }'";
    let out = vm.ok(&format!(
        "p=$(pgrep -x zvolt); {count}; sleep {WATCH}; {count}"
    ))?;
    let counts: Vec<u64> = out
        .lines()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("voluntary_ctxt_switches")?;
    let [before, after] = counts[..] else {
        return Err(anyhow!(
            "two counts of context switches were expected: {out:?}"
        ));
    };
    Ok((after - before) * 60 / WATCH)
}

/// Does something for each number below `many`, [`AT_ONCE`] at a time; results in order.
fn at_once<T: Send>(many: usize, act: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let mut done: Vec<(usize, T)> = thread::scope(|scope| {
        let worker = || -> Result<Vec<(usize, T)>> {
            let mut mine = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= many {
                    return Ok(mine);
                }
                mine.push((n, act(n).with_context(|| format!("volume {n}"))?));
            }
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| anyhow!("a worker panicked"))??);
        }
        Ok::<_, anyhow::Error>(all)
    })?;
    done.sort_by_key(|(n, _)| *n);
    Ok(done.into_iter().map(|(_, t)| t).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_done_once_and_results_are_in_order() {
        let done = at_once(100, Ok).unwrap();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        let failed = at_once(100, |n| match n {
            50 => Err(anyhow!("no")),
            _ => Ok(n),
        });
        assert_eq!(failed.unwrap_err().to_string(), "volume 50");
    }
}
