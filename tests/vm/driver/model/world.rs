//! The pure model: what one orchestrator's volumes and snapshots must be after each call, and what each
//! call must answer.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand::seq::{IndexedRandom, IteratorRandom};
use tonic::Code;

/// The machines that volumes are published on; the first is the storage host itself.
pub(super) const NODES: [&str; 3] = ["storage0", "node0", "node1"];

/// Most volumes and snapshots of one orchestrator at a time.
const VOLUMES: usize = 5;
const SNAPSHOTS: usize = 4;

/// What is on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Ext4,
    Raw,
}

/// Where a volume's first bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Nothing,
    /// A snapshot's name and its CSI handle.
    Snapshot {
        name: String,
        id: String,
    },
    Volume(String),
}

#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) form: Form,
    pub(super) mib: i64,
    pub(super) origin: Origin,
    /// The node that has it, whether it may only read, and how far it got there.
    pub(super) on: Option<On>,
    /// What was last written and synced.
    pub(super) token: Option<String>,
    /// Its filesystem's journal awaits a replay: it was copied while it was mounted.
    pub(super) dirty: bool,
}

impl Volume {
    /// Whether a copy that is taken now has a journal to replay.
    fn copies_dirty(&self) -> bool {
        let is_mounted = self
            .on
            .as_ref()
            .is_some_and(|on| on.staged && !on.read_only);
        self.form == Form::Ext4 && (self.dirty || is_mounted)
    }
}

#[derive(Debug, Clone)]
pub(super) struct On {
    pub(super) node: &'static str,
    pub(super) read_only: bool,
    pub(super) staged: bool,
    pub(super) targets: BTreeSet<u8>,
}

#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) source: String,
    pub(super) form: Form,
    pub(super) mib: i64,
    pub(super) token: Option<String>,
    dirty: bool,
}

impl Snapshot {
    /// The CSI handle.
    pub(super) fn id(&self, name: &str) -> String {
        format!("{}@{name}", self.source)
    }
}

/// One call, or what a pod does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    Create {
        name: String,
        form: Form,
        mib: i64,
        origin: Origin,
    },
    Delete(String),
    Attach {
        name: String,
        node: &'static str,
        read_only: bool,
    },
    Detach(String),
    Stage(String),
    Unstage(String),
    Publish(String, u8),
    Unpublish(String, u8),
    Write(String, String),
    Read(String),
    Stats(String),
    Expand(String, i64),
    Modify(String, &'static str),
    Get(String),
    Snap {
        name: String,
        source: String,
    },
    DeleteSnap(String),
    ListVolumes,
    ListSnapshots,
}

/// What a call must answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Fine,
    Refused(Code),
}

/// All that one orchestrator has.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) prefix: String,
    pub(super) volumes: BTreeMap<String, Volume>,
    /// By CSI name.
    pub(super) snapshots: BTreeMap<String, Snapshot>,
    /// Names that were given out.
    count: u32,
}

