//! The keeper: the one process that owns a lab. It is the parent of every emulator and every SSH
//! connection, carries the private network, and ends all of it when it ends, or when the program that
//! started the lab does (its standard input is then at its end).

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::control::{self, MachineState, Reply, Request, State};
use crate::hub::Hub;
use crate::image::Image;
use crate::machine::{Accelerator, POOL_GIB, QEMU, Spec};
use crate::ssh;

/// What a machine writes to its console when it can be used.
const READY: &[u8] = b"zvolt-lab-ready";
const TICK: Duration = Duration::from_millis(50);
/// After this long without a word on its console the keeper tries to connect to a machine anyway.
const GIVE_UP: Duration = Duration::from_secs(60);

/// A lab to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The folder of its sockets and logs; exists.
    pub run_dir: PathBuf,
    /// The folder of its disks; must not exist.
    pub disk_dir: PathBuf,
    /// The folder of its image.
    pub image: PathBuf,
    /// What runs the machines.
    pub accelerator: Accelerator,
    /// The machines.
    pub machines: Vec<Spec>,
}

struct Machine {
    spec: Spec,
    port: u16,
    emulator: Option<Child>,
    connection: Option<Child>,
    /// How much of the console has been read.
    console_read: u64,
    console_rest: Vec<u8>,
    /// When to try to connect: at once when it has said that it is ready.
    next_try: Instant,
}

struct Keeper {
    plan: Plan,
    image: Image,
    hub: Hub,
    machines: Vec<Machine>,
}

enum Event {
    Request(Request, UnixStream),
    /// The program that started the lab has ended, or a signal has come.
    End,
    Leash,
}

/// The plan of a lab in its run folder: what is to be removed if its keeper was killed.
pub fn plan_file(run_dir: &Path) -> PathBuf {
    run_dir.join("plan.json")
}

/// The console log of a machine.
pub fn console_log(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.console"))
}

/// Keeps a lab until it is told to end it.
pub fn run(plan: Plan) -> Result<()> {
    // Out of the terminal's reach: Ctrl-C is for the program that started the lab.
    nix::unistd::setsid().context("start a session")?;
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("block signals")?;

    let (events, inbox) = mpsc::channel();
    watch_end(&events, signals);
    let image = Image::at(plan.image.clone());
    let _held = image.hold()?;
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&plan.disk_dir)
        .with_context(|| format!("make {}", plan.disk_dir.display()))?;
    let mut keeper = Keeper {
        image,
        hub: Hub::new(plan.machines.iter().map(|m| m.number)),
        machines: Vec::new(),
        plan,
    };
    let outcome = keeper.begin(&events).and_then(|()| keeper.serve(&inbox));
    keeper.end();
    match outcome {
        // The reply to `down` comes when nothing is left.
        Ok(Some(stream)) => reply(stream, &Reply::State(keeper.state())),
        Ok(None) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn watch_end(events: &Sender<Event>, signals: SigSet) {
    let on_signal = events.clone();
    thread::spawn(move || {
        let _ = signals.wait();
        let _ = on_signal.send(Event::End);
    });
    let on_leash = events.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = on_leash.send(Event::Leash);
    });
}

fn reply(mut stream: UnixStream, reply: &Reply) {
    // The asker may be gone; that is its own affair.
    if let Ok(mut line) = serde_json::to_string(reply) {
        line.push('\n');
        let _ = stream.write_all(line.as_bytes());
    }
}

