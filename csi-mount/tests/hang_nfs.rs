//! A table of what hangs on a real NFS mount whose server is stopped, and what this crate does about it:
//! everything that the crate offers returns in time with the right outcome, and everything works again when
//! the server comes back.
//!
//! `cargo xtask test --kernels newest hang_nfs` runs it in an emulated machine and prints the table.

mod flow_support;
mod hang_table;
mod measure;
mod mount_support;
mod nfs_support;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use csi_mount::flow::shared::{SharedSource, publish, stage, unpublish, unstage};
use csi_mount::{
    Bind, ErrorKind, MountAttributes, MountHealth, MountState, Outcome, Removed, Result, Target, Unmounted,
    health, health_within, mount_state, stats, stats_within, unmount,
};
use flow_support::eventually;
use hang_table::calls::{CALLS, Call, FRESH, UNMOUNTS, helper};
use hang_table::fate::{Asked, Begun, Fate, do_as_asked};
use hang_table::{CallTable, Table};
use measure::children;
use mount_support::sandbox;
use nfs_support::{Patience, Protocol, Server};
use rustix::fs::{Mode, OFlags};

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

/// This is not a test. A process that is started for it makes one call of the table.
#[test]
fn make_one_call() {
    do_as_asked();
}

fn asked(call: &Call, at: &Target) -> Asked {
    Asked::start(call, at.path(), "make_one_call")
}

