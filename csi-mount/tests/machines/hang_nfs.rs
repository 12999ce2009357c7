//! A real NFS mount whose server is stopped: everything that the crate offers returns in time with the right
//! outcome, and everything works again when the server comes back.
//!
//! `cargo xtask test --kernels newest hang_nfs` runs it in an emulated machine and prints a table of the
//! outcomes.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use csi_mount::internal::flow::shared::{SharedSource, publish, stage, unpublish, unstage};
use csi_mount::internal::{health, health_within, mount_state, stats, stats_within};
use csi_mount::{
    Bind, ErrorKind, MountAttributes, MountHealth, MountState, Outcome, Removed, Result, Target, Unmounted,
    unmount,
};
use rustix::fs::{Mode, OFlags};

use crate::measure::children;
use crate::mount_support;
use crate::mount_support::eventually;
use crate::mount_support::sandbox;
use crate::nfs_support::{Patience, Protocol, Server};

const SECOND: Duration = Duration::from_secs(1);
/// The time limit for calls that send nothing to the server.
const SOON: Duration = Duration::from_secs(4);
/// The time limit for calls that wait for the server within the crate's own limits, under slow emulation.
const BOUND: Duration = Duration::from_secs(30);

/// Slightly more than the time for which the client trusts its cached file attributes.
const CACHED: Duration = Duration::from_millis(1300);

#[test]
fn v3_hard() {
    table(Protocol::V3, Patience::Hard);
}

#[test]
fn v3_soft() {
    table(Protocol::V3, Patience::Soft);
}

#[test]
fn v4_hard() {
    table(Protocol::V4, Patience::Hard);
}

#[test]
fn v4_soft() {
    table(Protocol::V4, Patience::Soft);
}

/// The mount at which the process of this test waits. Without it, the test does nothing.
const WAIT_AT: &str = "HANG_NFS_WAIT_AT";
const BEGIN: &str = "begin";

/// This is not a test. A process that is started for it waits in a filesystem.
#[test]
fn wait_in_a_filesystem() {
    if let Some(at) = std::env::var_os(WAIT_AT) {
        println!("\n{BEGIN}");
        let _ = rustix::fs::statfs(&at);
    }
}

/// Rows in the order in which they are added, printed as Markdown.
#[derive(Default)]
struct Table(Vec<[String; 2]>);

impl Table {
    /// Runs something that must end within the limit. `outcome` describes the result, or panics if it is
    /// wrong.
    fn bounded<T>(
        &mut self,
        what: &str,
        limit: Duration,
        run: impl FnOnce() -> T,
        outcome: impl FnOnce(&T) -> String,
    ) {
        let start = Instant::now();
        let result = run();
        let took = start.elapsed();
        self.0.push([what.to_owned(), format!("{}, {:.1} s", outcome(&result), took.as_secs_f64())]);
        assert!(took < limit, "{what} took {took:?}");
    }

    fn print(&self) {
        println!("\n| csi-mount | the server is stopped |\n|---|---|");
        self.0.iter().for_each(|[what, outcome]| println!("| {what} | {outcome} |"));
    }
}

fn table(protocol: Protocol, patience: Patience) {
    let server = Server::start();
    let share = server.share(protocol, patience);
    sandbox(|sandbox| {
        let volume = Volume::new(sandbox, &server, &share, patience);
        println!("\n### NFS {protocol:?}, {patience:?}");
        volume.come_up();
        volume.stop();
        volume.calls().print();
        volume.come_back();
        volume.taken_away_while_dead().print();
        volume.come_up();
        volume.go_down();
        eventually("no process is left", || stats("/").is_ok() && children() == 0);
    });
}

/// The user of a mount that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Nobody,
    /// A process that has sent a request to the server.
    Waiting,
    /// A process with a descriptor of the mount that sends no request.
    Descriptor,
}

impl At {
    const ALL: [Self; 3] = [Self::Nobody, Self::Waiting, Self::Descriptor];

    fn words(self) -> &'static str {
        match self {
            Self::Nobody => "nobody is at it",
            Self::Waiting => "a process waits in it",
            Self::Descriptor => "an `O_PATH` descriptor of it is held",
        }
    }

    /// Returns the name of the row with this crate's own result.
    fn unstage(self) -> String {
        format!("`unstage`, {}", self.words())
    }
}

