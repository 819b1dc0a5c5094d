//! Tier `vm`, first of all: what the lab promises to the other tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(
    clippy::disallowed_methods,
    reason = "the lab runs the host's tools and waits for machines; the driver's rules are not its own"
)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use zvolt_lab::{BOOT, Lab, Vm};

static LAB: LazyLock<Lab> = LazyLock::new(|| {
    Lab::attach().expect("these tests need a lab: run them by `cargo lab test vm`")
});

fn pings(from: &Vm, address: &str) -> bool {
    from.run(&format!(
        "exec 3<>/dev/tcp/{address}/22 && head -c 4 <&3 | grep -q SSH"
    ))
    .unwrap()
    .status
        == 0
}

#[test]
fn lab_a_command_has_its_status_and_both_outputs() {
    let vm = LAB.vm("node0");
    let output = vm.run("echo out; echo err >&2; exit 7").unwrap();
    assert_eq!(
        (
            output.status,
            output.stdout.as_str(),
            output.stderr.as_str()
        ),
        (7, "out\n", "err\n")
    );
    assert_eq!(vm.run("exit 255").unwrap().status, 255);
    let error = vm.ok("echo why >&2; exit 3").unwrap_err().to_string();
    assert!(
        error.contains("node0") && error.contains("status 3") && error.contains("why"),
        "{error}"
    );
}

#[test]
fn lab_thirty_commands_run_at_once() {
    let begin = Instant::now();
    thread::scope(|scope| {
        let all: Vec<_> = (0..30)
            .map(|n| {
                scope.spawn(move || LAB.vm("node0").ok(&format!("sleep 5; echo {n}")).unwrap())
            })
            .collect();
        for (n, one) in all.into_iter().enumerate() {
            assert_eq!(one.join().unwrap().trim(), n.to_string());
        }
    });
    assert!(
        begin.elapsed() < Duration::from_secs(100),
        "they ran one after the other"
    );
}

#[test]
fn lab_a_file_goes_there_and_back_with_its_mode() {
    let vm = LAB.vm("node1");
    let dir = tempfile::tempdir().unwrap();
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let bytes: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&there, &bytes).unwrap();
    fs::set_permissions(&there, fs::Permissions::from_mode(0o750)).unwrap();
    vm.put(&there, "/root/it's here").unwrap();
    assert_eq!(
        vm.ok("stat -c %a \"/root/it's here\"").unwrap().trim(),
        "750"
    );
    vm.get("/root/it's here", &back).unwrap();
    assert!(fs::read(&back).unwrap() == bytes);
    vm.ok("rm \"/root/it's here\"").unwrap();
}

#[test]
fn lab_a_forwarded_socket_outlives_the_program_behind_it() {
    let vm = LAB.vm("node0");
    let local = vm.forward("/run/systemd/journal/stdout").unwrap();
    assert_eq!(vm.forward("/run/systemd/journal/stdout").unwrap(), local);
    for word in ["first", "second"] {
        let mut stream = UnixStream::connect(&local).unwrap();
        // The journal's stream protocol: identifier, unit, level, three switches, then lines.
        write!(stream, "zvolt-lab\n\n6\n0\n0\n0\n0\nforwarded {word}\n").unwrap();
        drop(stream);
        vm.ok(&format!(
            "timeout 60 sh -c 'until journalctl -t zvolt-lab -o cat | grep -q \"forwarded {word}\"; do sleep 0.2; done'"
        ))
        .unwrap();
        vm.ok("systemctl restart systemd-journald").unwrap();
    }
    vm.unforward("/run/systemd/journal/stdout").unwrap();
    assert!(UnixStream::connect(&local).is_err());
}

#[test]
fn lab_a_cut_network_loses_everything_but_commands() {
    let (from, to) = (LAB.vm("node0"), LAB.vm("storage0"));
    for address in [to.ipv4(), to.ipv6()] {
        assert!(pings(from, address), "{address}");
    }
    to.cut_network().unwrap();
    let reached = from.run(&format!(
        "timeout 3 bash -c 'exec 3<>/dev/tcp/{}/22'",
        to.ipv4()
    ));
    let carrier = to.ok("cat /sys/class/net/lan0/carrier");
    to.restore_network().unwrap();
    assert_eq!(reached.unwrap().status, 124, "the connect must hang");
    assert_eq!(carrier.unwrap().trim(), "1");
    assert!(pings(from, to.ipv4()));
}

#[test]
fn lab_a_stopped_command_leaves_no_process() {
    let vm = LAB.vm("node0");
    let mut running = vm.spawn("sleep 7777 & sleep 8888").unwrap();
    vm.ok("timeout 60 sh -c 'until pgrep -fx \"sleep 8888\"; do sleep 0.1; done'")
        .unwrap();
    assert!(!running.is_done().unwrap());
    running.stop().unwrap();
    assert_ne!(vm.run("pgrep -fx 'sleep (7777|8888)'").unwrap().status, 0);
}

#[test]
fn lab_a_killed_machine_comes_back_with_what_it_had_on_disk() {
    let vm = LAB.vm("node1");
    let boot = vm.ok("cat /proc/sys/kernel/random/boot_id").unwrap();
    vm.ok("echo kept > /root/kept && sync /root/kept").unwrap();
    vm.kill().unwrap();
    assert!(
        vm.run("true").is_err(),
        "a machine that is off runs nothing"
    );
    vm.start().unwrap();
    vm.wait_ready(BOOT).unwrap();
    assert_ne!(vm.ok("cat /proc/sys/kernel/random/boot_id").unwrap(), boot);
    assert_eq!(vm.ok("cat /root/kept && rm /root/kept").unwrap(), "kept\n");
    let mut console = String::new();
    fs::File::open(vm.console_log_path())
        .unwrap()
        .read_to_string(&mut console)
        .unwrap();
    assert!(
        console.matches("zvolt-lab-ready").count() >= 2,
        "one console for all boots"
    );
}

#[test]
fn lab_no_way_out_but_the_private_network() {
    let vm = LAB.vm("node0");
    assert_eq!(
        vm.ok("ip route show default; ip -6 route show default")
            .unwrap(),
        ""
    );
}
