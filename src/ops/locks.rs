//! One operation a volume at a time: the second call is refused (CSI: ABORTED), never queued.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The volumes that are busy.
#[derive(Debug, Clone, Default)]
pub struct Locks(Arc<Mutex<HashSet<String>>>);

/// Holds a volume until dropped. Owned by the thread that does the work, so that a call whose client has
/// gone keeps its volume until the kernel lets go.
#[derive(Debug)]
pub struct Held {
    locks: Locks,
    volume: String,
}

impl Locks {
    /// Takes the volume; `None` when it is busy.
    pub fn take(&self, volume: &str) -> Option<Held> {
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        busy.insert(volume.to_owned()).then(|| Held {
            locks: self.clone(),
            volume: volume.to_owned(),
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut busy = self.locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        busy.remove(&self.volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_volume_is_refused_and_others_are_not() {
        let locks = Locks::default();
        let held = locks.take("a").expect("free");
        assert!(locks.take("a").is_none());
        assert!(locks.take("b").is_some());
        drop(held);
        assert!(locks.take("a").is_some());
    }
}
