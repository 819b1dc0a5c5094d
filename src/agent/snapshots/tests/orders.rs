//! Rule 6, by trying everything: all orders in which a few volumes and snapshots are made from each other and
//! deleted, with the agent killed before every act. After each step the scene checks that all that was promised is
//! there with what it held, and that nothing is left that nobody wants.

use std::collections::BTreeSet;

use super::scene::{Life, Op, Order, Scene};

/// Every scene that can be reached with so many volumes and snapshots ever made.
fn reachable(volumes: usize, snapshots: usize) -> Vec<Scene> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    let mut open = vec![Scene::new()];
    while let Some(scene) = open.pop() {
        if !seen.insert(scene.picture()) {
            continue;
        }
        let ops = scene.ops(volumes, snapshots);
        open.extend(ops.iter().map(|op| scene.after(op, Life::Long).unwrap()));
        all.push(scene);
    }
    all
}

fn in_runtime(test: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    test();
}

#[test]
fn rule_06_every_order_of_deletion_loses_nothing_and_leaves_nothing() {
    in_runtime(|| {
        let all = reachable(3, 2);
        println!("{} scenes", all.len());
        assert!(all.len() > 500, "{}", all.len());
        let is_empty = |s: &&Scene| s.volumes.is_empty() && s.snapshots.is_empty();
        let ends: Vec<_> = all.iter().filter(is_empty).collect();
        assert!(ends.iter().all(|s| s.world.zvols.is_empty()));
        let is_kept = |s: &&Scene| s.world.zvols.keys().any(|z| z.contains("/deleted/"));
        assert!(all.iter().any(|s| is_kept(&s)), "some are kept for a while");
    });
}

#[test]
fn crash_rule_06_every_order_with_the_agent_killed_before_every_act() {
    in_runtime(|| {
        let mut kills = 0;
        for scene in reachable(3, 1) {
            for op in scene.ops(3, 1) {
                for order in [Order::ByName, Order::Reversed] {
                    for act in 0.. {
                        let life = Life::Killed(act, order, None);
                        if scene.after(&op, life).is_none() {
                            break;
                        }
                        kills += 1;
                    }
                }
            }
        }
        println!("{kills} kills");
        assert!(kills > 1000, "{kills}");
    });
}

/// What was half made is deleted, or what it was made from, while no agent runs.
#[test]
fn crash_rule_06_a_deletion_that_meets_what_is_half_made() {
    in_runtime(|| {
        let mut kills = 0;
        for scene in reachable(3, 1) {
            let making = |op: &Op| matches!(op, Op::Take(_) | Op::Clone(_) | Op::Restore(..));
            for op in scene.ops(3, 1).into_iter().filter(making) {
                let made = match op {
                    Op::Take(_) => Op::DeleteSnapshot(format!("s{}", scene.snapshots_made)),
                    _ => Op::DeleteVolume(format!("v{}", scene.volumes_made)),
                };
                let mut deletions = scene.ops(0, 0);
                deletions.push(made);
                for deletion in &deletions {
                    for order in [Order::ByName, Order::Reversed] {
                        // What comes after its first acts is the same as for any volume.
                        for act in 1..4 {
                            let life = Life::Killed(act, order, Some(deletion));
                            kills += usize::from(scene.after(&op, life).is_some());
                        }
                    }
                }
            }
        }
        println!("{kills} kills");
        assert!(kills > 1000, "{kills}");
    });
}

#[test]
fn rule_06_two_deletions_at_once() {
    in_runtime(|| {
        for scene in reachable(3, 1) {
            let deletions: Vec<Op> = scene
                .ops(0, 0)
                .into_iter()
                .filter(|op| matches!(op, Op::DeleteVolume(_) | Op::DeleteSnapshot(_)))
                .collect();
            for one in &deletions {
                for other in &deletions {
                    if one != other {
                        let both = [one.clone(), other.clone()];
                        scene.after_all(&both, Life::Long).unwrap();
                    }
                }
            }
        }
    });
}