fn table(protocol: Protocol, patience: Patience) {
    let server = Server::start();
    let share = server.share(protocol, patience);
    let believed = server.share_believed_for(600, protocol, patience);
    sandbox(|sandbox| {
        let volume = Volume::new(sandbox, &server, &share, patience);
        println!("\n### NFS {protocol:?}, {patience:?}");
        let fresh = volume.calls_of_what_is_fresh(&believed);
        volume.come_up();
        volume.stop();
        let mut calls = volume.system_calls();
        fresh.iter().for_each(|(call, fate)| calls.row(call.name, fate, call.helper));
        let answers = volume.helpers();
        calls.print("system call at the mount point", &answers);
        answers.print(["of this crate", "the server is stopped"]);
        volume.come_back();
        let unmounts = volume.unmounts();
        let ends = volume.taken_away_while_dead();
        unmounts.print("taking it away", &ends);
        ends.print(["of this crate", "the server is stopped"]);
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
        format!("{}, {}", helper::UNSTAGE, self.words())
    }
}

/// A running user. It ends when the server answers again.
enum User {
    Nobody,
    Waiting(Begun),
    Descriptor(std::os::fd::OwnedFd),
}

impl User {
    fn go(self) {
        match self {
            Self::Nobody => {}
            Self::Waiting(process) => drop(process.fate(Instant::now() + BOUND)),
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

    /// How long the test waits for a system call. A soft mount gives up on its own.
    fn limit(&self) -> Duration {
        match self.patience {
            Patience::Hard => 3 * SECOND,
            Patience::Soft => 25 * SECOND,
        }
    }

    /// Makes each call in a separate process, all at the same time.
    fn fates(&self, calls: &'static [Call], at: &Target) -> Vec<(&'static Call, Fate)> {
        let asked: Vec<_> = calls.iter().map(|call| (call, asked(call, at))).collect();
        let begun: Vec<_> = asked.into_iter().map(|(call, asked)| (call, asked.begun())).collect();
        let start = Instant::now();
        // A call that can't hang must not count as hanging because the machine is busy.
        let limit = |call: &Call| if call.is_relied_on { BOUND } else { self.limit() };
        let fate = |(call, begun): (&'static Call, Begun)| (call, begun.fate(start + limit(call)));
        let fates: Vec<_> = begun.into_iter().map(fate).collect();
        for (call, fate) in &fates {
            assert_ne!(*fate, Fate::Stuck, "{}", call.name);
            assert!(!call.is_relied_on || fate.is_no_answer_of_a_server(), "{}: {fate}", call.name);
        }
        fates
    }

    fn system_calls(&self) -> CallTable {
        let mut table = CallTable::default();
        let fates = self.fates(CALLS, &self.staging);
        let hanging = fates.iter().filter(|(_, fate)| matches!(fate, Fate::Killed { .. })).count();
        assert!(hanging > 0 || self.patience == Patience::Soft, "a server that is stopped is waited for");
        fates.iter().for_each(|(call, fate)| table.row(call.name, fate, call.helper));
        table
    }

    /// The results for a mount whose client has a long cache time and has just cached everything that it can.
    fn calls_of_what_is_fresh(&self, believed: &SharedSource) -> Vec<(&'static Call, Fate)> {
        let place = self.target("fresh");
        stage(&place, believed).unwrap();
        assert!(fs::metadata(place.path()).unwrap().is_dir());
        assert!(stats(place.path()).unwrap().bytes.total > 0);
        self.server.gate.stop();
        let fates = self.fates(FRESH, &place);
        assert!(
            matches!(fates[0].1, Fate::Answered { error: 0, .. }),
            "what is known is told: {}",
            fates[0].1
        );
        self.server.gate.go_on();
        unstage(&place).unwrap();
        place.remove().unwrap();
        fates
    }

    /// The results of this crate's functions that leave the mount in place.
    fn helpers(&self) -> Table {
        let mut table = Table::default();
        let (staging, at) = (&self.staging, self.staging.path());
        let state = |state: &Result<MountState>| {
            assert!(matches!(state, Ok(MountState::Mounted(_))));
            "mounted".to_owned()
        };
        table.bounded(helper::STATE, SOON, || mount_state(at), state);
        let is_unwell = |found: &Result<MountHealth>| {
            let unwell = *found.as_ref().unwrap();
            assert!(matches!(unwell, MountHealth::Unresponsive | MountHealth::Dead(_)), "{unwell}");
            assert!(self.patience == Patience::Soft || unwell == MountHealth::Unresponsive, "{unwell}");
            unwell.to_string()
        };
        table.bounded(helper::HEALTH, BOUND, || health_within(at, SECOND), is_unwell);
        let silence = |outcome: &_| self.silence(outcome);
        table.bounded(helper::STATS, BOUND, || stats_within(at, SECOND), silence);
        let refused = |outcome: &Result<Removed>| {
            let error = outcome.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            "`Busy`".to_owned()
        };
        table.bounded(helper::REMOVE, SOON, || staging.remove(), refused);
        let (other, third, below) = (self.target("other"), self.target("third"), at.join("below"));
        let bind = || Bind::new(at).at(&other);
        table.bounded(helper::BIND, SOON, bind, |outcome| format!("{:?}", outcome.as_ref().unwrap()));
        let off = |outcome: &Result<Unmounted>| format!("{:?}", outcome.as_ref().unwrap());
        table.bounded(helper::UNBIND, BOUND, || unmount(&other), off);
        table.bounded(helper::BELOW, BOUND, || Bind::new(&below).at(&other), |outcome| self.silence(outcome));
        table.bounded("`publish`", BOUND, || self.publish(&third), |outcome| self.silence(outcome));
        let stage_again = || stage(staging, self.share);
        table.bounded("`stage` where it is staged", BOUND, stage_again, |outcome| self.silence(outcome));
        let impatient = self.share.clone().time_limit(SECOND);
        let elsewhere = || stage(&other, &impatient);
        table
            .bounded("`stage` elsewhere, within a second", BOUND, elsewhere, |outcome| self.silence(outcome));
        table.bounded("the same once more", BOUND, elsewhere, |outcome| self.silence(outcome));
        assert_eq!(other.state().unwrap(), MountState::NotMounted);
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
        assert_eq!(other.state().unwrap(), MountState::NotMounted);
        eventually("it can be staged", || stage(&other, self.share).is_ok());
        assert_eq!(unstage(&other).unwrap(), Unmounted::Unmounted { layers: 1 });
        self.go_down();
    }

    /// The plain system calls that unmount, on the last mount of the filesystem.
    fn unmounts(&self) -> CallTable {
        let mut table = CallTable::default();
        for call in UNMOUNTS {
            for at in At::ALL {
                stage(&self.staging, self.share).unwrap();
                let user = self.stop_with(at);
                let fate = asked(call, &self.staging).begun().fate(Instant::now() + self.limit());
                assert_ne!(fate, Fate::Stuck, "{}", call.name);
                let is_gone = self.staging.state().unwrap() == MountState::NotMounted;
                let place = if is_gone { "off the tree" } else { "still mounted" };
                let who = if at == At::Nobody { String::new() } else { format!(", {}", at.words()) };
                table.row(format!("{}{who}", call.name), format!("{fate}; {place}"), &at.unstage());
                self.server.gate.go_on();
                user.go();
                unstage(&self.staging).unwrap();
            }
        }
        table
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
    fn waiting_process(&self) -> Begun {
        let statfs = CALLS.iter().find(|call| call.name == "`statfs`").unwrap();
        let process = asked(statfs, &self.staging).begun();
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
            assert_eq!(self.staging.state().unwrap(), MountState::NotMounted);
            assert_eq!(unstage(&self.staging).unwrap(), Unmounted::NotMounted);
            self.server.gate.go_on();
            user.go();
        }
        table
    }
}
