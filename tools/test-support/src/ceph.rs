//! A Ceph cluster of one node: a monitor, an OSD in memory, a manager and a metadata server, on one address of
//! this machine, with files and keys of its own in one directory.
//!
//! It has the filesystem [`FILESYSTEM`]. The caller runs the cluster and its tests on one thread: a daemon ends
//! with the thread that started it.

pub mod outside;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The name of the filesystem.
pub const FILESYSTEM: &str = "cephfs";

/// The user that makes volumes, and what it is allowed to do.
pub const PROVISIONER: &str = "csi-provisioner";

/// The user that mounts volumes.
pub const NODE: &str = "csi-node";

/// The directory below which volumes are.
pub const VOLUMES: &str = "/volumes/csi";

/// The pool of images.
pub const IMAGES: &str = "images";

/// The user that makes images.
pub const IMAGE_PROVISIONER: &str = "csi-rbd-provisioner";

/// The user that maps images.
pub const IMAGE_NODE: &str = "csi-rbd-node";

/// What the driver's records need.
const RECORDS: &str = "allow r, allow command \"config-key get\" with \"key\" prefix \"csi/\", \
                       allow command \"config-key set\" with \"key\" prefix \"csi/\", \
                       allow command \"config-key rm\" with \"key\" prefix \"csi/\"";

/// How long a step of the cluster can take, under slow emulation.
const LIMIT: Duration = Duration::from_secs(300);

/// A process of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Daemon {
    /// The monitor, which knows the other daemons and the users.
    Monitor,
    /// The storage.
    Osd,
    /// The manager, which makes subvolumes.
    Manager,
    /// The metadata server of the filesystem.
    Metadata,
}

impl Daemon {
    const ALL: [Self; 4] = [Self::Monitor, Self::Osd, Self::Manager, Self::Metadata];

    fn name(self) -> &'static str {
        self.program().0
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|daemon| daemon.name() == name)
    }

    /// The program, and its id in the cluster.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Monitor => ("ceph-mon", "a"),
            Self::Osd => ("ceph-osd", "0"),
            Self::Manager => ("ceph-mgr", "a"),
            Self::Metadata => ("ceph-mds", "a"),
        }
    }
}

/// A cluster that a test uses, on this machine or outside of it.
pub trait Cluster {
    /// The address of the monitor.
    fn monitor(&self) -> SocketAddr;

    /// Runs one of Ceph's programs as the administrator, and returns its output; `None` if it fails.
    fn run(&self, program: &str, words: &[&str]) -> Option<String>;

    /// Runs an administrator's command, and returns its output; `None` if it fails.
    fn command(&self, words: &[&str]) -> Option<String> {
        self.run("ceph", &[&["--connect-timeout=30"], words].concat())
    }

    /// The key of this user.
    fn key(&self, user: &str) -> String {
        self.command(&["auth", "print-key", &format!("client.{user}")]).unwrap()
    }

    /// Makes the pool [`IMAGES`], and the users [`IMAGE_PROVISIONER`] and [`IMAGE_NODE`].
    fn make_images(&self) {
        let images = format!("profile rbd pool={IMAGES}");
        let provisioner = format!("profile rbd, {RECORDS}");
        for words in [
            &["osd", "pool", "create", IMAGES, "8"][..],
            &["osd", "pool", "application", "enable", IMAGES, "rbd"],
            // A clone without it needs a protected snapshot.
            &["osd", "set-require-min-compat-client", "mimic"],
            &["auth", "add", &format!("client.{IMAGE_PROVISIONER}"), "mon", &provisioner, "osd", &images],
            &["auth", "add", &format!("client.{IMAGE_NODE}"), "mon", "profile rbd", "osd", &images],
        ] {
            assert!(self.command(words).is_some(), "{words:?}");
        }
    }

    /// Stops a process (SIGSTOP): connections stay, and nothing is answered.
    fn stop(&self, daemon: Daemon);

    /// Undoes [`stop`](Self::stop).
    fn go_on(&self, daemon: Daemon);

    /// Kills a process, and waits for its end: connections are refused.
    fn kill(&self, daemon: Daemon);

    /// Starts a process, also after [`kill`](Self::kill). An OSD in memory has lost its data then.
    fn start_again(&self, daemon: Daemon);
}

/// A cluster on this machine that runs until it is dropped.
#[derive(Debug)]
pub struct Ceph {
    directory: PathBuf,
    monitor: SocketAddr,
    running: RefCell<BTreeMap<Daemon, Child>>,
}

