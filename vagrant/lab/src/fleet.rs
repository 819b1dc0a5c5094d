//! The driver on the lab's machines: started, killed and stopped as an init system would, and what
//! it leaves behind.

use std::thread;

use anyhow::{Context, Result, bail};

use crate::orchestrator::Csi;
use crate::tiers::DRIVER;
use crate::{Lab, Vm};

/// The driver's socket in every machine.
pub const SOCKET: &str = "/run/zvolt/csi.sock";
/// The kubelet directory in every machine.
pub const KUBELET: &str = "/var/lib/kubelet";
/// The storage host.
pub const STORAGE: &str = "storage0";
/// The embedded store on the storage host.
pub const STORE: &str = "/var/lib/zvolt";
const UNIT: &str = "zvolt";
/// What the NQN of a subsystem begins with that a node has of a storage host.
const POOLED: &str = "nqn.2026-11.uk.co.randomvariable.csi.zfs.pooled:";

/// One machine with the driver on it.
#[derive(Debug)]
pub struct Member<'a> {
    vm: &'a Vm,
    arguments: String,
}

/// A volume's staging path.
pub fn staging_path(volume: &str) -> String {
    format!("{KUBELET}/plugins/kubernetes.io/csi/zvolt/{volume}/globalmount")
}

/// A pod's target path.
pub fn target_path(volume: &str, pod: &str) -> String {
    format!("{KUBELET}/pods/{pod}/volumes/kubernetes.io~csi/{volume}/mount")
}

impl<'a> Member<'a> {
    /// The storage host: controller, agent and node in one process.
    pub fn storage(lab: &'a Lab) -> Self {
        let vm = lab.vm(STORAGE);
        let arguments = format!(
            "standalone --kubelet-dir {KUBELET} --node-id {} --store {STORE} --portal {}:4420 --portal [{}]:4420",
            vm.name(),
            vm.ipv4(),
            vm.ipv6()
        );
        Self { vm, arguments }
    }

    /// A storage host of a cluster: the agent alone, with a kubeconfig file that is there.
    pub fn agent(lab: &'a Lab, name: &str, namespace: &str, kubeconfig: &str) -> Self {
        let vm = lab.vm(name);
        let arguments = format!(
            "agent --namespace {namespace} --kubeconfig {kubeconfig} --node-id {} --portal {}:4420 --portal [{}]:4420",
            vm.name(),
            vm.ipv4(),
            vm.ipv6()
        );
        Self { vm, arguments }
    }

    /// A consumer.
    pub fn node(lab: &'a Lab, name: &str) -> Self {
        let vm = lab.vm(name);
        let arguments = format!("node --kubelet-dir {KUBELET} --node-id {}", vm.name());
        Self { vm, arguments }
    }

    /// The same, with volumes published to this node and itself only.
    #[must_use]
    pub fn admitting(mut self, node: &str) -> Self {
        self.arguments.push_str(&format!(" --consumer {node}"));
        self
    }

    /// The same, with at most so many pooled volumes of a node in one subsystem.
    #[must_use]
    pub fn with_namespaces(mut self, most: u32) -> Self {
        self.arguments.push_str(&format!(" --namespaces {most}"));
        self
    }