impl Keeper {
    fn begin(&mut self, events: &Sender<Event>) -> Result<()> {
        fs::write(
            plan_file(&self.plan.run_dir),
            serde_json::to_vec(&self.plan)?,
        )?;
        for spec in self.plan.machines.clone() {
            self.make_disks(&spec)?;
            let port = free_port()?;
            self.machines.push(Machine {
                spec,
                port,
                emulator: None,
                connection: None,
                console_read: 0,
                console_rest: Vec::new(),
                next_try: Instant::now(),
            });
        }
        for place in 0..self.machines.len() {
            self.start(place)?;
        }
        let listener = UnixListener::bind(control::socket(&self.plan.run_dir))
            .context("listen for requests")?;
        let events = events.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut line = String::new();
                let mut reader = BufReader::new(&stream);
                if reader.read_line(&mut line).is_err() {
                    continue;
                }
                match serde_json::from_str(&line) {
                    Ok(request) => {
                        let _ = events.send(Event::Request(request, stream));
                    }
                    Err(error) => reply(stream, &Reply::Refused(format!("not a request: {error}"))),
                }
            }
        });
        Ok(())
    }

    /// Serves until the end; gives whom to tell that it is done.
    fn serve(&mut self, inbox: &mpsc::Receiver<Event>) -> Result<Option<UnixStream>> {
        let mut kept = false;
        loop {
            match inbox.recv_timeout(TICK) {
                Ok(Event::Request(Request::Down, stream)) => return Ok(Some(stream)),
                Ok(Event::Request(request, stream)) => {
                    kept |= matches!(request, Request::Keep);
                    let answer = match self.act(&request) {
                        Ok(()) => Reply::State(self.state()),
                        Err(error) => Reply::Refused(format!("{error:#}")),
                    };
                    reply(stream, &answer);
                }
                Ok(Event::Leash) if kept => {}
                Ok(Event::Leash | Event::End) | Err(RecvTimeoutError::Disconnected) => {
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look_after()?;
        }
    }

    fn act(&mut self, request: &Request) -> Result<()> {
        match request {
            Request::State | Request::Keep | Request::Down => Ok(()),
            Request::Start(name) => {
                let place = self.place(name)?;
                ensure!(
                    self.machines[place].emulator.is_none(),
                    "{name} is on already"
                );
                self.start(place)
            }
            Request::Kill(name) => {
                let place = self.place(name)?;
                let socket = ssh::master_socket(&self.plan.run_dir, name);
                self.machines[place].power_off(&socket)
            }
            Request::Cut(name) | Request::Restore(name) => {
                let place = self.place(name)?;
                self.hub.cut(
                    self.machines[place].spec.number,
                    matches!(request, Request::Cut(_)),
                );
                Ok(())
            }
            Request::Pause(name) => self.signal(name, Signal::SIGSTOP),
            Request::Resume(name) => self.signal(name, Signal::SIGCONT),
        }
    }

    fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let Some(child) = &self.machines[self.place(name)?].emulator else {
            bail!("{name} is off");
        };
        kill(Pid::from_raw(i32::try_from(child.id())?), signal)
            .with_context(|| format!("{signal} to {name}"))
    }

    fn place(&self, name: &str) -> Result<usize> {
        self.machines
            .iter()
            .position(|m| m.spec.name == name)
            .with_context(|| format!("there is no machine {name:?} in this lab"))
    }

    fn make_disks(&self, spec: &Spec) -> Result<()> {
        let root = self.plan.disk_dir.join(format!("{}.qcow2", spec.name));
        let output = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
            .arg(self.image.disk())
            .arg(&root)
            .output()
            .context("run qemu-img")?;
        ensure!(
            output.status.success(),
            "qemu-img: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        if spec.pool {
            let tank = self.plan.disk_dir.join(format!("{}-tank.raw", spec.name));
            File::create(&tank)?.set_len(POOL_GIB << 30)?;
        }
        Ok(())
    }

    fn start(&mut self, place: usize) -> Result<()> {
        let machine = &mut self.machines[place];
        let name = machine.spec.name.clone();
        let lan = self
            .hub
            .plug(machine.spec.number)
            .context("plug into the hub")?;
        fcntl(&lan, FcntlArg::F_SETFD(FdFlag::empty()))
            .context("let QEMU inherit its place in the hub")?;
        let console = console_log(&self.plan.run_dir, &name);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.plan.run_dir.join(format!("{name}.qemu")))?;
        machine.wait_for_boot(&console);
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", QEMU])
            .args(machine.spec.qemu_arguments(
                &self.plan.accelerator,
                &self.image,
                &self.plan.disk_dir,
                &console,
                lan.as_raw_fd(),
                machine.port,
            ))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {QEMU}"))?;
        machine.emulator = Some(child);
        Ok(())
    }

    /// Buries what has ended, and connects to what has become ready.
    fn look_after(&mut self) -> Result<()> {
        for machine in &mut self.machines {
            let Some(emulator) = &mut machine.emulator else {
                continue;
            };
            if emulator.try_wait()?.is_some() {
                machine.emulator = None;
            } else {
                let console = console_log(&self.plan.run_dir, &machine.spec.name);
                machine.read_console(&console);
            }
            let socket = ssh::master_socket(&self.plan.run_dir, &machine.spec.name);
            if let Some(connection) = &mut machine.connection
                && (machine.emulator.is_none() || connection.try_wait()?.is_some())
            {
                machine.disconnect(&socket);
                machine.wait_for_boot(&console_log(&self.plan.run_dir, &machine.spec.name));
            }
            let due = machine.next_try <= Instant::now();
            if machine.emulator.is_some() && machine.connection.is_none() && due {
                machine.next_try = Instant::now() + GIVE_UP;
                machine.connection = Some(ssh::master(&self.image, &socket, machine.port).spawn()?);
            }
        }
        Ok(())
    }

    fn state(&self) -> State {
        State {
            run_dir: self.plan.run_dir.clone(),
            image: self.plan.image.clone(),
            accelerator: self.plan.accelerator.clone(),
            machines: self
                .machines
                .iter()
                .map(|machine| MachineState {
                    ipv4: machine.spec.ipv4(),
                    ipv6: machine.spec.ipv6(),
                    spec: machine.spec.clone(),
                    ssh_port: machine.port,
                    pid: machine.emulator.as_ref().map(Child::id),
                })
                .collect(),
        }
    }

    fn end(&mut self) {
        for machine in &mut self.machines {
            let socket = ssh::master_socket(&self.plan.run_dir, &machine.spec.name);
            if let Err(error) = machine.power_off(&socket) {
                eprintln!("{error:#}");
            }
        }
        for dir in [&self.plan.disk_dir, &self.plan.run_dir] {
            if let Err(error) = fs::remove_dir_all(dir) {
                eprintln!("remove {}: {error}", dir.display());
            }
        }
    }
}

