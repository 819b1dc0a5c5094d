//! Admitting a host, by the target's configfs alone.

use anyhow::Result;
use zvolt_kernel::nvmet::Target;

use crate::sample::{Sample, Side, Watch};

/// Makes the host and allows it.
pub fn admit(target: &Target, nqn: &str, host_nqn: &str) -> Result<Sample> {
    let mut watch = Watch::start();
    target.allow_host(nqn, host_nqn)?;
    watch.step("nvmet.allow-host");
    Ok(watch.stop(Side::Floor, "admit"))
}

/// Takes it out again.
pub fn expel(target: &Target, nqn: &str, host_nqn: &str) -> Result<()> {
    target.disallow_host(nqn, host_nqn)?;
    target.remove_host(host_nqn)?;
    Ok(())
}