    /// The machine.
    pub fn vm(&self) -> &'a Vm {
        self.vm
    }

    fn command(&self) -> String {
        format!("{DRIVER} {} --endpoint unix://{SOCKET}", self.arguments)
    }

    /// Starts the driver and waits until it says that it is ready.
    pub fn start(&self) -> Result<()> {
        self.start_with(&[])
    }

    /// The same with variables in its environment.
    pub fn start_with(&self, environment: &[(&str, &str)]) -> Result<()> {
        let prepared = format!(
            "mkdir -p {KUBELET}/plugins {KUBELET}/pods; systemctl reset-failed {UNIT} 2>/dev/null; {}",
            self.launch(environment)
        );
        self.vm.ok(&prepared).with_context(|| {
            let log = self.log().unwrap_or_default();
            format!(
                "the driver on {} did not start; its log:\n{log}",
                self.vm.name()
            )
        })?;
        Ok(())
    }

    /// The command that starts it and returns when it is ready.
    pub(crate) fn launch(&self, environment: &[(&str, &str)]) -> String {
        let environment: String = environment
            .iter()
            .map(|(k, v)| format!("--setenv={k}={v} "))
            .collect();
        format!(
            "systemd-run --quiet --collect --unit={UNIT} --service-type=notify --property=TimeoutStartSec=60 \
             --property=KillMode=process --setenv=RUST_LOG=zvolt=debug {environment}{}",
            self.command()
        )
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&self) -> Result<()> {
        self.vm
            .ok(&format!("systemctl stop {UNIT} 2>/dev/null || true"))
            .map(drop)
    }

    /// Kills it where it stands.
    pub fn kill(&self) -> Result<()> {
        // Not by systemd, which may be busy: a kill must not come late. Status 1: there is none.
        self.vm.ok("pkill -KILL -x zvolt || [ $? -eq 1 ]")?;
        self.wait_dead()
    }

    /// Waits until the process is gone, however it went; where the kernel holds it, says in what call.
    pub fn wait_dead(&self) -> Result<()> {
        // pidwait returns as soon as there is no such process.
        let waited = self.vm.run("timeout 60 pidwait -x zvolt || [ $? -eq 1 ]")?;
        if waited.status == 0 {
            return Ok(());
        }
        let held = self.vm.ok("for task in /proc/[0-9]*/task/[0-9]*; do \
               grep -q '^State:.D' $task/status 2>/dev/null || continue; \
               echo \"$task $(cat $task/comm)\"; sed 's/^/  /' $task/stack; \
             done; free -m; systemctl is-system-running || true; dmesg | tail -n 20")?;
        bail!(
            "the driver on {} does not end; tasks that the kernel holds, memory, state and kernel log:\n{held}",
            self.vm.name()
        )
    }

    /// Whether the process ends by itself, as one does that has reached the point where it dies. It may be answering
    /// a call until then, and be there as a zombie for a moment after.
    pub fn ends(&self) -> Result<bool> {
        let waited = self.vm.run("timeout 20 pidwait -x zvolt")?;
        match waited.status {
            0 | 1 => Ok(true),
            124 => Ok(false),
            status => bail!("pidwait ended with {status}: {}", waited.stderr.trim()),
        }
    }

    /// Whether the process lives, was started with these arguments, and is the program that is installed now.
    pub fn is_running_as_told(&self) -> Result<bool> {
        let running = self.vm.run(&format!(
            "{{ read -r p < /sys/fs/cgroup/system.slice/{UNIT}.service/cgroup.procs; }} 2>/dev/null && \
             [[ /proc/$p/exe -ef {DRIVER} ]] && mapfile -d '' -t words < /proc/$p/cmdline && echo \"${{words[*]}}\""
        ))?;
        Ok(running.status == 0 && running.stdout.trim() == self.command())
    }

    /// Its log since boot.
    pub fn log(&self) -> Result<String> {
        self.vm.ok(&format!(
            "journalctl --no-pager -o cat -u {UNIT} | tail -n 60"
        ))
    }

    /// A connection to its socket.
    pub fn csi(&self) -> Result<Csi> {
        Csi::connect(&self.vm.forward(SOCKET)?)
    }
}

/// What volumes with `attach: pooled` leave on purpose, one line each: the subsystem that a node has of a storage host,
/// as long as it is empty, its allowed host, and the node's controllers of such subsystems. It stays for the next volume,
/// until the agent starts again.
pub fn warm(vm: &Vm) -> Result<Vec<String>> {
    let script = format!(
        "cd /sys/kernel/config/nvmet/subsystems 2>/dev/null && for s in {POOLED}*; do \
           [ -e $s ] || continue; \
           [ -z \"$(ls $s/namespaces)\" ] || continue; \
           echo \"subsystem $s\"; ls $s/allowed_hosts | sed 's/^/host /'; \
         done; \
         cd /sys/class/nvme 2>/dev/null && for c in nvme*; do \
           grep -qs '^{POOLED}' $c/subsysnqn && echo \"controller $c\"; \
         done; true"
    );
    Ok(vm.ok(&script)?.lines().map(str::to_owned).collect())
}

/// Ends a node's connections to subsystems that it has of storage hosts.
pub fn disconnect_pooled(vm: &Vm) -> Result<()> {
    let script = format!(
        "for c in /sys/class/nvme/nvme*; do \
           if grep -qs '^{POOLED}' $c/subsysnqn; then echo 1 > $c/delete_controller; fi; \
         done"
    );
    vm.ok(&script).map(drop)
}

