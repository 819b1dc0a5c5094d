//! What a machine is made of, and QEMU's command line for it.

use std::env;
use std::fmt;
use std::io::Read;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::hub::MAC_PREFIX;
use crate::image::Image;

/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";

/// One machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Host name.
    pub name: String,
    /// Last byte of its addresses on the private network.
    pub number: u8,
    /// Processors.
    pub cpus: u8,
    /// MiB.
    pub memory: u32,
    /// Whether it has a second disk with pool `tank`.
    pub pool: bool,
}

/// What makes a boot cheaper where every instruction is emulated, and changes nothing that is tested.
const CHEAP_BOOT: &str = "mitigations=off nokaslr init_on_alloc=0 lsm=capability audit=0 cryptomgr.notests \
                          no_timer_check rcupdate.rcu_expedited=1 rcupdate.rcu_normal_after_boot=1";

/// GiB of the (sparse) disk that holds pool `tank`.
pub const POOL_GIB: u64 = 8;

impl Spec {
    /// Storage host number `index`.
    pub fn storage(index: u8) -> Self {
        Self {
            name: format!("storage{index}"),
            number: 10 + index,
            cpus: 2,
            memory: 2048,
            pool: true,
        }
    }

    /// Consumer number `index`.
    pub fn node(index: u8) -> Self {
        Self {
            name: format!("node{index}"),
            number: 20 + index,
            cpus: 1,
            memory: 1024,
            pool: false,
        }
    }

    /// Its IPv4 address on the private network.
    pub fn ipv4(&self) -> String {
        format!("10.77.0.{}", self.number)
    }

    /// Its IPv6 address on the private network. The digits read as in the IPv4 address.
    pub fn ipv6(&self) -> String {
        format!("fd77::{}", self.number)
    }

    /// QEMU's arguments. `disks` holds this machine's disks; `lan` is the descriptor of its place in
    /// the hub; `port` the one on loopback that leads to its SSH server.
    pub fn qemu_arguments(
        &self,
        accelerator: &Accelerator,
        image: &Image,
        disks: &Path,
        console: &Path,
        lan: RawFd,
        port: u16,
    ) -> Vec<String> {
        let mac = MAC_PREFIX.map(|byte| format!("{byte:02x}"));
        let control_mac = [&mac[..4], &["01".to_owned()]].concat().join(":");
        let (mac, last) = (mac.join(":"), format!("{:02x}", self.number));
        let mut arguments = accelerator.arguments();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|&w| w.to_owned()));
        add(&[
            "-name",
            &self.name,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
        ]);
        add(&[
            "-smp",
            &self.cpus.to_string(),
            "-m",
            &self.memory.to_string(),
        ]);
        add(&["-kernel", &image.kernel().to_string_lossy()]);
        add(&["-initrd", &image.initrd().to_string_lossy()]);
        add(&["-append", &self.kernel_command_line()]);
        add(&[
            "-chardev",
            &format!("file,id=console,append=on,path={}", comma(console)),
            "-serial",
            "chardev:console",
        ]);
        add(&["-device", "virtio-rng-pci"]);
        // QEMU killed, the host's page cache stays: `unsafe` loses nothing that a machine was promised.
        let disk = |file: &str, format: &str| {
            let path = comma(&disks.join(file));
            format!("if=virtio,format={format},cache=unsafe,discard=unmap,file={path}")
        };
        add(&["-drive", &disk(&format!("{}.qcow2", self.name), "qcow2")]);
        if self.pool {
            add(&["-drive", &disk(&format!("{}-tank.raw", self.name), "raw")]);
        }
        add(&["-netdev", &format!("socket,id=lan,fd={lan}")]);
        add(&[
            "-device",
            &format!("virtio-net-pci,netdev=lan,romfile=,mac={mac}:{last}"),
        ]);
        add(&[
            "-netdev",
            &format!("user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22"),
        ]);
        add(&[
            "-device",
            &format!("virtio-net-pci,netdev=control,romfile=,mac={control_mac}:{last}"),
        ]);
        arguments
    }

    fn kernel_command_line(&self) -> String {
        format!(
            "root=/dev/vda rw rootfstype=ext4 console=ttyS0 quiet loglevel=4 net.ifnames=0 fsck.mode=skip \
             {CHEAP_BOOT} systemd.show_status=0 systemd.hostname={} systemd.machine_id=7a766f6c746c61620000000000000{:03x} \
             zvolt.lan4={}/24 zvolt.lan6={}/64",
            self.name,
            self.number,
            self.ipv4(),
            self.ipv6()
        )
    }
}

/// In a QEMU option a comma in a value is doubled.
fn comma(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// What runs the machines' instructions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", content = "cpu")]
pub enum Accelerator {
    /// The host's processor, with this `-cpu`.
    Kvm(String),
    /// QEMU's software emulation.
    Tcg,
    /// The same with a clock that counts instructions, a nanosecond each: what a program takes is the same in each run,
    /// and nothing costs more for being emulated; what it waits for takes as long as it does.
    Counted,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kvm(cpu) => write!(f, "KVM (-cpu {cpu})"),
            Self::Tcg => write!(f, "software emulation (TCG)"),
            Self::Counted => write!(
                f,
                "software emulation, a nanosecond an instruction (TCG, -icount)"
            ),
        }
    }
}

