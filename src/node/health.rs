//! What is wrong with a volume, or with this node's way to the storage, as the kernel has it. Looks only.

use std::os::fd::AsFd;
use std::path::Path;

use zvolt_kernel::mount::{self, Options};
use zvolt_kernel::nvme;
use zvolt_kernel::preflight::{self, Finding};

use crate::model::names;

use super::observe::{At, Link, Source, Volume};
use super::{Error, Node, not_there};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It works, but less than it should.
    Degraded,
    /// It does not work.
    Inaccessible,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// How bad it is.
    pub severity: Severity,
    /// A name in CamelCase; with the severity it is unique in one answer.
    pub reason: String,
    /// What was found and what to do.
    pub message: String,
}

impl Trouble {
    fn new(severity: Severity, reason: &str, message: impl Into<String>) -> Self {
        Self {
            severity,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// What is known of a volume.
#[derive(Debug)]
struct State {
    at: At,
    /// The volume as it is mounted, bound or attached.
    volume: Option<Volume>,
    /// Our controllers of its subsystem.
    controllers: Vec<nvme::Controller>,
    /// Of its filesystem, when it is mounted.
    mounted: Option<Mounted>,
}

/// What is known of a mounted filesystem.
#[derive(Debug)]
struct Mounted {
    options: Options,
    /// Whether it answers `statx`.
    answers: bool,
    /// Errors that an ext4 has counted.
    errors: u64,
}

impl Node {
    /// What is wrong with the volume on this node; nothing, when it is well. Either path may be missing.
    ///
    /// `NotFound` when there is no trace of it on this node.
    pub fn health(
        &self,
        volume: &str,
        publish_path: Option<&Path>,
        staging_path: Option<&Path>,
    ) -> Result<Vec<Trouble>, Error> {
        let mut state = State {
            at: At::Nothing,
            volume: None,
            controllers: self.devices.controllers(&names::subsystem_nqn(volume))?,
            mounted: None,
        };
        // The staged mount is the volume's own; the published one is only looked at where that is not known.
        for path in [staging_path, publish_path].into_iter().flatten() {
            if !matches!(state.at, At::Mount(_) | At::Device(_)) {
                self.look_at(volume, path, &mut state)?;
            }
        }
        if state.volume.is_none() {
            state.volume = self.observer().attached(volume)?;
        }
        judge(volume, &state).ok_or_else(|| {
            let path = publish_path.or(staging_path);
            not_there(volume, path.unwrap_or(Path::new("any path of this node")))
        })
    }

    fn look_at(&self, volume: &str, path: &Path, state: &mut State) -> Result<(), Error> {
        let Ok(place) = self.present(volume, path) else {
            return Ok(());
        };
        state.at = self.observer().at(&place)?;
        let (At::Mount(found) | At::Device(found)) = &state.at else {
            return Ok(());
        };
        match &found.source {
            Source::Volume(found) if found.owner.is(volume) => {
                state.volume = Some(found.clone());
            }
            Source::Gone => {}
            _ => {
                state.at = At::Nothing; // another volume's
                return Ok(());
            }
        }
        if let (At::Mount(_), Some(found)) = (&state.at, &state.volume) {
            let roots = &self.config.roots;
            let seen = mount::state_at(place.parent.as_fd(), &place.name)?;
            state.mounted = Some(Mounted {
                options: mount::options_at(&roots.proc, place.parent.as_fd(), &place.name)?,
                answers: seen.is_none_or(|seen| seen.answers),
                errors: mount::ext4_errors(&roots.sys, &found.block)?.unwrap_or(0),
            });
        }
        Ok(())
    }

    /// What is wrong with this node's way to the storage; nothing, when it is well.
    pub fn storage_health(&self) -> Result<Vec<Trouble>, Error> {
        let mut controllers = Vec::new();
        for nqn in self.devices.subsystems() {
            controllers.extend(self.devices.controllers(&nqn)?);
        }
        let findings = preflight::node(&self.config.roots, &self.config.kubelet_dir);
        Ok(judge_storage(findings, &controllers))
    }
}

/// `None` when there is no trace of the volume.
fn judge(volume: &str, state: &State) -> Option<Vec<Trouble>> {
    use Severity::{Degraded, Inaccessible};
    if matches!(&state.at, At::Mount(m) | At::Device(m) if m.source == Source::Gone) {
        return Some(vec![Trouble::new(
            Inaccessible,
            "DeviceGone",
            format!(
                "the device of volume {volume} is gone: its target refused this node, or its controller was deleted. \
                 What is mounted from it never works again: stop the pods that use it; staged again, the volume is \
                 connected anew"
            ),
        )]);
    }
    let Some(found) = &state.volume else {
        // Nothing is attached; a stage that waits or has failed leaves its controllers.
        let troubles = not_live(volume, &state.controllers).or_else(|| {
            (!state.controllers.is_empty()).then(|| {
                Trouble::new(
                    Inaccessible,
                    "NamespaceMissing",
                    format!(
                        "connected to the subsystem of volume {volume}, which shows no namespace: on the storage host, \
                         see enable of its namespace in /sys/kernel/config/nvmet"
                    ),
                )
            })
        });
        return troubles.map(|trouble| vec![trouble]);
    };
    let mut troubles = Vec::new();
    if let Link::Fabric { controllers, .. } = &found.link {
        troubles.extend(not_live(volume, controllers));
    }
    if let Some(mounted) = &state.mounted {
        let device = &found.block;
        if !mounted.answers {
            troubles.push(Trouble::new(
                Inaccessible,
                "FilesystemShutDown",
                format!(
                    "the filesystem on /dev/{device} has shut down after an error (dmesg): unpublish and unstage the \
                     volume, then stage it again"
                ),
            ));
        }
        if mounted.options.filesystem_is_read_only() && !mounted.options.mount_is_read_only() {
            troubles.push(Trouble::new(
                Degraded,
                "FilesystemReadOnly",
                format!(
                    "the kernel has made the filesystem on /dev/{device} read-only after an error (dmesg): unpublish and \
                     unstage the volume, then stage it again"
                ),
            ));
        }
        if mounted.errors > 0 {
            troubles.push(Trouble::new(
                Degraded,
                "FilesystemErrors",
                format!(
                    "the ext4 on /dev/{device} has counted {} errors: unpublish the volume everywhere, then run e2fsck -p \
                     on its zvol on the storage host",
                    mounted.errors
                ),
            ));
        }
    }
    Some(troubles)
}

/// The trouble of having controllers of which none is live.
fn not_live(volume: &str, controllers: &[nvme::Controller]) -> Option<Trouble> {
    if controllers.is_empty() || controllers.iter().any(|c| c.state == "live") {
        return None;
    }
    let states: Vec<_> = controllers
        .iter()
        .map(|c| format!("{} ({}) is {}", c.name, c.address, c.state))
        .collect();
    Some(Trouble::new(
        Severity::Inaccessible,
        "ControllerNotLive",
        format!(
            "volume {volume} waits for its target: {}; the kernel goes on trying. Is the storage host up and reachable?",
            states.join(", ")
        ),
    ))
}

fn judge_storage(findings: Vec<Finding>, controllers: &[nvme::Controller]) -> Vec<Trouble> {
    let mut troubles: Vec<_> = findings
        .into_iter()
        .map(|finding| {
            Trouble::new(
                Severity::Inaccessible,
                &camel_case(&finding.check),
                format!("{}: {}", finding.problem, finding.remedy),
            )
        })
        .collect();
    let dead: Vec<_> = controllers.iter().filter(|c| c.state != "live").collect();
    if let Some(first) = dead.first() {
        let severity = match dead.len() == controllers.len() {
            true => Severity::Inaccessible,
            false => Severity::Degraded,
        };
        let message = format!(
            "{} of {} connections are not live, {} to {} among them; the kernel goes on trying. Are the storage hosts up \
             and reachable?",
            dead.len(),
            controllers.len(),
            first.name,
            first.address
        );
        troubles.push(Trouble::new(severity, "ControllersNotLive", message));
    }
    troubles
}

/// `module.nvme_tcp` as `ModuleNvmeTcp`.
fn camel_case(check: &str) -> String {
    let words = check.split(['.', '_', '-', ' ']);
    let mut name = String::with_capacity(check.len());
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.extend(letters);
    }
    name
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use zvolt_kernel::block::DevId;

    use super::super::observe;
    use super::super::owner::Owner;
    use super::*;

    fn controller(state: &str) -> nvme::Controller {
        nvme::Controller {
            name: "nvme0".into(),
            state: state.into(),
            transport: "tcp".into(),
            address: "traddr=10.0.0.1,trsvcid=4420".into(),
            subsystem_nqn: names::subsystem_nqn("pvc-1"),
            host_nqn: names::host_nqn("node0"),
        }
    }

    fn volume(state: &str) -> Volume {
        Volume {
            owner: Owner::Handle("pvc-1".into()),
            block: "nvme0n1".into(),
            link: Link::Fabric {
                namespace: nvme::Namespace {
                    block: "nvme0n1".into(),
                    uuid: Some(Uuid::from_u128(1)),
                    nguid: None,
                    nsid: 1,
                },
                controllers: vec![controller(state)],
            },
        }
    }

    fn mounted(source: Source) -> At {
        At::Mount(observe::Mounted {
            dev: DevId {
                major: 259,
                minor: 0,
            },
            source,
        })
    }

    fn filesystem(mount: &str, filesystem: &str) -> Mounted {
        Mounted {
            options: Options {
                mount: mount.into(),
                filesystem: filesystem.into(),
            },
            answers: true,
            errors: 0,
        }
    }

    fn staged(state: &str, of_mount: Mounted) -> State {
        State {
            at: mounted(Source::Volume(volume(state))),
            volume: Some(volume(state)),
            controllers: vec![controller(state)],
            mounted: Some(of_mount),
        }
    }

    fn troubles(state: &State) -> Vec<(Severity, String)> {
        let found = judge("pvc-1", state).expect("a trace of it");
        for trouble in &found {
            assert!(trouble.message.len() < 1024, "{trouble:?}");
        }
        found.into_iter().map(|t| (t.severity, t.reason)).collect()
    }

    #[test]
    fn a_volume_that_is_well_has_no_troubles() {
        assert_eq!(troubles(&staged("live", filesystem("rw", "rw"))), []);
        assert_eq!(troubles(&staged("live", filesystem("ro", "ro"))), []);
    }

    #[test]
    fn a_target_that_does_not_answer_makes_it_inaccessible() {
        let state = staged("connecting", filesystem("rw", "rw"));
        assert_eq!(
            troubles(&state),
            [(Severity::Inaccessible, "ControllerNotLive".into())]
        );
    }

    #[test]
    fn bug_c_111_what_the_kernel_made_read_only_is_told() {
        let mut state = staged("live", filesystem("rw", "ro,errors=remount-ro"));
        let read_only = (Severity::Degraded, "FilesystemReadOnly".to_owned());
        assert_eq!(troubles(&state), std::slice::from_ref(&read_only));
        if let Some(mounted) = &mut state.mounted {
            mounted.errors = 2;
        }
        let errors = (Severity::Degraded, "FilesystemErrors".into());
        assert_eq!(troubles(&state), [read_only, errors]);
        let mut state = staged("live", filesystem("rw", "rw"));
        if let Some(mounted) = &mut state.mounted {
            mounted.answers = false;
        }
        assert_eq!(
            troubles(&state),
            [(Severity::Inaccessible, "FilesystemShutDown".into())]
        );
    }

    #[test]
    fn bug_c_51_a_mount_that_outlived_its_device_is_inaccessible() {
        let state = State {
            at: mounted(Source::Gone),
            volume: None,
            controllers: vec![],
            mounted: None,
        };
        assert_eq!(
            troubles(&state),
            [(Severity::Inaccessible, "DeviceGone".into())]
        );
    }

    #[test]
    fn a_stage_that_failed_is_told_by_its_controllers_and_no_trace_is_no_volume() {
        let state = |controllers| State {
            at: At::Directory,
            volume: None,
            controllers,
            mounted: None,
        };
        let reason = |state: &State| troubles(state)[0].1.clone();
        assert_eq!(
            reason(&state(vec![controller("connecting")])),
            "ControllerNotLive"
        );
        assert_eq!(reason(&state(vec![controller("live")])), "NamespaceMissing");
        assert_eq!(judge("pvc-1", &state(vec![])), None);
    }

    #[test]
    fn a_nodes_way_to_the_storage_is_judged_by_its_controllers_and_the_machine() {
        let reasons = |findings: Vec<Finding>, states: &[&str]| -> Vec<_> {
            let controllers: Vec<_> = states.iter().map(|s| controller(s)).collect();
            let found = judge_storage(findings, &controllers);
            found.into_iter().map(|t| (t.severity, t.reason)).collect()
        };
        assert_eq!(reasons(vec![], &[]), []);
        assert_eq!(reasons(vec![], &["live", "live"]), []);
        let some = (Severity::Degraded, "ControllersNotLive".to_owned());
        assert_eq!(reasons(vec![], &["live", "connecting"]), [some]);
        let all = (Severity::Inaccessible, "ControllersNotLive".to_owned());
        assert_eq!(reasons(vec![], &["resetting", "connecting"]), [all]);
        let finding = Finding {
            check: "module.nvme_tcp".into(),
            problem: "not loaded".into(),
            remedy: "load it".into(),
        };
        let module = (Severity::Inaccessible, "ModuleNvmeTcp".to_owned());
        assert_eq!(reasons(vec![finding], &["live"]), [module]);
    }
}