/// A running user. It ends when the server answers again.
enum User {
    Nobody,
    Waiting(Child),
    Descriptor(std::os::fd::OwnedFd),
}

impl User {
    fn go(self) {
        match self {
            Self::Nobody => {}
            Self::Waiting(mut process) => {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            Self::Descriptor(fd) => drop(fd),
        }
    }
}

/// A staged and published share.
struct Volume<'a> {
    server: &'a Server,
    share: &'a SharedSource,
    patience: Patience,
    sandbox: &'a Path,
    staging: Target,
    pod: Target,
}

impl<'a> Volume<'a> {
    fn new(sandbox: &'a Path, server: &'a Server, share: &'a SharedSource, patience: Patience) -> Self {
        let target = |name| Target::new(sandbox.join(name)).unwrap();
        Self { server, share, patience, sandbox, staging: target("staging"), pod: target("pod") }
    }

    fn target(&self, name: &str) -> Target {
        mount_support::target(self.sandbox, name)
    }

    fn come_up(&self) {
        assert_eq!(stage(&self.staging, self.share).unwrap(), Outcome::Mounted);
        assert_eq!(self.publish(&self.pod).unwrap(), Outcome::Mounted);
        fs::write(self.staging.path().join("file"), "content").unwrap();
        self.is_well();
    }

    fn go_down(&self) {
        assert_eq!(unpublish(&self.pod).unwrap(), Removed::Removed);
        assert_eq!(unstage(&self.staging).unwrap(), Unmounted::Unmounted { layers: 1 });
    }

    fn publish(&self, target: &Target) -> Result<Outcome> {
        publish(self.staging.path(), target, MountAttributes::RDONLY)
    }

    fn is_well(&self) {
        for target in [&self.staging, &self.pod] {
            assert_eq!(health(target.path()).unwrap(), MountHealth::Healthy);
            assert!(stats(target.path()).unwrap().bytes.total > 0);
            assert_eq!(fs::read_to_string(target.path().join("file")).unwrap(), "content");
        }
    }

    fn stop(&self) {
        self.server.gate.stop();
        sleep(CACHED);
    }

    /// The results of this crate's functions that leave the mount in place.
    fn calls(&self) -> Table {
        let mut table = Table::default();
        let staging = &self.staging;
        let at = self.staging.path();
        let state = |state: &Result<MountState>| {
            assert!(matches!(state, Ok(MountState::Mounted(_))));
            "mounted".to_owned()
        };
        table.bounded("`mount_state`", SOON, || mount_state(at), state);
        let is_unwell = |found: &Result<MountHealth>| {
            let unwell = *found.as_ref().unwrap();
            assert!(matches!(unwell, MountHealth::Unresponsive | MountHealth::Dead(_)), "{unwell}");
            assert!(self.patience == Patience::Soft || unwell == MountHealth::Unresponsive, "{unwell}");
            unwell.to_string()
        };
        table.bounded("`health_within` a second", BOUND, || health_within(at, SECOND), is_unwell);
        let silence = |outcome: &_| self.silence(outcome);
        table.bounded("`stats_within` a second", BOUND, || stats_within(at, SECOND), silence);
        let refused = |outcome: &Result<Removed>| {
            let error = outcome.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            "`Busy`".to_owned()
        };
        table.bounded("`Target::remove`", SOON, || staging.remove(), refused);
        let other = self.target("other");
        let third = self.target("third");
        let below = at.join("below");
        let bind = || Bind::new(at).at(&other);
        table.bounded("`Bind` of it", SOON, bind, |outcome| format!("{:?}", outcome.as_ref().unwrap()));
        let off = |outcome: &Result<Unmounted>| format!("{:?}", outcome.as_ref().unwrap());
        table.bounded("`unmount` of that bind", BOUND, || unmount(&other), off);
        table.bounded(
            "`Bind` of what is below it",
            BOUND,
            || Bind::new(&below).at(&other),
            |outcome| self.silence(outcome),
        );
        table.bounded("`publish`", BOUND, || self.publish(&third), |outcome| self.silence(outcome));
        let stage_again = || stage(staging, self.share);
        table.bounded("`stage` where it is staged", BOUND, stage_again, |outcome| self.silence(outcome));
        let impatient = self.share.clone().time_limit(SECOND);
        let elsewhere = || stage(&other, &impatient);
        table
            .bounded("`stage` elsewhere, within a second", BOUND, elsewhere, |outcome| self.silence(outcome));
        table.bounded("the same once more", BOUND, elsewhere, |outcome| self.silence(outcome));
        assert_eq!(mount_state(other.path()).unwrap(), MountState::NotMounted);
        assert!(children() <= 3, "at most one process waits for each question, not {}", children());
        table
    }