impl Accelerator {
    fn arguments(&self) -> Vec<String> {
        // Page tables of five levels make each walk longer; "fast" byte strings are emulated byte by byte, and the kernel
        // would use them to copy.
        let emulated = "max,la57=off,erms=off,fsrm=off";
        let words: &[&str] = match self {
            Self::Kvm(cpu) => &["-accel", "kvm", "-cpu", cpu],
            Self::Tcg => &["-accel", "tcg,thread=multi", "-cpu", emulated],
            Self::Counted => &[
                "-accel",
                "tcg,thread=single",
                "-cpu",
                emulated,
                "-icount",
                "shift=0,sleep=on",
            ],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }

    /// KVM where it really runs the image's kernel up to its first process, with the first `-cpu` that
    /// does; else software emulation. `ZVOLT_LAB_ACCEL` (`kvm`, `tcg`, `icount`) decides without asking KVM,
    /// or makes its failure an error.
    pub fn choose(image: &Image) -> Result<Self> {
        let asked = env::var("ZVOLT_LAB_ACCEL").unwrap_or_default();
        match asked.as_str() {
            "tcg" => return Ok(Self::Tcg),
            "icount" => return Ok(Self::Counted),
            "" | "kvm" => {}
            other => bail!("ZVOLT_LAB_ACCEL is {other:?}; it can be kvm, tcg or icount"),
        }
        let mut why = Vec::new();
        if Path::new("/dev/kvm").exists() {
            // Where KVM runs inside a machine, a feature of the processor may be there in name only.
            for cpu in ["host", "host,-arch-capabilities"] {
                let candidate = Self::Kvm(cpu.to_owned());
                match candidate.runs(image)? {
                    Ok(()) => return Ok(candidate),
                    Err(said) => why.push(format!("-cpu {cpu}: {said}")),
                }
            }
        } else {
            why.push("/dev/kvm is not there".to_owned());
        }
        if asked == "kvm" {
            bail!(
                "ZVOLT_LAB_ACCEL=kvm, but KVM runs no machine here:\n{}",
                why.join("\n")
            );
        }
        Ok(Self::Tcg)
    }

    /// Boots the image's kernel with `true` as its first process. The inner error says why it did not.
    fn runs(&self, image: &Image) -> Result<Result<(), String>> {
        let (mut reader, writer) = std::io::pipe()?;
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", QEMU])
            .args(self.arguments())
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
            ])
            .args(["-m", "512", "-smp", "2", "-serial", "stdio", "-kernel"])
            .arg(image.kernel())
            .arg("-initrd")
            .arg(image.initrd())
            .args(["-append", "console=ttyS0 panic=-1 rdinit=/bin/true"])
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn()
            .with_context(|| format!("start {QEMU}"))?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let listener = {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(count @ 1..) = reader.read(&mut chunk) {
                    said.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend_from_slice(&chunk[..count]);
                }
            })
        };
        let text = || {
            String::from_utf8_lossy(&said.lock().unwrap_or_else(PoisonError::into_inner))
                .into_owned()
        };
        let begin = Instant::now();
        loop {
            let (text, waited) = (text(), begin.elapsed());
            // A processor that KVM only pretends to have says nothing at all.
            let stuck = text.contains("internal error")
                || text.is_empty() && waited > Duration::from_secs(5);
            if child.try_wait()?.is_some() || stuck || waited > Duration::from_secs(20) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        child.wait()?;
        let _ = listener.join();
        let said = text();
        // The kernel's panic names the exit code of its first process: it ran, and ended well.
        if said.contains("exitcode=0x00000000") {
            return Ok(Ok(()));
        }
        let last = said
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("no output");
        Ok(Err(last.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_has_cards_and_addresses_of_its_own() {
        let arguments = |spec: &Spec| {
            spec.qemu_arguments(
                &Accelerator::Tcg,
                &Image::at("/i".into()),
                Path::new("/d,1"),
                Path::new("/c"),
                7,
                2222,
            )
            .join(" ")
        };
        let storage = arguments(&Spec::storage(0));
        assert!(
            storage.contains("mac=52:54:00:77:00:0a") && storage.contains("mac=52:54:00:77:01:0a")
        );
        assert!(storage.contains("file=/d,,1/storage0-tank.raw"));
        assert!(storage.contains("zvolt.lan4=10.77.0.10/24 zvolt.lan6=fd77::10/64"));
        let node = arguments(&Spec::node(1));
        assert!(node.contains("mac=52:54:00:77:00:15") && !node.contains("tank"));
        assert!(node.contains("restrict=on,hostfwd=tcp:127.0.0.1:2222-10.0.2.15:22"));
    }
}
