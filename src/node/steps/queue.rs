//! The bound of a namespace's requests, and the wait for the queue that gets it.

use std::hash::Hash;
use std::path::Path;
use std::time::{Duration, Instant};

use zvolt_kernel::error::Errno;
use zvolt_kernel::{SysError, nvme};

use super::super::waiters::Waiter;

/// Largest request, in KiB: a quarter of what nvmet-tcp takes at most, so that the target's scatter list
/// is a small allocation.
const MAX_REQUEST_KIB: u32 = 1024;
/// How long a queue may go unseen after it is registered.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Bounds the requests of the namespace `block`. `news` of it, whatever it is, is a reason to look again.
pub(super) fn bound<K: Eq + Hash>(
    sys: &Path,
    block: &str,
    news: &Waiter<K>,
    deadline: Instant,
) -> Result<(), SysError> {
    until_registered(news, deadline, || {
        nvme::bound_requests(sys, block, MAX_REQUEST_KIB)
    })
}

/// The one wait on this path that ends by time: of a path's queue, which is a hidden disk's, the kernel sends no uevent
/// (`device_add_disk`, block/genhd.c). It is needed where a head is live before its path is registered whole, and for as
/// long as that takes the kernel; to go on without the bound is to lose the first large write.
fn until_registered<K: Eq + Hash>(
    news: &Waiter<K>,
    deadline: Instant,
    mut bound: impl FnMut() -> Result<(), SysError>,
) -> Result<(), SysError> {
    loop {
        match bound() {
            Err(error) if error.errno == Errno::EAGAIN && Instant::now() < deadline => {
                tracing::debug!(%error, "looked for again");
                news.news((Instant::now() + LOOK_AGAIN).min(deadline));
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::waiters::Waiters;
    use super::*;

    fn wait(patience: Duration, mut outcomes: Vec<Errno>) -> (Result<(), SysError>, usize) {
        let waiter = Waiters::default().register("nvme0n1");
        let mut looks = 0;
        outcomes.reverse();
        let outcome = until_registered(&waiter, Instant::now() + patience, || {
            looks += 1;
            match outcomes.pop() {
                Some(errno) => Err(SysError::new("readdir", "nvme0n1", errno)),
                None => Ok(()),
            }
        });
        (outcome, looks)
    }

    #[test]
    fn a_queue_that_is_not_registered_yet_is_waited_for_and_nothing_else_is() {
        let long = Duration::from_secs(60);
        let (outcome, looks) = wait(long, vec![Errno::EAGAIN, Errno::EAGAIN]);
        outcome.expect("it came");
        assert_eq!(looks, 3);
        let (outcome, looks) = wait(long, vec![Errno::EAGAIN, Errno::ENODEV, Errno::EAGAIN]);
        assert_eq!(
            (outcome.expect_err("gone").errno, looks),
            (Errno::ENODEV, 2)
        );
    }

    #[test]
    fn rule_10_a_queue_that_never_comes_is_an_error_at_the_deadline() {
        let (outcome, _) = wait(Duration::from_millis(20), vec![Errno::EAGAIN; 1000]);
        assert_eq!(outcome.expect_err("never").errno, Errno::EAGAIN);
    }
}
