//! The checks that may be skipped. Any other skip is a failure: the driver does not say that it can do
//! what this project wants of it.

/// A check of csi-test by its whole text, and why a driver that lacks nothing may skip it.
const OPTIONAL: [(&str, &str); 3] = [
    (
        "Controller Service [Controller Server] ListVolumes pagination should detect volumes added between \
         pages and accept tokens when the last volume from a page is deleted",
        "csi-test itself has it switched off; CSI promises nothing about volumes that come or go between pages",
    ),
    (
        "Controller Service [Controller Server] ControllerPublishVolume should fail when publishing more \
         volumes than the node max attach limit",
        "max_volumes_per_node is OPTIONAL, and csi-test would have to attach as many volumes as it says",
    ),
    (
        "CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility \
         requirements",
        "the plugin capability SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is optional, and alpha",
    ),
];

/// Why this check may be skipped, if it may.
pub(super) fn reason(check: &str) -> Option<&'static str> {
    OPTIONAL
        .iter()
        .find(|(text, _)| *text == check)
        .map(|(_, why)| *why)
}

/// The checks that may be skipped, by their texts.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    OPTIONAL.iter().map(|(text, _)| *text)
}
