//! What a volume is: pure types and rules. Imports nothing of ours.

pub mod capacity;
pub mod names;
pub mod parameters;
pub mod publish;
pub mod volume;

/// The driver's name, also the CSIDriver's and the API group.
pub const DRIVER_NAME: &str = "zfs.csi.randomvariable.co.uk";