impl World {
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix,
            ..Self::default()
        }
    }

    fn fresh(&mut self, kind: char) -> String {
        self.count += 1;
        format!("{}-{kind}{}", self.prefix, self.count)
    }

    /// The next call: mostly one that leads on, now and then a repetition, or one that must be refused.
    pub(super) fn choose(&mut self, rng: &mut impl Rng) -> Op {
        match rng.random_range(0..100) {
            0..5 => return Op::ListVolumes,
            5..8 => return Op::ListSnapshots,
            8..12 => return self.rude(rng),
            12..24 if self.volumes.len() < VOLUMES => return self.create(rng),
            24..32 => {
                if let Some(op) = self.snapshot_op(rng) {
                    return op;
                }
            }
            _ => {}
        }
        let Some((name, volume)) = self.volumes.iter().choose(rng) else {
            return self.create(rng);
        };
        on_volume(name.clone(), volume, rng)
    }

    fn create(&mut self, rng: &mut impl Rng) -> Op {
        let snapshot = self.snapshots.iter().choose(rng);
        let volume = self.volumes.iter().choose(rng);
        let (form, least, origin) = match rng.random_range(0..6) {
            0 if snapshot.is_some() => snapshot
                .map(|(name, s)| {
                    let (name, id) = (name.clone(), s.id(name));
                    (s.form, s.mib, Origin::Snapshot { name, id })
                })
                .unwrap_or((Form::Raw, 16, Origin::Nothing)),
            1 if volume.is_some() => volume
                .map(|(name, v)| (v.form, v.mib, Origin::Volume(name.clone())))
                .unwrap_or((Form::Raw, 16, Origin::Nothing)),
            2 | 3 => (Form::Ext4, 32, Origin::Nothing),
            _ => (Form::Raw, 16, Origin::Nothing),
        };
        let more = *[0, 0, 16].choose(rng).unwrap_or(&0);
        Op::Create {
            name: self.fresh('v'),
            form,
            mib: least + more,
            origin,
        }
    }

    fn snapshot_op(&mut self, rng: &mut impl Rng) -> Option<Op> {
        let known = self.snapshots.keys().choose(rng).cloned();
        match rng.random_range(0..3) {
            0 => known.map(Op::DeleteSnap),
            // The same again: nothing new may come of it.
            1 if rng.random_bool(0.3) => known.map(|name| Op::Snap {
                source: self.snapshots[&name].source.clone(),
                name,
            }),
            _ if self.snapshots.len() < SNAPSHOTS => {
                let source = self.volumes.keys().choose(rng)?.clone();
                Some(Op::Snap {
                    name: self.fresh('s'),
                    source,
                })
            }
            _ => None,
        }
    }

    /// Calls that no orchestrator should make.
    fn rude(&mut self, rng: &mut impl Rng) -> Op {
        let nobody = format!("{}-nobody", self.prefix);
        let some = self.volumes.iter().choose(rng);
        match (rng.random_range(0..7), some) {
            (0, _) => Op::Attach {
                name: nobody,
                node: "node0",
                read_only: false,
            },
            (1, _) => Op::Delete(nobody),
            (2, _) => Op::Expand(nobody, 64),
            (3, _) => Op::Snap {
                name: self.fresh('s'),
                source: nobody,
            },
            (4, _) => Op::DeleteSnap(nobody),
            (5, Some((name, volume))) => Op::Create {
                name: name.clone(),
                form: volume.form,
                mib: volume.mib + 512,
                origin: volume.origin.clone(),
            },
            (_, Some((name, volume))) => match &volume.on {
                Some(on) => Op::Attach {
                    name: name.clone(),
                    node: NODES
                        .into_iter()
                        .find(|node| *node != on.node)
                        .unwrap_or("node0"),
                    read_only: on.read_only,
                },
                None => Op::Get(name.clone()),
            },
            (_, None) => Op::Get(nobody),
        }
    }

    /// What the call must answer in this world.
    pub(super) fn expect(&self, op: &Op) -> Answer {
        use Answer::{Fine, Refused};
        let volume = |name: &String| self.volumes.get(name);
        match op {
            Op::Create {
                name, mib, origin, ..
            } => match volume(name) {
                Some(existing) if existing.mib < *mib || existing.origin != *origin => {
                    Refused(Code::AlreadyExists)
                }
                _ => Fine,
            },
            Op::Delete(name) => match volume(name) {
                Some(Volume { on: Some(_), .. }) => Refused(Code::FailedPrecondition),
                _ => Fine,
            },
            Op::Attach {
                name,
                node,
                read_only,
            } => match volume(name).map(|v| &v.on) {
                None => Refused(Code::NotFound),
                Some(None) => Fine,
                Some(Some(on)) if on.node != *node => Refused(Code::FailedPrecondition),
                Some(Some(on)) if on.read_only != *read_only => Refused(Code::AlreadyExists),
                Some(Some(_)) => Fine,
            },
            // Its journal cannot be replayed without a write, and a read-only volume takes none (rule 5).
            Op::Stage(name) => match volume(name) {
                Some(Volume {
                    on: Some(on),
                    dirty: true,
                    ..
                }) if on.read_only && !on.staged => Refused(Code::FailedPrecondition),
                _ => Fine,
            },
            Op::Expand(name, _) | Op::Get(name) | Op::Modify(name, _) => match volume(name) {
                None => Refused(Code::NotFound),
                Some(_) => Fine,
            },
            Op::Snap { name, source } => match self.snapshots.get(name) {
                Some(snapshot) if snapshot.source != *source => Refused(Code::AlreadyExists),
                Some(_) => Fine,
                None if volume(source).is_none() => Refused(Code::NotFound),
                None => Fine,
            },
            _ => Fine,
        }
    }

    /// The world after a call that was fine.
    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Create {
                name,
                form,
                mib,
                origin,
            } => {
                if self.volumes.contains_key(name) {
                    return;
                }
                let (token, dirty) = match origin {
                    Origin::Nothing => (None, false),
                    Origin::Snapshot { name, .. } => {
                        let from = &self.snapshots[name];
                        (from.token.clone(), from.dirty)
                    }
                    Origin::Volume(name) => {
                        let from = &self.volumes[name];
                        (from.token.clone(), from.copies_dirty())
                    }
                };
                let volume = Volume {
                    form: *form,
                    mib: *mib,
                    origin: origin.clone(),
                    on: None,
                    token,
                    dirty,
                };
                self.volumes.insert(name.clone(), volume);
            }
            Op::Delete(name) => drop(self.volumes.remove(name)),
            Op::Attach {
                name,
                node,
                read_only,
            } => {
                let on = On {
                    node,
                    read_only: *read_only,
                    staged: false,
                    targets: BTreeSet::new(),
                };
                self.edit(name, |v| v.on = v.on.take().or(Some(on)));
            }
            Op::Detach(name) => self.edit(name, |v| v.on = None),
            Op::Stage(name) => {
                self.edit_on(name, |on| on.staged = true);
                self.edit(name, |v| {
                    v.dirty &= v.on.as_ref().is_some_and(|on| on.read_only)
                });
            }
            Op::Unstage(name) => self.edit_on(name, |on| on.staged = false),
            Op::Publish(name, target) => self.edit_on(name, |on| {
                on.targets.insert(*target);
            }),
            Op::Unpublish(name, target) => self.edit_on(name, |on| {
                on.targets.remove(target);
            }),
            Op::Write(name, token) => self.edit(name, |v| v.token = Some(token.clone())),
            Op::Expand(name, mib) => self.edit(name, |v| v.mib = v.mib.max(*mib)),
            Op::Snap { name, source } => {
                if let Some(volume) = self.volumes.get(source)
                    && !self.snapshots.contains_key(name)
                {
                    let snapshot = Snapshot {
                        source: source.clone(),
                        form: volume.form,
                        mib: volume.mib,
                        token: volume.token.clone(),
                        dirty: volume.copies_dirty(),
                    };
                    self.snapshots.insert(name.clone(), snapshot);
                }
            }
            Op::DeleteSnap(name) => drop(self.snapshots.remove(name)),
            Op::Read(_)
            | Op::Stats(_)
            | Op::Modify(..)
            | Op::Get(_)
            | Op::ListVolumes
            | Op::ListSnapshots => {}
        }
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Volume)) {
        if let Some(volume) = self.volumes.get_mut(name) {
            change(volume);
        }
    }

    fn edit_on(&mut self, name: &str, change: impl FnOnce(&mut On)) {
        self.edit(name, |volume| {
            if let Some(on) = volume.on.as_mut() {
                change(on);
            }
        });
    }

    /// The calls that take everything down, in an order of chance: each volume from its node first.
    pub(super) fn teardown(&self, rng: &mut impl Rng) -> Vec<Op> {
        let mut ops = Vec::new();
        for (name, volume) in &self.volumes {
            if let Some(on) = &volume.on {
                ops.extend(on.targets.iter().map(|t| Op::Unpublish(name.clone(), *t)));
                ops.extend(on.staged.then(|| Op::Unstage(name.clone())));
                ops.push(Op::Detach(name.clone()));
            }
        }
        let volumes = self.volumes.keys().cloned().map(Op::Delete);
        let snapshots = self.snapshots.keys().cloned().map(Op::DeleteSnap);
        let mut last: Vec<Op> = volumes.chain(snapshots).collect();
        rand::seq::SliceRandom::shuffle(&mut last[..], rng);
        ops.extend(last);
        ops
    }
}

