//! Controllers, namespaces and subsystems as sysfs shows them.
//!
//! Anything may go away while it is looked at: an attribute that cannot be opened any more
//! (`ENOENT`) or whose device is gone since the open (`ENODEV`) means that the object is gone.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use uuid::Uuid;

use super::{Controller, Namespace, Subsystem};
use crate::attr;
use crate::error::SysError;

/// One controller; `None` when it is gone (also when it goes while it is read).
pub fn controller(sys: &Path, name: &str) -> Result<Option<Controller>, SysError> {
    let directory = controller_dir(sys, name)?;
    let get = |attribute: &str| attr::read_if_present(&directory.join(attribute));
    let (Some(state), Some(transport), Some(nqn)) =
        (get("state")?, get("transport")?, get("subsysnqn")?)
    else {
        return Ok(None);
    };
    Ok(Some(Controller {
        name: name.to_owned(),
        state,
        transport,
        // Both are absent where the transport has none.
        address: get("address")?.unwrap_or_default(),
        host_nqn: get("hostnqn")?.unwrap_or_default(),
        // A controller that has not identified itself yet has no subsystem, and the kernel prints
        // a null pointer: "(efault)" or "(null)".
        subsystem_nqn: if nqn.starts_with('(') {
            String::new()
        } else {
            nqn
        },
    }))
}

/// Every controller. Grows with their number: start-up and repair only.
pub fn controllers(sys: &Path) -> Result<Vec<Controller>, SysError> {
    let mut found = Vec::new();
    for name in names_in(&sys.join("class/nvme"))? {
        found.extend(controller(sys, &name)?);
    }
    Ok(found)
}

/// The namespace of the block device `block` (`nvme0n1`), `None` when it is gone, is no NVMe
/// namespace, or is a hidden path of a multipath head.
pub fn namespace(sys: &Path, block: &str) -> Result<Option<Namespace>, SysError> {
    let directory = sys.join("block").join(component(block)?);
    let get = |attribute: &str| attr::read_if_present(&directory.join(attribute));
    let Some(nsid) = get("nsid")? else {
        return Ok(None);
    };
    if get("hidden")?.is_some_and(|hidden| hidden != "0") {
        return Ok(None);
    }
    let (uuid, nguid) = (get("uuid")?, get("nguid")?);
    let unreadable = |attribute: &str, value: &str| {
        SysError::new("read", directory.join(attribute).display(), Errno::EBADMSG)
            .with_detail(format!("{value:?}"))
    };
    let parse = |attribute: &str, value: Option<String>| match value {
        None => Ok(None),
        Some(text) => match text.parse::<Uuid>() {
            Ok(identifier) => Ok(Some(identifier).filter(|i| !i.is_nil())),
            Err(_) => Err(unreadable(attribute, &text)),
        },
    };
    Ok(Some(Namespace {
        block: block.to_owned(),
        nguid: parse("nguid", nguid)?.map(Uuid::into_bytes),
        uuid: parse("uuid", uuid)?,
        nsid: nsid.parse().map_err(|_| unreadable("nsid", &nsid))?,
    }))
}

/// Every usable namespace block device (heads where multipath is native). Start-up and repair only.
pub fn namespaces(sys: &Path) -> Result<Vec<Namespace>, SysError> {
    let mut found = Vec::new();
    for name in names_in(&sys.join("block"))? {
        if name.starts_with("nvme") {
            found.extend(namespace(sys, &name)?);
        }
    }
    Ok(found)
}

/// The subsystem of a namespace's block device, from `<sys>/block/<name>/device` (a subsystem for a
/// multipath head, a controller otherwise); `None` for a device that is no NVMe namespace or is gone.
pub fn subsystem_of(sys: &Path, block: &str) -> Result<Option<Subsystem>, SysError> {
    let device = sys.join("block").join(component(block)?).join("device");
    let Some(nqn) = attr::read_if_present(&device.join("subsysnqn"))? else {
        return Ok(None);
    };
    // What the device is, its own link to its class says.
    let (Some(class), Some(target)) = (link_name(&device.join("subsystem"))?, link_name(&device)?)
    else {
        return Ok(None);
    };
    let controllers = match class.as_str() {
        "nvme" => vec![target],
        _ => linked_controllers(&device)?,
    };
    Ok(Some(Subsystem { nqn, controllers }))
}