/// What is left of volumes on a machine, one line each: nothing, when all was cleaned up and nothing is kept [`warm`].
pub fn leftovers(vm: &Vm) -> Result<Vec<String>> {
    // The shell's own words: where instructions are emulated, each program that is started costs a test much.
    let script = format!(
        "shopt -s nullglob globstar; \
         if [[ -e /dev/zfs ]]; then \
           while read -r d; do [[ $d =~ ^tank/csi/(block|deleted)/ ]] && echo \"dataset $d\"; done \
             < <(zfs list -H -o name -r -t all tank 2>/dev/null); \
         fi; \
         cd /sys/kernel/config/nvmet 2>/dev/null && {{ \
           for s in subsystems/*; do echo \"subsystem ${{s#*/}}\"; done; \
           for n in subsystems/*/namespaces/*; do echo \"namespace ${{n#*/}}\"; done; \
           for h in hosts/*; do echo \"host ${{h#*/}}\"; done; }}; \
         for c in /sys/class/nvme/*; do echo \"controller ${{c##*/}}\"; done; \
         for d in /sys/block/nvme*; do [[ ${{d##*/}} =~ ^nvme[0-9]+n ]] && echo \"device ${{d##*/}}\"; done; \
         while read -r _ _ _ _ at _; do [[ $at == {KUBELET}/* ]] && echo \"mount $at\"; done < /proc/self/mountinfo; \
         for t in {KUBELET}/pods/**; do [[ -f $t || ${{t##*/}} == mount ]] && echo \"target $t\"; done; \
         for o in {STORE}/volumes/*json* {STORE}/snapshots/*json*; do echo \"object ${{o##*/}}\"; done; true"
    );
    Ok(vm.ok(&script)?.lines().map(str::to_owned).collect())
}

/// Fails when anything is left on any of the machines but what is kept [`warm`].
pub fn assert_clean(lab: &Lab, names: &[&str]) -> Result<()> {
    let left_on = |name: &str| -> Result<Vec<String>> {
        let mut lines = leftovers(lab.vm(name))?;
        if !lines.is_empty() {
            let kept = warm(lab.vm(name))?;
            lines.retain(|line| !kept.contains(line));
        }
        Ok(lines.into_iter().map(|l| format!("{name}: {l}")).collect())
    };
    let left_on = &left_on;
    let left = thread::scope(|scope| {
        let looks: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(move || left_on(name)))
            .collect();
        let found = looks.into_iter().map(|look| match look.join() {
            Ok(found) => found,
            Err(_) => bail!("a machine could not be looked at"),
        });
        found.collect::<Result<Vec<_>>>()
    })?
    .concat();
    if !left.is_empty() {
        bail!("left behind:\n{}", left.join("\n"));
    }
    Ok(())
}

/// The shell text that takes every export out of the kernel's target, as a boot does.
pub(crate) const FORGET_EXPORTS: &str = "cd /sys/kernel/config/nvmet 2>/dev/null && { \
       for l in ports/*/subsystems/*; do [ -e $l ] && rm $l; done; \
       for l in subsystems/*/allowed_hosts/*; do [ -e $l ] && rm $l; done; \
       for n in subsystems/*/namespaces/*; do [ -e $n ] && echo 0 > $n/enable && rmdir $n; done; \
       for d in subsystems/* ports/* hosts/*; do [ -e $d ] && rmdir $d; done; }";

/// Brings a machine back to nothing, whatever an earlier test left. For tests only.
pub fn scrub(vm: &Vm) -> Result<()> {
    vm.ok(&format!(
        "systemctl kill -s KILL {UNIT} 2>/dev/null; timeout 20 pidwait -x zvolt; \
         grep -F ' {KUBELET}/' /proc/self/mountinfo | cut -d' ' -f5 | sort -r | xargs -r -n1 umount -l; \
         for c in /sys/class/nvme/nvme*; do [ -e $c ] && echo 1 > $c/delete_controller; done; \
         {FORGET_EXPORTS}; \
         zfs list -H -o name -r tank/csi 2>/dev/null | grep -E '^tank/csi/(block|deleted)/' | xargs -r -n1 zfs destroy -R 2>/dev/null; \
         rm -rf {STORE} {KUBELET}/pods {KUBELET}/plugins; mkdir -p {KUBELET}/plugins {KUBELET}/pods; true"
    ))?;
    Ok(())
}
