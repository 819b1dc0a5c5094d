//! What a volume is: pure types and rules. Imports nothing of ours.

pub mod access;
pub mod capability;
pub mod capacity;
pub mod mkfs;
pub mod names;
pub mod object;
pub mod parameters;
pub mod placement;
pub mod publish;
pub mod snapshot;
pub mod storage_node;
mod values;
pub mod volume;

/// The driver's name, also the CSIDriver's and the API group.
pub const DRIVER_NAME: &str = "zfs.csi.randomvariable.co.uk";

/// Text of unknown origin, fit for a message: quoted, escaped, and cut at 64 characters.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(64) {
        Some((end, _)) => format!("{:?}… ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}