/// A subsystem's directory holds a link to each of its controllers; its heads are directories.
fn linked_controllers(subsystem: &Path) -> Result<Vec<String>, SysError> {
    let mut found = Vec::new();
    for name in names_in(subsystem)? {
        // By name first: there may be a thousand heads beside a controller or two.
        let instance = name.strip_prefix("nvme").unwrap_or_default();
        if instance.parse::<u32>().is_ok() && link_name(&subsystem.join(&name))?.is_some() {
            found.push(name);
        }
    }
    Ok(found)
}

/// Asks a controller to look for namespaces again (`rescan_controller`). Fine when it is gone.
pub fn rescan(sys: &Path, controller: &str) -> Result<(), SysError> {
    poke(&controller_dir(sys, controller)?.join("rescan_controller"))
}

/// Deletes a controller (`delete_controller`): blocks until it is gone. Fine when it is gone already.
///
/// A delete that somebody else has begun makes this one return at once, with the controller still
/// there in state `deleting`. `EBUSY`: the connect that makes the controller has not come back yet.
pub fn delete(sys: &Path, controller: &str) -> Result<(), SysError> {
    poke(&controller_dir(sys, controller)?.join("delete_controller"))
}

fn poke(attribute: &Path) -> Result<(), SysError> {
    match attr::write(attribute, "1") {
        Err(error) if attr::is_gone(error.errno) => Ok(()),
        outcome => outcome,
    }
}

fn controller_dir(sys: &Path, name: &str) -> Result<PathBuf, SysError> {
    Ok(sys.join("class/nvme").join(component(name)?))
}

/// Refuses what is more than one name (rule 12).
pub(super) fn component(name: &str) -> Result<&str, SysError> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(SysError::new("open", format!("{name:?}"), Errno::EINVAL)
            .with_detail("this is no device's name"));
    }
    Ok(name)
}

