//! How many volumes fit on a node.

use std::path::Path;

use super::Node;

/// Where the kernel says which local ports connections may have.
const PORT_RANGE: &str = "sys/net/ipv4/ip_local_port_range";
/// The kernel's default range, 32768 to 60999.
const DEFAULT_PORTS: u32 = 28_232;

impl Node {
    /// How many volumes fit on this node: what its operator says, else what its local ports allow.
    ///
    /// Each volume is one controller: a connection for its admin queue and one for each I/O queue, all to one portal in the
    /// worst case, where no two can have the same local port. Half of the ports are left to connections that have ended
    /// (TIME_WAIT after a reconnect of all) and to everybody else. The kernel's other limits, a million controllers and
    /// a million block devices, lie far above.
    pub fn max_volumes(&self) -> u32 {
        self.config.max_volumes.unwrap_or_else(|| {
            let queues = self.config.nr_io_queues.unwrap_or_else(|| {
                std::thread::available_parallelism()
                    .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
            });
            volumes(ports(&self.config.roots.proc), queues)
        })
    }
}

fn volumes(ports: u32, nr_io_queues: u32) -> u32 {
    (ports / 2 / nr_io_queues.saturating_add(1)).max(1)
}

fn ports(proc: &Path) -> u32 {
    let text = std::fs::read_to_string(proc.join(PORT_RANGE)).unwrap_or_default();
    let mut range = text.split_whitespace().map(str::parse::<u32>);
    match (range.next(), range.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => last - first + 1,
        _ => DEFAULT_PORTS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_c_104_a_node_takes_as_many_volumes_as_it_has_ports_for_their_connections() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(ports(proc.path()), DEFAULT_PORTS);
        let file = proc.path().join(PORT_RANGE);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "32768\t60999\n").unwrap();
        assert_eq!(volumes(ports(proc.path()), 4), 2823);
        std::fs::write(&file, "50000\t50009\n").unwrap();
        assert_eq!(volumes(ports(proc.path()), 4), 1);
        std::fs::write(&file, "9 1\n").unwrap();
        assert_eq!(ports(proc.path()), DEFAULT_PORTS);
        assert_eq!(volumes(28_232, u32::MAX), 1);
    }
}
