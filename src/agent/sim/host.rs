//! What the agent asks of its host, and does to it.

use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use zvolt_kernel::nvmet::{ObservedNamespace, ObservedSubsystem};
use zvolt_kernel::zfs::Pool;

use super::{Content, LOOP_PORT, NODE, SimHost, device, full};
use crate::agent::observe::{Failure, Host, News, Storage, property};
use crate::agent::steps::Act;
use crate::model::names::{self, Pooled};
use crate::model::volume::{Provisioning, WriteProtect, reason};

impl Host for SimHost {
    fn listen(&self, listener: UnboundedSender<News>) {
        *self.listener.lock().unwrap() = Some(listener);
    }

    fn ports(&self) -> Vec<u16> {
        let away = self.away.lock().unwrap();
        [1, 2]
            .into_iter()
            .filter(|port| !away.contains(port))
            .collect()
    }

    fn converge_ports(&self) -> Result<(), Failure> {
        self.world.lock().unwrap().ports_made = true;
        Ok(())
    }

    fn hold_ports(&self) -> Result<bool, Failure> {
        self.tick("ports.hold".into())?;
        self.world.lock().unwrap().ports_held = true;
        Ok(true)
    }

    fn open_ports(&self) -> Result<(), Failure> {
        if self.world.lock().unwrap().ports_held {
            self.tick("ports.open".into())?;
            self.world.lock().unwrap().ports_held = false;
        }
        Ok(())
    }

    fn export(&self, nqn: &str) -> Result<Option<ObservedSubsystem>, Failure> {
        Ok(self.world.lock().unwrap().subsystems.get(nqn).cloned())
    }

    fn export_one(&self, nqn: &str, nsid: u32) -> Result<Option<ObservedSubsystem>, Failure> {
        let found = self.export(nqn)?;
        Ok(found.map(|mut subsystem| {
            subsystem.namespaces.retain(|n| n.nsid == nsid);
            subsystem
        }))
    }

    fn pooled(&self) -> Result<Vec<ObservedSubsystem>, Failure> {
        let world = self.world.lock().unwrap();
        let is_ours = |nqn: &str| Pooled::parse(nqn).is_some_and(|p| p.owner == NODE);
        let all = world.subsystems.values();
        Ok(all.filter(|s| is_ours(&s.nqn)).cloned().collect())
    }

    fn backing(&self, namespace: &ObservedNamespace) -> Result<Option<String>, Failure> {
        let world = self.world.lock().unwrap();
        let mut zvols = world.zvols.keys();
        Ok(zvols.find(|name| device(name) == namespace.device).cloned())
    }

    fn storage(
        &self,
        pool: &str,
        dataset: &str,
        export: Option<&ObservedSubsystem>,
    ) -> Result<Storage, Failure> {
        *self.looks.lock().unwrap() += 1;
        let world = self.world.lock().unwrap();
        let Some((guid, health)) = world.pools.get(pool) else {
            return Ok(Storage::default());
        };
        let found = world.zvols.get(dataset);
        Ok(Storage {
            pool: Some(Pool {
                name: pool.into(),
                guid: *guid,
                health: health.clone(),
                ..Pool::default()
            }),
            dataset: found.map(|z| world.look_at(dataset, z)).transpose()?,
            backing: export
                .filter(|e| !e.namespaces.is_empty())
                .map(|_| dataset.to_owned()),
        })
    }

