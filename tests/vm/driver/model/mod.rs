//! Thousands of random calls by several orchestrators, with the drivers killed in between, against the
//! real kernels; each answer and each byte is compared with a pure model, and at the end nothing is left.
//!
//! The seed is printed. `ZVOLT_MODEL_SEED` plays one again (the calls of each orchestrator are the same;
//! how they meet is chance), `ZVOLT_MODEL_OPS` says how many calls.

mod client;
mod world;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use zvolt_lab::fleet::Member;
use zvolt_lab::orchestrator::Csi;

use self::client::Client;
use self::world::{NODES, World};
use crate::fleet::{Fleet, lab};

const ORCHESTRATORS: usize = 4;
/// Calls of all orchestrators together, without those of the teardown.
const OPS: usize = 2_000;
/// A process is killed after so many calls.
const KILL_EVERY: usize = 60;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is {text:?}: a number is needed")),
    )
}

#[test]
fn model_two_thousand_random_calls_with_kills_in_between() {
    let seed = number("ZVOLT_MODEL_SEED").unwrap_or_else(|| rand::rng().random());
    let ops = number("ZVOLT_MODEL_OPS").map_or(OPS, |n| usize::try_from(n).expect("a count"));
    eprintln!("seed: ZVOLT_MODEL_SEED={seed}, {ops} calls");
    let fleet = Fleet::fresh();
    let storage = fleet
        .storage
        .csi()
        .expect("the storage host's driver answers");
    let mut nodes: HashMap<&'static str, Csi> = fleet.nodes.clone();
    nodes.insert(NODES[0], storage);
    let (done, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (tick, ticks) = mpsc::channel();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..ORCHESTRATORS)
            .map(|n| {
                let (tick, nodes, fleet) = (tick.clone(), &nodes, &fleet);
                let (done, failed) = (&done, &failed);
                scope.spawn(move || {
                    let client = Client {
                        controller: &fleet.controller,
                        nodes,
                        world: World::new(format!("m{n}")),
                    };
                    let rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(n as u64));
                    let share = ops.div_ceil(ORCHESTRATORS);
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        live(client, rng, share, done, failed, &tick)
                    }));
                    if outcome.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        drop(tick);
        let kills = kill(ChaCha8Rng::seed_from_u64(!seed), &ticks);
        let outcomes: Vec<_> = clients
            .into_iter()
            .map(|c| c.join().expect("caught"))
            .collect();
        eprintln!("{} calls, {kills} kills", done.load(Ordering::Relaxed));
        for outcome in outcomes {
            outcome.unwrap_or_else(|_| panic!("see above; replay with ZVOLT_MODEL_SEED={seed}"));
        }
        assert!(done.load(Ordering::Relaxed) >= ops);
        assert!(kills >= ops / KILL_EVERY / 2, "{kills} kills");
    });
    fleet.assert_clean();
}

/// One orchestrator's calls, and its teardown.
fn live(
    mut client: Client<'_>,
    mut rng: ChaCha8Rng,
    share: usize,
    done: &AtomicUsize,
    failed: &AtomicBool,
    tick: &mpsc::Sender<()>,
) {
    for _ in 0..share {
        if failed.load(Ordering::Relaxed) {
            return;
        }
        let op = client.world.choose(&mut rng);
        client.run(&op);
        done.fetch_add(1, Ordering::Relaxed);
        let _ = tick.send(());
    }
    for op in client.world.teardown(&mut rng) {
        client.run(&op);
    }
}

/// Kills a process now and then, and starts it again, until all orchestrators are done; gives how often.
fn kill(mut rng: ChaCha8Rng, ticks: &mpsc::Receiver<()>) -> usize {
    let members = [
        Member::storage(lab()),
        Member::node(lab(), "node0"),
        Member::node(lab(), "node1"),
    ];
    let (mut calls, mut kills) = (0_usize, 0);
    while ticks.recv().is_ok() {
        calls += 1;
        if calls.is_multiple_of(KILL_EVERY) {
            let member = &members[rng.random_range(0..members.len())];
            eprintln!("after {calls} calls: kill {}", member.vm().name());
            member.kill().expect("it can be killed");
            member.start().expect("it starts again");
            kills += 1;
        }
    }
    kills
}