impl Ceph {
    /// Starts a cluster on the loopback address, with its files in this empty directory. Waits until its filesystem
    /// is active and its manager makes subvolumes.
    pub fn start(directory: &Path) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, directory)
    }

    fn start_at(address: Ipv4Addr, directory: &Path) -> Self {
        let monitor = free_port(address);
        let uuid = uuid();
        let ceph = Self { directory: directory.to_owned(), monitor, running: RefCell::default() };
        for name in ["run", "mon", "osd", "mgr", "mds"] {
            fs::create_dir(directory.join(name)).unwrap();
        }
        fs::write(ceph.conf(), configuration(directory, monitor, &uuid)).unwrap();
        ceph.make_users();
        let map = ceph.file("monmap");
        let keys = ceph.file("keyring");
        let monitor = format!("[v1:{monitor}]");
        done(Command::new("monmaptool").args(["--create", "--fsid", &uuid, "--addv", "a", &monitor, &map]));
        done(ceph.program("ceph-mon").args(["--mkfs", "-i", "a", "--monmap", &map, "--keyring", &keys]));
        ceph.start_again(Daemon::Monitor);
        let osd = self::uuid();
        ceph.commands(&[
            &format!("osd new {osd} 0"),
            "osd pool create cephfs-metadata 8",
            "osd pool create cephfs-data 8",
            &format!("fs new {FILESYSTEM} cephfs-metadata cephfs-data"),
        ]);
        done(ceph.program("ceph-osd").args(["--mkfs", "-i", "0", "--osd-uuid", &osd]));
        for daemon in [Daemon::Osd, Daemon::Metadata, Daemon::Manager] {
            ceph.start_again(daemon);
        }
        wait("the filesystem is active", || {
            ceph.command(&["mds", "stat"]).is_some_and(|text| text.contains("up:active"))
        });
        // The first volume needs the group.
        wait("the manager makes subvolumes", || {
            ceph.command(&["fs", "subvolumegroup", "create", FILESYSTEM, "csi"]).is_some()
        });
        ceph
    }

    fn signal(&self, daemon: Daemon, signal: Signal) {
        let running = self.running.borrow();
        kill_process(Pid::from_child(&running[&daemon]), signal).unwrap();
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn conf(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("CEPH_CONF", self.conf()).stdin(Stdio::null());
        command
    }

    /// Runs administrator's commands in one process, which is slow to start under emulation.
    fn commands(&self, commands: &[&str]) {
        let mut program = self.program("ceph").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let lines: String = commands.iter().map(|command| format!("{command}\n")).collect();
        program.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(program.wait().unwrap().success(), "{commands:?}");
    }

    fn make_users(&self) {
        let all = "allow *";
        let data = format!("allow rw tag cephfs data={FILESYSTEM}");
        let below = format!("allow rw fsname={FILESYSTEM} path={VOLUMES}");
        let profile = |name: &str| format!("allow profile {name}");
        let users: [(&str, [(&str, &str); 4]); 6] = [
            ("mon.", [("mon", all), ("", ""), ("", ""), ("", "")]),
            ("client.admin", [("mon", all), ("osd", all), ("mds", all), ("mgr", all)]),
            ("osd.0", [("mon", &profile("osd")), ("osd", all), ("mgr", &profile("osd")), ("", "")]),
            ("mds.a", [("mon", &profile("mds")), ("osd", all), ("mds", all), ("mgr", &profile("mds"))]),
            ("mgr.a", [("mon", &profile("mgr")), ("osd", all), ("mds", all), ("", "")]),
            (&format!("client.{PROVISIONER}"), [("mon", RECORDS), ("mgr", "allow rw"), ("", ""), ("", "")]),
        ];
        let node = format!("client.{NODE}");
        let node = (&*node, [("mon", "allow r"), ("osd", &*data), ("mds", &*below), ("", "")]);
        let keys = self.file("keyring");
        File::create_new(&keys).unwrap();
        for (name, capabilities) in users.iter().chain([&node]) {
            let mut tool = Command::new("ceph-authtool");
            tool.args([&*keys, "--gen-key", "--name", name]);
            for (service, capability) in capabilities.iter().filter(|(service, _)| !service.is_empty()) {
                tool.args(["--cap", service, capability]);
            }
            done(tool.stdout(Stdio::null()));
        }
    }
}

impl Cluster for Ceph {
    fn monitor(&self) -> SocketAddr {
        self.monitor
    }

    fn run(&self, program: &str, words: &[&str]) -> Option<String> {
        let output = self.program(program).args(words).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn stop(&self, daemon: Daemon) {
        self.signal(daemon, Signal::STOP);
    }

    fn go_on(&self, daemon: Daemon) {
        self.signal(daemon, Signal::CONT);
    }

    fn kill(&self, daemon: Daemon) {
        if let Some(mut child) = self.running.borrow_mut().remove(&daemon) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn start_again(&self, daemon: Daemon) {
        let (program, id) = daemon.program();
        let log = File::options().append(true).create(true).open(self.file(program)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program, "-f", "-i", id, "--conf"]).arg(self.conf());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.borrow_mut().insert(daemon, command.spawn().unwrap());
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        Daemon::ALL.into_iter().rev().for_each(|daemon| self.kill(daemon));
    }
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(200));
    }
}

/// A port that nothing listens on. The other daemons choose theirs.
fn free_port(address: Ipv4Addr) -> SocketAddr {
    TcpListener::bind((address, 0)).unwrap().local_addr().unwrap()
}

fn uuid() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

/// The read lease is longer than any stop of the OSD. After its end, an only OSD of Ceph 16.2 can stay "laggy" for ever:
/// operations then hang as "waiting for readable".
fn configuration(directory: &Path, monitor: SocketAddr, uuid: &str) -> String {
    let at = directory.display();
    let address = monitor.ip();
    format!(
        "[global]\n\
         fsid = {uuid}\n\
         mon host = v1:{monitor}\n\
         public network = {address}/32\n\
         run dir = {at}/run\n\
         admin socket = {at}/run/$name.asok\n\
         pid file = {at}/run/$name.pid\n\
         log file = {at}/$name.log\n\
         log to stderr = false\n\
         mon cluster log file = {at}/cluster.log\n\
         keyring = {at}/keyring\n\
         mon data = {at}/mon\n\
         osd data = {at}/osd\n\
         mgr data = {at}/mgr\n\
         mds data = {at}/mds\n\
         osd objectstore = memstore\n\
         memstore device bytes = 512M\n\
         osd pool default size = 1\n\
         osd pool default min size = 1\n\
         osd pool default read lease ratio = 100\n\
         osd pool default pg autoscale mode = off\n\
         osd crush chooseleaf type = 0\n\
         mon allow pool size one = true\n\
         mon data avail crit = 1\n\
         auth allow insecure global id reclaim = false\n"
    )
}
