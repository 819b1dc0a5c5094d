//! Who wants news of what. Each registers *before* the act that causes the news, and takes itself out when dropped: with
//! hundreds of calls waiting, neither a registration nor a piece of news looks at those of others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Those who wait for news of a `K`.
#[derive(Debug)]
pub(super) struct Waiters<K>(Arc<Mutex<Listeners<K>>>);

#[derive(Debug)]
struct Listeners<K> {
    of: HashMap<K, Vec<(u64, Sender<()>)>>,
    next: u64,
}

/// Told whenever something happens to what it waits for.
#[derive(Debug)]
pub(super) struct Waiter<K: Eq + Hash> {
    key: K,
    number: u64,
    news: Receiver<()>,
    waiters: Waiters<K>,
}

impl<K> Default for Waiters<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Listeners {
            of: HashMap::new(),
            next: 0,
        })))
    }
}

impl<K> Clone for Waiters<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Waiters<K> {
    fn lock(&self) -> MutexGuard<'_, Listeners<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Waiters<K> {
    /// Registers a waiter for `key`.
    pub(super) fn register(&self, key: K) -> Waiter<K> {
        let (sender, news) = channel();
        let mut listeners = self.lock();
        let number = listeners.next;
        listeners.next += 1;
        listeners
            .of
            .entry(key.clone())
            .or_default()
            .push((number, sender));
        Waiter {
            key,
            number,
            news,
            waiters: self.clone(),
        }
    }

    /// Gives the news to all who wait for `key`.
    pub(super) fn tell(&self, key: &K) {
        for (_, listener) in self.lock().of.get(key).into_iter().flatten() {
            // Fails only while the waiter is being dropped.
            let _ = listener.send(());
        }
    }

    /// Gives the news to all.
    pub(super) fn tell_all(&self) {
        for (_, listener) in self.lock().of.values().flatten() {
            let _ = listener.send(());
        }
    }

    /// Whether anybody waits for `key`.
    pub(super) fn has(&self, key: &K) -> bool {
        self.lock().of.contains_key(key)
    }

    /// Whether nobody waits for anything.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().of.is_empty()
    }
}

impl<K: Eq + Hash> Waiter<K> {
    /// Waits for news; false when the deadline came first.
    pub(super) fn news(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        self.news.recv_timeout(left).is_ok()
    }
}

impl<K: Eq + Hash> Drop for Waiter<K> {
    fn drop(&mut self) {
        let mut listeners = self.waiters.lock();
        if let Some(of_key) = listeners.of.get_mut(&self.key) {
            of_key.retain(|(number, _)| *number != self.number);
            if of_key.is_empty() {
                listeners.of.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_waiter_hears_of_what_it_waits_for_and_of_nothing_else() {
        let waiters = Waiters::default();
        let (one, two) = (waiters.register("one"), waiters.register("two"));
        let also_one = waiters.register("one");
        waiters.tell(&"one");
        let soon = Instant::now() + Duration::from_secs(5);
        assert!(one.news(soon) && also_one.news(soon));
        assert!(!two.news(Instant::now()));
        waiters.tell_all();
        assert!(two.news(soon));
    }

    #[test]
    fn bug_c_58_a_waiter_takes_itself_out_and_nothing_is_left_of_a_storm() {
        let waiters = Waiters::default();
        let storm: Vec<_> = (0..300).map(|n| waiters.register(n)).collect();
        let again = waiters.register(7);
        drop(storm);
        assert_eq!(waiters.lock().of.len(), 1);
        waiters.tell(&7);
        assert!(again.news(Instant::now() + Duration::from_secs(5)));
        drop(again);
        assert!(waiters.is_empty());
    }
}
