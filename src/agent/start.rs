//! Start-up: the ports, and every export before any of them answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::observe::Host;
use super::volumes::Prepared;
use super::{Error, Serving};
use crate::model::object::Object;
use crate::model::volume::Volume;
use crate::store::{self, Objects, Store};

/// The first and the longest pause before a store that does not answer is asked again: nothing tells when it does.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

impl<S: Store, H: Host> Serving<S, H> {
    /// Ports, then every export, then one reconcile of every volume, and the first report.
    pub(super) async fn start(&mut self) -> Result<(), Error> {
        let all = self.all.clone();
        tokio::task::spawn_blocking(move || all.host.converge_ports()).await??;
        let listed = all_of(self.all.store.volumes()).await?.into_iter();
        let volumes: Vec<Arc<Volume>> = listed
            .filter(|v| v.spec.owner_node == self.all.site.node)
            .map(Arc::new)
            .collect();
        let (all, of_all) = (self.all.clone(), volumes.clone());
        tokio::task::spawn_blocking(move || all.begin_places(&of_all)).await??;
        let prepared = self.build(volumes).await?;
        for prepared in prepared {
            self.volumes.listed(&prepared.volume, prepared.versions);
        }
        while let Some(effects) = self.volumes.next_ended().await? {
            self.spread(&effects);
        }
        let snapshots = all_of(self.all.store.snapshots()).await?;
        let ours = snapshots
            .into_iter()
            .filter(|s| s.spec.owner_node == self.all.site.node);
        for snapshot in ours {
            let versions = vec![snapshot.metadata.resource_version.clone()];
            self.snapshots.listed(&Arc::new(snapshot), versions);
        }
        self.reported(self.all.clone().report().await);
        Ok(())
    }

    /// Builds every export, then links them all. Holds on for attached volumes whose pools are not imported yet.
    async fn build(&mut self, volumes: Vec<Arc<Volume>>) -> Result<Vec<Prepared>, Error> {
        let mut building = JoinSet::new();
        let mut prepared = Vec::new();
        for volume in volumes {
            if building.len() >= self.parallel
                && let Some(done) = building.join_next().await
            {
                prepared.push(done?);
            }
            let all = self.all.clone();
            building.spawn_blocking(move || all.prepare(volume));
        }
        while let Some(done) = building.join_next().await {
            prepared.push(done?);
        }
        let lacking: Vec<String> = match self.await_pools.is_zero() {
            true => Vec::new(),
            false => names_of(prepared.iter().filter(|p| p.awaits_pool)),
        };
        let built = prepared.iter_mut().filter_map(|p| p.built.take()).collect();
        let (all, awaits) = (self.all.clone(), !lacking.is_empty());
        if tokio::task::spawn_blocking(move || all.link(built, awaits)).await?? {
            tracing::warn!(
                volumes = ?lacking,
                seconds = self.await_pools.as_secs(),
                "the portals answer nobody until the pools of these volumes are imported (zpool import)"
            );
            self.awaited = lacking;
            self.held = Some(Instant::now() + self.await_pools);
        }
        Ok(prepared)
    }
}

fn names_of<'a>(prepared: impl Iterator<Item = &'a Prepared>) -> Vec<String> {
    prepared.map(|p| p.volume.metadata.name.clone()).collect()
}

/// All objects of a kind. A storage host may be up before the API server is, and nobody else brings its exports back: it
/// is asked until it answers.
async fn all_of<T: Object>(objects: &impl Objects<T>) -> Result<Vec<T>, store::Error> {
    let mut pause = PAUSE.0;
    loop {
        match objects.list().await {
            Err(error) if error.may_pass() => {
                tracing::warn!(
                    %error,
                    kind = T::KIND,
                    "the store does not answer, and is asked again: nothing is exported before it does"
                );
            }
            outcome => return outcome,
        }
        sleep_until(Instant::now() + pause).await;
        pause = (2 * pause).min(PAUSE.1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::SimHost;
    use super::super::sim::store::MemoryStore;
    use super::*;
    use crate::store::conformance::volume;

    #[tokio::test]
    async fn a_store_that_comes_late_is_waited_for() {
        let store = MemoryStore::on(Arc::new(SimHost::with_pool()));
        store.volumes.put(volume("v"));
        *store.volumes.unanswered.lock().unwrap() = 2;
        let listed = all_of(&store.volumes).await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(*store.volumes.unanswered.lock().unwrap(), 0);
    }
}
