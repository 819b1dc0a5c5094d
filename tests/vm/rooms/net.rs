//! Room `net` against the kernel's own policy rules.

use std::net::SocketAddr;
use std::process::Command;

use zvolt_kernel::net::{blackhole, is_blackholed, unblackhole};

/// What iproute2 shows of the family's rules.
fn rules(family: &str) -> String {
    let shown = Command::new("ip").args([family, "rule"]).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn a_portal_is_held_and_let_go_once_and_seen_to_be() {
    for (family, portal) in [("-4", "192.0.2.77:4420"), ("-6", "[2001:db8::77]:4420")] {
        let portal: SocketAddr = portal.parse().unwrap();
        let ip = portal.ip().to_string();
        let neighbour = SocketAddr::new(portal.ip(), 4421);
        assert!(!is_blackholed(portal).unwrap(), "{portal}");
        assert!(blackhole(portal).unwrap(), "{portal}");
        assert!(!blackhole(portal).unwrap(), "{portal}: once is enough");
        assert!(is_blackholed(portal).unwrap(), "{portal}");
        assert!(
            !is_blackholed(neighbour).unwrap(),
            "{portal}: one port alone"
        );
        let shown = rules(family);
        let ours = shown.lines().find(|line| line.contains(&ip));
        let ours = ours.unwrap_or_else(|| panic!("no rule of {ip} in:\n{shown}"));
        for word in ["sport 4420", "tcp", "blackhole"] {
            assert!(ours.contains(word), "{word} is missing in: {ours}");
        }
        assert!(unblackhole(portal).unwrap(), "{portal}");
        assert!(!unblackhole(portal).unwrap(), "{portal}: it was gone");
        assert!(!is_blackholed(portal).unwrap(), "{portal}");
        assert!(!rules(family).contains(&ip));
    }
}