    fn act(&self, act: &Act, _deadline: Instant) -> Result<(), Failure> {
        if let Some((step, times, failure)) = self.fails.lock().unwrap().as_mut()
            && *step == act.name()
            && *times > 0
        {
            *times -= 1;
            return Err(failure.clone());
        }
        let tick = || self.tick(act.name().into());
        match act {
            Act::Create { spec, provisioning } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                assert!(!world.zvols.contains_key(&spec.dataset));
                let mut pairs: Vec<_> = spec
                    .user_properties
                    .iter()
                    .map(|(k, v)| (k.as_str(), v.clone()))
                    .collect();
                pairs.extend(spec.properties.iter().map(|(k, v)| (k.as_str(), v.clone())));
                pairs.push(("volsize", spec.volsize.to_string()));
                pairs.push(("volblocksize", spec.volblocksize.to_string()));
                if *provisioning == Provisioning::Thick {
                    pairs.push(("refreservation", full(spec.volsize).to_string()));
                }
                world.zvol(&spec.dataset, &pairs, Content::Blank);
            }
            Act::Set {
                dataset,
                property,
                value,
                ..
            } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.zvols.get_mut(dataset).unwrap().set(property, value);
            }
            Act::Revalidate {
                nqn,
                nsid,
                dataset,
                bytes,
            } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                assert_eq!(world.zvols[dataset].volsize(), *bytes);
                world.shown.insert((nqn.clone(), *nsid), *bytes);
            }
            Act::Appear { dataset } => {
                tick()?;
                assert!(self.world.lock().unwrap().zvols.contains_key(dataset));
            }
            Act::Format { dataset, uuid, .. } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let zvol = world.zvols.get_mut(dataset).unwrap();
                match zvol.content {
                    Content::Blank => zvol.content = Content::Fresh(*uuid),
                    Content::Fresh(found) if found == *uuid => {}
                    _ => {
                        return Err(Failure::lasting(
                            reason::DATASET_FOREIGN,
                            "it holds something",
                        ));
                    }
                }
            }
            Act::RecordFormat { dataset, record } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let zvol = world.zvols.get_mut(dataset).unwrap();
                assert!(
                    matches!(zvol.content, Content::Fresh(_)),
                    "recorded before it was made"
                );
                zvol.properties.insert(property("format"), record.clone());
            }
            Act::Subsystem(spec) => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let fresh = ObservedSubsystem {
                    nqn: spec.nqn.clone(),
                    serial: String::new(),
                    allowed_hosts: Vec::new(),
                    namespaces: Vec::new(),
                    ports: Vec::new(),
                };
                let subsystem = world.subsystems.entry(spec.nqn.clone()).or_insert(fresh);
                subsystem.serial.clone_from(&spec.serial);
            }
            Act::Namespace(backing) => self.namespace(backing)?,
            Act::RemoveNamespace { nqn, nsid } => self.drop_namespace(nqn, *nsid)?,
            Act::Link { nqn, port } => self.link(nqn, *port)?,
            Act::AllowHost { nqn, host } => {
                tick()?;
                self.allow(nqn, host);
            }
            Act::DisallowHost { nqn, host } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world
                    .subsystems
                    .get_mut(nqn)
                    .unwrap()
                    .allowed_hosts
                    .retain(|h| h != host);
            }
            Act::Cut { nqn, ports, drain } => {
                for port in ports {
                    self.unlink(nqn, *port)?;
                }
                if let Some(backing) = drain {
                    self.drop_namespace(nqn, backing.nsid)?;
                    self.namespace(backing)?;
                }
                for port in ports {
                    self.link(nqn, *port)?;
                }
            }
            Act::Unlink { nqn, port } => self.unlink(nqn, *port)?,
            Act::LoopOpen { nqn } => {
                self.tick("allow the agent".into())?;
                self.allow(nqn, &names::agent_nqn(NODE));
                self.link(nqn, LOOP_PORT)?;
            }
            Act::WriteProtect { nqn, state } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let subsystem = &world.subsystems[nqn];
                assert!(subsystem.ports.contains(&LOOP_PORT));
                assert!(subsystem.allowed_hosts.contains(&names::agent_nqn(NODE)));
                assert!(!subsystem.namespaces.is_empty(), "a namespace to protect");
                match state {
                    WriteProtect::On => drop(world.protected.insert(nqn.clone())),
                    WriteProtect::Off => drop(world.protected.remove(nqn)),
                    WriteProtect::Changing => panic!("that is no state of the target"),
                }
            }
            Act::LoopClose { nqn } => {
                self.unlink(nqn, LOOP_PORT)?;
                self.tick("disallow the agent".into())?;
                let mut world = self.world.lock().unwrap();
                if let Some(subsystem) = world.subsystems.get_mut(nqn) {
                    subsystem
                        .allowed_hosts
                        .retain(|host| *host != names::agent_nqn(NODE));
                }
            }
            Act::Mend { .. } => {}
            Act::Released { dataset, .. } => {
                tick()?;
                let world = self.world.lock().unwrap();
                if world.held_here.contains(dataset) {
                    let message = format!("{dataset} is mounted on this host: unmount it");
                    return Err(Failure::passing(reason::BUSY, message));
                }
            }
            Act::Teardown { nqn, .. } => {
                let found = self.world.lock().unwrap().subsystems.get(nqn).cloned();
                let Some(found) = found else { return Ok(()) };
                for port in found.ports {
                    self.unlink(nqn, port)?;
                }
                self.tick("remove hosts".into())?;
                if let Some(subsystem) = self.world.lock().unwrap().subsystems.get_mut(nqn) {
                    subsystem.allowed_hosts.clear();
                }
                for namespace in found.namespaces {
                    self.drop_namespace(nqn, namespace.nsid)?;
                }
                self.tick("remove subsystem".into())?;
                self.world.lock().unwrap().subsystems.remove(nqn);
            }
            Act::Destroy { dataset } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.is_not_exported(dataset);
                world.destroy(dataset)?;
            }
            Act::Snapshot { names, properties } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.take_snapshots(names, properties)?;
            }
            Act::Clone { spec, .. } => {
                tick()?;
                self.world.lock().unwrap().make_clone(spec)?;
            }
            Act::Promote { clone, .. } => {
                tick()?;
                self.world.lock().unwrap().promote(clone)?;
            }
            Act::DestroySnapshot { snapshot, when } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.destroy_snapshot(snapshot, *when)?;
            }
            Act::Unreserve { dataset } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                let zvol = world.zvols.get_mut(dataset).unwrap();
                zvol.properties.remove("refreservation");
            }
            Act::Rollback { snapshot } => {
                tick()?;
                self.world.lock().unwrap().rollback(snapshot)?;
            }
            Act::Bury { from, to } => {
                tick()?;
                let mut world = self.world.lock().unwrap();
                world.is_not_exported(from);
                world.rename(from, to)?;
            }
        }
        Ok(())
    }
}