/// The entries of a directory, sorted; none when there is no such directory.
pub(super) fn names_in(directory: &Path) -> Result<Vec<String>, SysError> {
    let failed = |e: std::io::Error| SysError::io("readdir", directory, &e);
    let entries = match fs::read_dir(directory) {
        Err(e) if attr::is_gone(Errno::from_raw(e.raw_os_error().unwrap_or(0))) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// The last component of a symbolic link's target; `None` for what is no link or is gone.
fn link_name(path: &Path) -> Result<Option<String>, SysError> {
    match fs::read_link(path) {
        Ok(target) => Ok(target
            .file_name()
            .and_then(|n| n.to_str())
            .map(str::to_owned)),
        Err(e) => match Errno::from_raw(e.raw_os_error().unwrap_or(0)) {
            errno if errno == Errno::EINVAL || attr::is_gone(errno) => Ok(None),
            _ => Err(SysError::io("readlink", path, &e)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const HEAD: &str = "devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n2";
    const CONTROLLER: &str = "devices/virtual/nvme-fabrics/ctl/nvme0";
    const PATH: &str = "devices/virtual/nvme-fabrics/ctl/nvme0/nvme0c3n2";

    fn put(sys: &Path, directory: &str, attributes: &[(&str, &str)]) {
        fs::create_dir_all(sys.join(directory)).unwrap();
        for (name, value) in attributes {
            fs::write(sys.join(directory).join(name), format!("{value}\n")).unwrap();
        }
    }

    fn link(sys: &Path, at: &str, target: &str) {
        fs::create_dir_all(sys.join(at).parent().unwrap()).unwrap();
        symlink(target, sys.join(at)).unwrap();
    }

    /// As Linux 6.12 lays it out for one TCP controller with native multipath, and a PCIe disk without.
    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path();
        let identifiers = [
            ("nsid", "7"),
            ("uuid", "aaaaaaaa-0000-0000-0000-000000000001"),
            ("nguid", "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ];
        put(sys, HEAD, &identifiers);
        put(sys, HEAD, &[("hidden", "0")]);
        put(sys, PATH, &identifiers);
        put(sys, PATH, &[("hidden", "1")]);
        put(
            sys,
            "devices/virtual/nvme-subsystem/nvme-subsys3",
            &[("subsysnqn", "nqn.t:1")],
        );
        put(
            sys,
            CONTROLLER,
            &[
                ("state", "live"),
                ("transport", "tcp"),
                (
                    "address",
                    "traddr=192.0.2.1,trsvcid=4420,src_addr=192.0.2.7",
                ),
                ("subsysnqn", "nqn.t:1"),
                ("hostnqn", "nqn.t:host"),
                ("rescan_controller", ""),
                ("delete_controller", ""),
            ],
        );
        link(
            sys,
            "devices/virtual/nvme-subsystem/nvme-subsys3/nvme0",
            "../../nvme-fabrics/ctl/nvme0",
        );
        link(
            sys,
            "devices/virtual/nvme-subsystem/nvme-subsys3/subsystem",
            "../../../../class/nvme-subsystem",
        );
        link(sys, &format!("{HEAD}/device"), "../../nvme-subsys3");
        link(
            sys,
            &format!("{CONTROLLER}/subsystem"),
            "../../../../../class/nvme",
        );
        link(sys, &format!("{PATH}/device"), "../../nvme0");
        link(
            sys,
            "class/nvme/nvme0",
            "../../devices/virtual/nvme-fabrics/ctl/nvme0",
        );
        link(sys, "block/nvme3n2", &format!("../{HEAD}"));
        link(sys, "block/nvme0c3n2", &format!("../{PATH}"));

        put(
            sys,
            "devices/pci0/nvme/nvme1",
            &[
                ("state", "live"),
                ("transport", "pcie"),
                ("subsysnqn", "nqn.disk"),
            ],
        );
        put(
            sys,
            "devices/pci0/nvme/nvme1/nvme1n1",
            &[
                ("nsid", "1"),
                ("hidden", "0"),
                ("nguid", "00000000-0000-0000-0000-000000000000"),
            ],
        );
        link(
            sys,
            "devices/pci0/nvme/nvme1/subsystem",
            "../../../../class/nvme",
        );
        link(sys, "devices/pci0/nvme/nvme1/nvme1n1/device", "../../nvme1");
        link(sys, "class/nvme/nvme1", "../../devices/pci0/nvme/nvme1");
        link(sys, "block/nvme1n1", "../devices/pci0/nvme/nvme1/nvme1n1");

        put(sys, "devices/virtual/block/zd0", &[("hidden", "0")]);
        link(sys, "block/zd0", "../devices/virtual/block/zd0");
        root
    }

    #[test]
    fn c_34_the_nsid_is_read_and_not_parsed_out_of_the_name() {
        let root = sysfs();
        let namespace = namespace(root.path(), "nvme3n2").unwrap().unwrap();
        assert_eq!((namespace.block.as_str(), namespace.nsid), ("nvme3n2", 7));
        assert_eq!(
            namespace.uuid.unwrap().to_string(),
            "aaaaaaaa-0000-0000-0000-000000000001"
        );
        assert_eq!(
            namespace.nguid,
            Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
        );
    }

    #[test]
    fn an_identifier_of_zeros_is_none() {
        let root = sysfs();
        let namespace = namespace(root.path(), "nvme1n1").unwrap().unwrap();
        assert_eq!((namespace.uuid, namespace.nguid), (None, None));
    }

    #[test]
    fn a_namespace_with_nonsense_for_an_identifier_is_an_error() {
        let root = sysfs();
        put(root.path(), HEAD, &[("uuid", "nonsense")]);
        let error = namespace(root.path(), "nvme3n2").unwrap_err();
        assert!(error.subject.ends_with("nvme3n2/uuid"), "{error}");
    }

    #[test]
    fn only_what_can_be_mounted_is_listed() {
        let root = sysfs();
        let blocks: Vec<_> = namespaces(root.path())
            .unwrap()
            .into_iter()
            .map(|n| n.block)
            .collect();
        assert_eq!(blocks, ["nvme1n1", "nvme3n2"]);
        assert_eq!(namespace(root.path(), "nvme0c3n2").unwrap(), None);
        assert_eq!(namespace(root.path(), "zd0").unwrap(), None);
        assert_eq!(namespace(root.path(), "nvme9n1").unwrap(), None);
    }

    #[test]
    fn a_head_leads_to_its_subsystem_and_a_plain_device_to_its_controller() {
        let root = sysfs();
        let subsystem = |nqn: &str, controller: &str| {
            Some(Subsystem {
                nqn: nqn.into(),
                controllers: vec![controller.into()],
            })
        };
        assert_eq!(
            subsystem_of(root.path(), "nvme3n2").unwrap(),
            subsystem("nqn.t:1", "nvme0")
        );
        assert_eq!(
            subsystem_of(root.path(), "nvme1n1").unwrap(),
            subsystem("nqn.disk", "nvme1")
        );
        assert_eq!(subsystem_of(root.path(), "zd0").unwrap(), None);
        assert_eq!(subsystem_of(root.path(), "nvme9n1").unwrap(), None);
    }

    #[test]
    fn controllers_are_read_with_what_their_transport_has() {
        let root = sysfs();
        let found = controllers(root.path()).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].name.as_str(), found[0].host_nqn.as_str()),
            ("nvme0", "nqn.t:host")
        );
        assert_eq!(
            (found[1].transport.as_str(), found[1].address.as_str()),
            ("pcie", "")
        );
        assert_eq!(controller(root.path(), "nvme7").unwrap(), None);
    }

    #[test]
    fn a_controller_that_has_not_identified_itself_belongs_to_no_subsystem() {
        let root = sysfs();
        put(
            root.path(),
            CONTROLLER,
            &[("subsysnqn", "(efault)"), ("state", "connecting")],
        );
        let found = controller(root.path(), "nvme0").unwrap().unwrap();
        assert_eq!(
            (found.subsystem_nqn.as_str(), found.state.as_str()),
            ("", "connecting")
        );
    }

    #[test]
    fn a_machine_without_nvme_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(controllers(root.path()).unwrap().is_empty());
        assert!(namespaces(root.path()).unwrap().is_empty());
    }

    #[test]
    fn what_is_gone_is_deleted() {
        let root = sysfs();
        delete(root.path(), "nvme7").unwrap();
        rescan(root.path(), "nvme7").unwrap();
        delete(root.path(), "nvme0").unwrap();
        let written =
            fs::read_to_string(root.path().join(CONTROLLER).join("delete_controller")).unwrap();
        assert!(written.starts_with('1'), "{written:?}");
    }

    #[test]
    fn rule_12_a_name_stays_in_its_directory() {
        let root = sysfs();
        for name in [
            "",
            ".",
            "..",
            "../block",
            "nvme0/nvme0c3n2",
            "/etc",
            "nvme0\0",
        ] {
            assert_eq!(
                delete(root.path(), name).unwrap_err().errno,
                Errno::EINVAL,
                "{name:?}"
            );
            assert_eq!(
                namespace(root.path(), name).unwrap_err().errno,
                Errno::EINVAL,
                "{name:?}"
            );
            assert_eq!(
                subsystem_of(root.path(), name).unwrap_err().errno,
                Errno::EINVAL,
                "{name:?}"
            );
        }
    }
}
