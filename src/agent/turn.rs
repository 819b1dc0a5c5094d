//! One at a time works on what hangs together in a pool.
//!
//! A promotion moves snapshots from one zvol to another. Two deletions at once could promote each other's
//! zvol for ever, and who looks for a snapshot everywhere could just miss it.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::observe::Failure;
use crate::model::volume::reason;

/// The pools whose turn is taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    taken: Mutex<HashSet<String>>,
    given_back: Condvar,
}

/// The turn of a pool, until dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    pool: String,
}

impl Turns {
    /// Takes the pool's turn, waiting for it until `deadline`.
    pub(super) fn take(&self, pool: &str, deadline: Instant) -> Result<Turn, Failure> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while taken.contains(pool) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::passing(
                    reason::BUSY,
                    format!(
                        "other snapshots or clones of pool {pool} are being worked on; this is next"
                    ),
                ));
            }
            taken = self
                .0
                .given_back
                .wait_timeout(taken, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        taken.insert(pool.to_owned());
        Ok(Turn {
            turns: self.clone(),
            pool: pool.to_owned(),
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let shared = &self.turns.0;
        let mut taken = shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&self.pool);
        shared.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_turn_is_one_pools_and_comes_round() {
        let turns = Turns::default();
        let soon = || Instant::now() + Duration::from_secs(20);
        let held = turns.take("tank", soon()).unwrap();
        assert_eq!(
            turns.take("tank", Instant::now()).unwrap_err().reason,
            reason::BUSY
        );
        drop(turns.take("other", Instant::now()).unwrap());
        let waiting = std::thread::spawn({
            let turns = turns.clone();
            move || turns.take("tank", soon()).map(drop)
        });
        drop(held);
        waiting.join().unwrap().unwrap();
    }
}