    /// Describes an outcome, which must be a server that does not answer and nothing else. A soft mount
    /// reports this as EIO.
    fn silence<T: std::fmt::Debug>(&self, outcome: &Result<T>) -> String {
        let error = outcome.as_ref().unwrap_err();
        match (error.kind(), error.raw_os_error()) {
            (ErrorKind::Unresponsive, _) => "`Unresponsive`".to_owned(),
            (kind, Some(nix::libc::EIO)) if self.patience == Patience::Soft => format!("`{kind:?}`, EIO"),
            _ => panic!("{error}"),
        }
    }

    /// The server answers again, and nothing else is done.
    fn come_back(&self) {
        self.server.gate.go_on();
        let start = Instant::now();
        eventually("it is healthy again", || health(self.staging.path()).unwrap() == MountHealth::Healthy);
        println!("\nThe server is back: healthy after {:.1} s.", start.elapsed().as_secs_f64());
        self.is_well();
        assert_eq!(stage(&self.staging, self.share).unwrap(), Outcome::AlreadyMounted);
        assert_eq!(self.publish(&self.pod).unwrap(), Outcome::AlreadyMounted);
        // What was to be mounted in the meantime is not mounted, and can be mounted now.
        let other = self.target("other");
        assert_eq!(mount_state(other.path()).unwrap(), MountState::NotMounted);
        eventually("it can be staged", || stage(&other, self.share).is_ok());
        assert_eq!(unstage(&other).unwrap(), Unmounted::Unmounted { layers: 1 });
        self.go_down();
    }

    /// Stops the server while the mount has this user.
    fn stop_with(&self, at: At) -> User {
        let fd = (at == At::Descriptor).then(|| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            rustix::fs::open(self.staging.path(), flags, Mode::empty()).unwrap()
        });
        self.stop();
        match (at, fd) {
            (At::Waiting, _) => User::Waiting(self.waiting_process()),
            (_, Some(fd)) => User::Descriptor(fd),
            _ => User::Nobody,
        }
    }

    /// Starts a process that has sent a request to the server.
    fn waiting_process(&self) -> Child {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hang_nfs::wait_in_a_filesystem", "--nocapture"])
            .env(WAIT_AT, self.staging.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        assert!(output.lines().any(|line| line.unwrap() == BEGIN), "the process begins");
        sleep(SECOND);
        process
    }

    /// The steps that end a volume while the server is stopped.
    fn taken_away_while_dead(&self) -> Table {
        let mut table = Table::default();
        let removed = |outcome: &Result<Removed>| {
            assert_eq!(*outcome.as_ref().unwrap(), Removed::Removed);
            "Removed".to_owned()
        };
        let gone = |outcome: &Result<Unmounted>| {
            assert_ne!(*outcome.as_ref().unwrap(), Unmounted::NotMounted);
            format!("{:?}", outcome.as_ref().unwrap())
        };
        for at in At::ALL {
            self.come_up();
            let user = self.stop_with(at);
            let unpublish_it = || unpublish(&self.pod);
            match at {
                At::Nobody => table.bounded("`unpublish`", BOUND, unpublish_it, removed),
                _ => assert_eq!(unpublish_it().unwrap(), Removed::Removed),
            }
            table.bounded(&at.unstage(), BOUND, || unstage(&self.staging), gone);
            assert_eq!(mount_state(self.staging.path()).unwrap(), MountState::NotMounted);
            assert_eq!(unstage(&self.staging).unwrap(), Unmounted::NotMounted);
            self.server.gate.go_on();
            user.go();
        }
        table
    }
}
