//! Tier `vm`, inside one machine with ZFS and nvmet: each kernel room against the real kernel.
