//! What dies and comes back: the API server, the agent, a controller.

use std::thread;
use std::time::{Duration, Instant};

use tonic::{Code, Status};
use zvolt_lab::orchestrator::{Csi, Wanted};

use super::fixture::{Cluster, Controller};
use crate::plane::plane;

/// A call that may be late, or find nobody there, and says so by its deadline.
fn ended_in_time<T>(patience: Duration, call: impl FnOnce() -> Result<T, Status>) -> Option<T> {
    let begin = Instant::now();
    let outcome = call();
    let took = begin.elapsed();
    assert!(took < patience + Duration::from_secs(2), "{took:?}");
    match outcome {
        Ok(answer) => Some(answer),
        Err(status) => {
            let code = status.code();
            assert!(
                matches!(code, Code::DeadlineExceeded | Code::Unavailable),
                "{status}"
            );
            None
        }
    }
}

/// As an orchestrator does: again until it is done.
fn persist<T>(call: impl Fn() -> Result<T, Status>) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        match call() {
            Ok(answer) => return answer,
            Err(status) => assert!(Instant::now() < end, "{status}"),
        }
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn outage_api_server_under_io() {
    const PATIENCE: Duration = Duration::from_secs(5);
    let cluster = Cluster::fresh();
    let volume = cluster.create("pvc-busy");
    volume.bring_to("node0");
    let writer = volume.writer("node0");
    writer.goes_on();
    let controller: &Csi = &cluster.controller.csi;
    let late = controller.within(PATIENCE);
    plane().kill_api_server().unwrap();
    let wanted = Wanted::named("pvc-late");
    assert!(ended_in_time(PATIENCE, || late.create(&wanted)).is_none());
    assert!(ended_in_time(PATIENCE, || late.controller_unpublish(&volume.id, "node1")).is_none());
    writer.goes_on();
    plane().start_api_server().unwrap();
    let made = persist(|| controller.create(&wanted));
    writer.goes_on();
    writer.finish();
    persist(|| controller.delete(&made.volume_id));
    volume.take_from("node0");
    volume.delete();
    cluster.assert_clean();
}

#[test]
fn outage_api_server_in_the_midst_of_calls() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let cluster = Cluster::fresh();
    let controller = &cluster.controller.csi.within(PATIENCE);
    // Each call is met at another moment.
    for (round, delay) in [0_u64, 150, 400, 900, 2000].into_iter().enumerate() {
        let wanted = Wanted::named(&format!("pvc-midst-{round}"));
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                ended_in_time(PATIENCE, || controller.create(&wanted));
            });
            thread::sleep(Duration::from_millis(delay));
            plane().kill_api_server().unwrap();
            plane().start_api_server().unwrap();
            call.join().unwrap();
        });
        let id = persist(|| controller.create(&wanted)).volume_id;
        let first = persist(|| controller.controller_publish(&id, "node0", "ext4"));
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                ended_in_time(PATIENCE, || controller.controller_unpublish(&id, "node0"));
            });
            thread::sleep(Duration::from_millis(delay / 4));
            plane().kill_api_server().unwrap();
            plane().start_api_server().unwrap();
            call.join().unwrap();
        });
        persist(|| controller.controller_unpublish(&id, "node0"));
        assert!(first.contains_key("nqn"), "{first:?}");
        persist(|| controller.delete(&id));
    }
    cluster.assert_clean();
}

#[test]
fn outage_agent_killed_and_started_again() {
    let cluster = Cluster::fresh();
    let volume = cluster.create("pvc-agent");
    volume.bring_to("node0");
    let writer = volume.writer("node0");
    writer.goes_on();
    cluster.agent.kill().unwrap();
    writer.goes_on();
    // Asked for while there is no agent: it is done by the next.
    let wanted = Wanted::named("pvc-meanwhile");
    let second = Controller::start(&cluster.release);
    thread::scope(|scope| {
        let call = scope.spawn(|| second.csi.create(&wanted));
        thread::sleep(Duration::from_secs(1));
        cluster.agent.start().unwrap();
        call.join().unwrap().expect("made by the agent that came");
    });
    writer.goes_on();
    writer.finish();
    // Another controller goes on with what this one began.
    drop(second);
    cluster.controller.csi.delete("pvc-meanwhile").unwrap();
    volume.take_from("node0");
    volume.delete();
    cluster.assert_clean();
}