impl Machine {
    fn power_off(&mut self, socket: &Path) -> Result<()> {
        if let Some(mut emulator) = self.emulator.take() {
            emulator.kill()?;
            emulator.wait()?;
        }
        self.disconnect(socket);
        Ok(())
    }

    /// Ends the connection, and takes its socket away: ssh would not replace one.
    fn disconnect(&mut self, socket: &Path) {
        if let Some(mut connection) = self.connection.take() {
            let _ = connection.kill();
            let _ = connection.wait();
        }
        let _ = fs::remove_file(socket);
    }

    /// From here on only a new word on the console says that the machine is ready.
    fn wait_for_boot(&mut self, console: &Path) {
        self.console_read = fs::metadata(console).map_or(0, |m| m.len());
        self.console_rest.clear();
        self.next_try = Instant::now() + GIVE_UP;
    }

    fn read_console(&mut self, console: &Path) {
        let Ok(mut file) = File::open(console) else {
            return;
        };
        if file.seek(SeekFrom::Start(self.console_read)).is_err() {
            return;
        }
        let before = self.console_rest.len();
        if file.read_to_end(&mut self.console_rest).is_err() {
            return;
        }
        self.console_read += (self.console_rest.len() - before) as u64;
        if self.console_rest.windows(READY.len()).any(|w| w == READY) {
            self.console_rest.clear();
            self.next_try = Instant::now();
        }
        let keep = self.console_rest.len().min(READY.len() - 1);
        self.console_rest.drain(..self.console_rest.len() - keep);
    }
}

/// A port on loopback that nobody has at this moment.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr()?.port())
}