/// A call that leads a volume on, back, or is the one before once more.
fn on_volume(name: String, volume: &Volume, rng: &mut impl Rng) -> Op {
    let Some(on) = &volume.on else {
        return match rng.random_range(0..8) {
            0 => Op::Delete(name),
            1 => Op::Create {
                name,
                form: volume.form,
                mib: volume.mib,
                origin: volume.origin.clone(),
            },
            2 => Op::Expand(name, (volume.mib + 16).min(96)),
            3 => Op::Modify(name, ["lz4", "zstd-3", "off"].choose(rng).unwrap_or(&"lz4")),
            _ => Op::Attach {
                name,
                node: NODES.choose(rng).unwrap_or(&"node0"),
                read_only: rng.random_bool(0.2),
            },
        };
    };
    if !on.staged {
        return match rng.random_range(0..5) {
            0 => Op::Detach(name),
            1 => Op::Attach {
                name,
                node: on.node,
                read_only: on.read_only,
            },
            _ => Op::Stage(name),
        };
    }
    let Some(target) = on.targets.iter().copied().choose(rng) else {
        return match rng.random_range(0..5) {
            0 => Op::Unstage(name),
            1 => Op::Stage(name),
            _ => Op::Publish(name, 0),
        };
    };
    match rng.random_range(0..12) {
        0 => Op::Expand(name, (volume.mib + 16).min(96)),
        1 => Op::Stats(name),
        2 => Op::Get(name),
        3 => Op::Publish(name, target),
        4 if on.targets.len() < 2 => Op::Publish(name, 1 - target),
        5 | 6 if !on.read_only => {
            let token = format!("{:016x}", rng.random::<u64>());
            Op::Write(name, token)
        }
        7 | 8 => Op::Read(name),
        _ => Op::Unpublish(name, target),
    }
}
