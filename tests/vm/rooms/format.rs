//! Rooms `format`, `probe` and `block` with this machine's kernel and tools, device mapper among them:
//! the same tests as in the tier `host`, with nothing left out for want of a privilege.

#[path = "../../host/format.rs"]
pub(super) mod host;
