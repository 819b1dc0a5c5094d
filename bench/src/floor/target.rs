//! Admitting a host and expelling it, by the target's configfs alone.

use anyhow::Result;
use zvolt_kernel::nvmet::{SubsystemSpec, Target};

use crate::sample::{Sample, Side, Watch};

/// Makes the host and allows it, and takes it away again, to a subsystem of the floor's own: the driver takes hosts that it does not know out of
/// its subsystems.
pub fn admit_to_scratch(target: &Target, host_nqn: &str) -> Result<Vec<Sample>> {
    let scratch = SubsystemSpec {
        nqn: "nqn.2014-08.org.nvmexpress:bench-floor".into(),
        serial: "zvolt-bench".into(),
        model: "zvolt".into(),
    };
    target.converge_subsystem(&scratch)?;
    let mut watch = Watch::start();
    target.allow_host(&scratch.nqn, host_nqn)?;
    watch.step("nvmet.allow-host");
    let admitted = watch.stop(Side::Floor, "admit");
    let mut watch = Watch::start();
    target.disallow_host(&scratch.nqn, host_nqn)?;
    target.remove_host(host_nqn)?;
    watch.step("nvmet.disallow-host");
    let expelled = watch.stop(Side::Floor, "expel");
    target.remove_subsystem(&scratch.nqn)?;
    Ok(vec![admitted, expelled])
}
