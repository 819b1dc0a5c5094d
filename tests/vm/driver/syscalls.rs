//! What the node process asks of the kernel on the publish path, as strace sees it.

use std::time::Duration;

use zvolt_lab::orchestrator::Wanted;

use crate::fleet::Fleet;

/// Traces the driver on node0 while `work` runs; gives strace's lines.
fn traced(fleet: &Fleet, work: impl FnOnce()) -> String {
    let vm = fleet.vm("node0");
    vm.ok("rm -f /tmp/trace; systemd-run --quiet --collect --unit=trace strace -f -y -T -o /tmp/trace -p $(pgrep -x zvolt)")
        .unwrap();
    // strace has attached once the kernel says so.
    vm.ok("until grep -q 'TracerPid:.[1-9]' /proc/$(pgrep -x zvolt)/status; do :; done")
        .unwrap();
    work();
    vm.ok("systemctl kill -s INT trace; timeout 10 pidwait -x strace; cat /tmp/trace")
        .unwrap()
}

#[test]
fn stage_and_publish_fork_sleep_sync_and_scan_nothing() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-trace"));
    let context = volume.attach("node0").unwrap();
    let trace = traced(&fleet, || {
        volume.stage("node0", &context).unwrap();
        volume.publish("node0", &context, false).unwrap();
    });
    assert!(
        trace.contains("/dev/nvme-fabrics"),
        "the trace saw the connect:\n{trace}"
    );
    assert!(
        trace.contains("move_mount("),
        "the trace saw the mount:\n{trace}"
    );
    for banned in [
        "execve(",
        "fork(",
        "vfork(",
        "nanosleep(",
        "fsync(",
        "fdatasync(",
        "syncfs(",
        " sync(",
        "/proc/self/mountinfo",
        "/proc/mounts",
        "/mountinfo",
        "/proc/self/mounts",
    ] {
        let lines: Vec<_> = trace.lines().filter(|l| l.contains(banned)).collect();
        assert!(
            lines.is_empty(),
            "{banned} on the publish path:\n{}",
            lines.join("\n")
        );
    }
    // A thread is no process: clone with CLONE_THREAD may happen, anything else may not.
    let forks: Vec<_> = trace
        .lines()
        .filter(|l| l.contains(" clone(") || l.contains(" clone3("))
        .filter(|l| !l.contains("CLONE_THREAD"))
        .collect();
    assert!(forks.is_empty(), "{}", forks.join("\n"));
    volume.take_from("node0");
    volume.delete();
    fleet.assert_clean();
}

/// The namespace is disabled while the node waits for it: nothing but its uevent can end the wait,
/// and until then no thread of the driver wakes up to look.
#[test]
fn the_wait_for_the_namespace_is_woken_by_its_uevent() {
    let fleet = Fleet::fresh();
    let volume = fleet.create(&Wanted::named("pvc-wake"));
    let context = volume.attach("node0").unwrap();
    let enable = format!(
        "/sys/kernel/config/nvmet/subsystems/{}/namespaces/1/enable",
        context["nqn"]
    );
    fleet
        .vm("storage0")
        .ok(&format!("echo 0 > {enable}"))
        .unwrap();
    let trace = traced(&fleet, || {
        std::thread::scope(|scope| {
            let stage = scope.spawn(|| volume.stage("node0", &context));
            // Three quiet seconds between the connect and the namespace.
            fleet
                .vm("node0")
                .ok("until grep -qs live /sys/class/nvme/nvme*/state; do :; done; echo quiet-begin > /dev/null; sleep 3")
                .unwrap();
            assert!(!stage.is_finished(), "there is no namespace yet");
            fleet
                .vm("storage0")
                .ok(&format!("echo 1 > {enable}"))
                .unwrap();
            stage.join().unwrap().unwrap();
        });
    });
    // The wait itself: a futex that is entered once and left once, more than two seconds later.
    let waits: Vec<_> = trace
        .lines()
        .filter(|l| l.contains("futex") && duration(l) > Duration::from_secs(2))
        .collect();
    assert!(
        !waits.is_empty(),
        "one long wait, not many short ones:\n{trace}"
    );
    let woken = trace
        .lines()
        .filter(|l| l.contains("recvmsg(") || l.contains("recvfrom("))
        .any(|l| l.contains("nvme") && l.contains("add@"));
    assert!(woken, "the namespace's uevent was received:\n{trace}");
    let timed_out: Vec<_> = trace.lines().filter(|l| l.contains("ETIMEDOUT")).collect();
    assert!(
        timed_out.is_empty(),
        "a timed poll:\n{}",
        timed_out.join("\n")
    );
    volume.unstage("node0").unwrap();
    volume.detach("node0").unwrap();
    volume.delete();
    fleet.assert_clean();
}

/// The time in the `<…>` that strace -T ends a line with.
fn duration(line: &str) -> Duration {
    line.rsplit_once('<')
        .and_then(|(_, rest)| rest.strip_suffix('>'))
        .and_then(|seconds| seconds.parse().ok())
        .map_or(Duration::ZERO, Duration::from_secs_f64)
}
