//! The processes of a daemon, whoever started them and when.
//!
//! A mark in the environment says for which place a process works. Any process can have one, so it is only a
//! claim. It counts with a proof that others cannot have: the token of a start by this process, the output file
//! of a daemon for this place ([`output`](super::output)), or the open `/dev/fuse` of the mount at the place.
//! The last also proves the daemons of earlier versions. A claim without a proof is neither waited for nor
//! killed.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, ErrorKind as ErrorOfIo};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};

use super::device::is_fuse_device;
use super::output::{is_output_of, is_proof_held_by};
use crate::error::{Error, ErrorKind, Result};
use crate::place::target::Target;
use crate::sys::deadline::deadline;
use crate::sys::exec::{Program, processes};
use crate::sys::features::{self, Feature};
use crate::table::facts::MountState;

/// The variable that names the place where a daemon mounts.
const PLACE: &str = "CSI_MOUNT_FUSE_AT";
/// The variable that distinguishes one start of a daemon from other starts for the same place.
const START: &str = "CSI_MOUNT_FUSE_START";
/// The variable with what the daemon serves, in the caller's words.
const IDENTITY: &str = "CSI_MOUNT_FUSE_SERVES";
/// How long a killed process can take to end.
const KILL_TIME_LIMIT: Duration = Duration::from_secs(5);
/// How many searches can find processes to kill: those that are killed can have started others meanwhile.
const MAX_KILLS: usize = 100;

/// How long a daemon can be in the middle of an `exec`: microseconds, and on an overloaded machine seconds.
/// A daemon that is not known after this limit is started a second time.
const EXEC_TIME_LIMIT: Duration = Duration::from_secs(10);
/// How often an environment is read that reads as empty although it is not, of a process that is not waited for.
const MAX_READS: u32 = 3;

pub(super) struct DaemonStart {
    processes: Processes,
}

impl DaemonStart {
    pub(super) fn new(place: &Path, identity: Option<&OsStr>) -> Self {
        let token = RandomState::new().build_hasher().finish();
        let mut processes = Processes::for_place(place);
        processes.has_token = true;
        processes.marks.push((START, format!("{token:016x}").into()));
        processes.marks.extend(identity.map(|identity| (IDENTITY, identity.to_owned())));
        Self { processes }
    }

    pub(super) fn place(&self) -> &Path {
        self.processes.place()
    }

    /// The processes of this start only.
    pub(super) fn processes(&self) -> &Processes {
        &self.processes
    }
}

/// All processes that serve, or are about to serve, one place.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    place: PathBuf,
    marks: Vec<(&'static str, OsString)>,
    /// Whether the marks contain a token that only this process and the daemon know.
    has_token: bool,
}

/// What supports the claim of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Complete,
    /// It holds a FUSE device, and the kernel does not say of which mount. It counts while a filesystem is
    /// mounted at the place, if no process has a complete proof.
    SomeFuseDevice,
}

impl Processes {
    pub(super) fn for_place(place: &Path) -> Self {
        Self { place: place.to_owned(), marks: vec![(PLACE, place.into())], has_token: false }
    }

    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// The variables that all of these processes have in their environment.
    pub(super) fn marks(&self) -> &[(&'static str, OsString)] {
        &self.marks
    }

    /// The processes that live now and are visible from here. A process that has ended has no environment.
    pub(super) fn running(&self) -> Vec<i32> {
        let numbers = processes().into_iter().flatten().map(u32::cast_signed);
        let own = std::process::id().cast_signed();
        let deadline = Instant::now() + EXEC_TIME_LIMIT;
        let marked = numbers.filter(|pid| *pid != own && self.is_marked(*pid, deadline));
        let proof = |pid| Some((pid, self.proof(pid)?));
        let mut proven: Vec<(i32, Proof)> = marked.filter_map(proof).collect();
        if proven.iter().any(|(_, proof)| *proof == Proof::Complete) {
            proven.retain(|(_, proof)| *proof == Proof::Complete);
        }
        if proven.is_empty() && !self.has_token && self.mounted().is_some() {
            return self.without_marks();
        }
        proven.into_iter().map(|(pid, _)| pid).collect()
    }

    /// The processes that print as a daemon of the place does, and have another environment than at their start. All processes
    /// are looked at for it, so it is only asked where something must serve a mount.
    fn without_marks(&self) -> Vec<i32> {
        let numbers = processes().into_iter().flatten().map(u32::cast_signed);
        numbers.filter(|pid| self.prints(*pid)).collect()
    }

    /// Whether a process has the file of a daemon's output as its own. One in the middle of an `exec` can hold up who looks.
    fn prints(&self, pid: i32) -> bool {
        has_program(pid, Instant::now()) && is_output_of(pid, &self.place)
    }

    fn is_marked(&self, pid: i32, deadline: Instant) -> bool {
        let environment = self.environment(pid, deadline);
        self.marks.iter().all(|(key, wanted)| value(&environment, key) == Some(wanted.as_bytes()))
    }

    fn proof(&self, pid: i32) -> Option<Proof> {
        if self.has_token || is_proof_held_by(pid, &self.place) {
            return Some(Proof::Complete);
        }
        let mounted = self.mounted()?;
        let devices = fuse_devices(pid);
        if devices.contains(&Some(mounted)) {
            return Some(Proof::Complete);
        }
        devices.contains(&None).then_some(Proof::SomeFuseDevice)
    }

    /// The number of the filesystem at the place.
    fn mounted(&self) -> Option<u64> {
        let state = Target::new(&self.place).and_then(|target| target.state()).ok()?;
        let MountState::Mounted(mounted) = state else { return None };
        // As the kernel has it in memory.
        Some(u64::from(mounted.device.major) << 20 | u64::from(mounted.device.minor))
    }

    /// What the living processes serve; none if that was not set, or no process is visible.
    pub(super) fn identity(&self) -> Option<OsString> {
        let deadline = Instant::now() + EXEC_TIME_LIMIT;
        let identity = |pid: i32| {
            let environment = self.environment(pid, deadline);
            value(&environment, IDENTITY).map(|identity| OsStr::from_bytes(identity).to_owned())
        };
        self.running().into_iter().find_map(identity)
    }

    /// The running processes, each held by a descriptor: no process that later gets its number is meant.
    pub(super) fn held(&self) -> Vec<HeldProcess> {
        let held = self.running().into_iter().map(HeldProcess::open);
        // The number can have become another process's before it was opened.
        let is_it = |pid| {
            let is_marked = self.is_marked(pid, Instant::now() + EXEC_TIME_LIMIT);
            if is_marked { self.proof(pid).is_some() } else { self.prints(pid) }
        };
        held.filter(|process| is_it(process.pid)).collect()
    }

    /// Waits for all of them to end, for these earlier ones, which can have closed their device since, and for
    /// those that they start in the meantime. Returns whether they did.
    pub(super) fn wait_until_ended(&self, earlier: &[HeldProcess], limit: Duration) -> bool {
        let deadline = deadline(limit);
        if !earlier.iter().all(|process| process.has_ended_by(self, deadline)) {
            return false;
        }
        loop {
            let held = self.held();
            if held.is_empty() {
                return true;
            }
            if !held.iter().all(|process| process.has_ended_by(self, deadline)) {
                return false;
            }
        }
    }

    /// Kills all that live, these earlier ones, and any process that they start in the meantime.
    pub(super) fn kill(&self, mut earlier: Vec<HeldProcess>) -> Result<()> {
        earlier.retain(|process| !process.has_ended_by(self, Instant::now()));
        self.kill_found(|| {
            let mut found = self.held();
            earlier.retain(|process| found.iter().all(|other| other.pid != process.pid));
            found.append(&mut earlier);
            found
        })
    }

    /// Kills what each search finds, until one finds nothing.
    fn kill_found(&self, mut search: impl FnMut() -> Vec<HeldProcess>) -> Result<()> {
        for _ in 0..MAX_KILLS {
            let found = search();
            if found.is_empty() {
                return Ok(());
            }
            found.iter().for_each(HeldProcess::kill);
            // From here on: a search can wait longer than this limit for a process in the middle of an `exec`.
            let deadline = Instant::now() + KILL_TIME_LIMIT;
            if !found.iter().all(|process| process.has_ended_by(self, deadline)) {
                let pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
                return Err(self.not_killed(&format!("its daemon can't be killed: process {pids:?}")));
            }
        }
        Err(self.not_killed("its daemon starts other processes again and again"))
    }

    fn not_killed(&self, reason: &str) -> Error {
        Error::new(ErrorKind::Unresponsive, "end the daemon of", reason).at(&self.place)
    }

    /// Sends SIGTERM to the program and to all others that live.
    pub(super) fn terminate(&self, program: &Leader) {
        program.0.send(Signal::TERM);
        for process in self.held().iter().filter(|process| process.pid != program.pid()) {
            process.send(Signal::TERM);
        }
    }

    /// The environment of a process. One in the middle of an `exec` has none yet: this waits for it until the deadline.
    fn environment(&self, pid: i32, deadline: Instant) -> Vec<u8> {
        let mut reads = 0;
        while has_program(pid, deadline) {
            match read_at_once(&format!("/proc/{pid}/environ")) {
                Ok(nothing) if nothing.is_empty() => reads += 1,
                // No permission, or the process is gone.
                known => return known.unwrap_or_default(),
            }
            // A file that was opened before an exec reads as empty after it, and a process can execute one program
            // after another. One without our proof is not waited for.
            let is_ours = || Instant::now() < deadline && is_proof_held_by(pid, &self.place);
            if has_empty_environment(pid) || !(reads < MAX_READS || is_ours()) {
                break;
            }
            sleep(Duration::from_micros(100));
        }
        Vec::new()
    }
}

/// Whether a process has a program, and so an environment, by the deadline. One that is stuck in an `exec` is waited
/// for only once.
fn has_program(pid: i32, deadline: Instant) -> bool {
    static STUCK: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
    let stuck = || STUCK.lock().unwrap_or_else(PoisonError::into_inner);
    let is_waited_for = Instant::now() < deadline && !stuck().contains(&pid);
    let deadline = if is_waited_for { deadline } else { Instant::now() };
    let found = Program::after_exec(pid.cast_unsigned(), deadline);
    if found != Program::InExec {
        stuck().remove(&pid);
    } else if is_waited_for {
        tracing::info!(
            pid,
            "a process does not come to execute its program: perhaps it waits for a filesystem"
        );
        stuck().insert(pid);
    }
    found == Program::Running
}

/// Whether a process has a program and no environment, from its line in `/proc/PID/stat` (proc(5)).
fn has_empty_environment(pid: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    is_environment_empty(&String::from_utf8_lossy(&stat))
}

fn is_environment_empty(stat: &str) -> bool {
    // The fields after the process name, which can contain anything, start with the third.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    // The kernel sets the end of the code (27) after the environment. Without it the process is in an `exec` that
    // has begun since it was seen to have a program.
    field(27) != Some("0") && field(50) == field(51)
}

/// The FUSE devices that a process holds: for each the number of its filesystem, if the kernel reports it.
fn fuse_devices(pid: i32) -> Vec<Option<u64>> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let devices = files.filter(|file| is_fuse_device(&file.path()));
    let connection = |file: fs::DirEntry| {
        let text = fs::read_to_string(process.join("fdinfo").join(file.file_name())).unwrap_or_default();
        let number = |line: &str| line.strip_prefix("fuse_connection:")?.trim().parse().ok();
        text.lines().find_map(number)
    };
    devices.map(connection).collect()
}

/// A program that this process started and that leads a process group. It is known whatever its rights are: the
/// environment of some programs is not readable.
#[derive(Debug)]
pub(super) struct Leader(HeldProcess);

impl Leader {
    /// A child that was not waited for.
    pub(super) fn of(child: &Child) -> Self {
        Self(HeldProcess::open(child.id().cast_signed()))
    }

    pub(super) fn pid(&self) -> i32 {
        self.0.pid
    }

    /// Waits up to this limit. A child that has ended stays a zombie.
    pub(super) fn has_ended_within(&self, limit: Duration) -> bool {
        match &self.0.descriptor {
            Some(descriptor) => is_readable_within(descriptor, limit),
            None => {
                sleep(limit);
                let Some(pid) = rustix::process::Pid::from_raw(self.0.pid) else { return true };
                let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                !matches!(waitid(WaitId::Pid(pid), flags), Ok(None))
            }
        }
    }

    /// Kills the program and its group. Not for a program that was waited for: the number can be another group's.
    pub(super) fn kill_group(&self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.pid) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// A process that is held by a descriptor (`pidfd_open(2)`, Linux 5.3), or known by its number only.
#[derive(Debug)]
pub(super) struct HeldProcess {
    pid: i32,
    descriptor: Option<OwnedFd>,
}

impl HeldProcess {
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    fn open(pid: i32) -> Self {
        let number =
            rustix::process::Pid::from_raw(pid).filter(|_| features::has(Feature::ProcessDescriptor));
        let descriptor = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        Self { pid, descriptor }
    }

    fn kill(&self) {
        self.send(Signal::KILL);
    }

    /// An error means that the process is gone. The next check shows that.
    fn send(&self, signal: Signal) {
        match (&self.descriptor, rustix::process::Pid::from_raw(self.pid)) {
            (Some(descriptor), _) => drop(pidfd_send_signal(descriptor, signal)),
            (None, Some(pid)) => drop(kill_process(pid, signal)),
            (None, None) => {}
        }
    }

    /// Waits until the process has ended, also as a zombie, or until the deadline. Without a descriptor, its
    /// environment is read at intervals.
    pub(super) fn has_ended_by(&self, processes: &Processes, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match &self.descriptor {
                Some(descriptor) if is_readable_within(descriptor, left) => return true,
                None if !processes.is_marked(self.pid, Instant::now()) => return true,
                _ if left.is_zero() => return false,
                Some(_) => {}
                None => sleep(left.min(Duration::from_millis(10))),
            }
        }
    }
}

/// Says that a daemon got this time to store what it had when it was unmounted, and has not ended.
pub(super) fn warn_of_loss(place: &Path, limit: Duration) {
    tracing::warn!(
        at = %place.display(),
        ?limit,
        "killing a FUSE daemon that has not ended in time after its unmount: what it has not stored is lost"
    );
}

/// Waits up to this limit. A descriptor of a process is readable when the process has ended.
fn is_readable_within(descriptor: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
    // An interrupted wait is repeated by the caller.
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Whether a daemon could exist whose marks are not visible. Only a privileged process sees the environment
/// of a process that has changed to another user. A process of our own user whose environment is hidden has
/// more privileges than this process, so this process did not start it.
pub(super) fn can_be_hidden() -> bool {
    let Ok(mut all) = processes() else { return true };
    let own = rustix::process::geteuid().as_raw().to_string();
    let has_other_user = |pid: u32| {
        // The process name in it can be any bytes.
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        users.split_whitespace().any(|user| user != own)
    };
    let is_denied = |pid: u32| {
        if Program::of(pid) == Program::InExec {
            return false;
        }
        let read = fs::read(format!("/proc/{pid}/environ"));
        read.is_err_and(|error| error.kind() == ErrorOfIo::PermissionDenied)
    };
    all.any(|pid| is_denied(pid) && has_other_user(pid))
}

fn value<'e>(environment: &'e [u8], key: &str) -> Option<&'e [u8]> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| variable.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
}

/// Reads a whole file with one `read`. Between two reads a process can execute a program, and the rest
/// would be missing.
fn read_at_once(path: &str) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = vec![0; 32 << 10];
    loop {
        let length = file.read_at(&mut bytes, 0)?;
        if length < bytes.len() {
            bytes.truncate(length);
            return Ok(bytes);
        }
        bytes.resize(2 * length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::Output;
    use super::*;
    use std::io::Read as _;
    use std::process::Command;

    /// The starter of a daemon waits only until the child has closed its descriptors. The child has no
    /// environment yet at that moment.
    #[test]
    fn a_process_is_found_from_its_start_on() {
        for round in 0..300 {
            let start = DaemonStart::new(Path::new("/no/such/place"), None);
            let marks = start.processes().marks().iter().cloned();
            let (mut until_closed, ours) = std::io::pipe().unwrap();
            let output = Output::new(start.place()).unwrap();
            let mut sleep = Command::new("sleep");
            let mut child = sleep.arg("60").envs(marks).stderr(output.stdio().unwrap()).spawn().unwrap();
            drop(ours);
            until_closed.read_to_end(&mut Vec::new()).unwrap();
            let is_known =
                start.processes().is_marked(child.id().cast_signed(), Instant::now() + EXEC_TIME_LIMIT);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(is_known, "round {round}");
        }
    }

    /// The kernel records the start of an environment before its end: in between, the environment reads as
    /// empty. The more variables it has, the longer that takes.
    #[test]
    fn a_process_is_found_while_it_executes_one_program_after_another() {
        let start = DaemonStart::new(Path::new("/no/such/place/at/any/time"), None);
        let again = r#"exec sh -c "$0" "$0""#;
        let others = (0..3000).map(|number| (format!("V{number}"), ""));
        let marks = start.processes().marks().iter().cloned();
        let output = Output::new(start.place()).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", again, again]).envs(others).envs(marks).stderr(output.stdio().unwrap());
        let mut child = shell.spawn().unwrap();
        let is_known = || {
            start.processes().is_marked(child.id().cast_signed(), Instant::now() + Duration::from_secs(60))
        };
        let begun = Instant::now();
        while !is_known() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to run");
        }
        let seen = (0..2000).position(|_| !is_known());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen, None, "at this look it was not known");
    }

    #[test]
    fn each_of_two_starts_finds_its_own_processes() {
        let place = Path::new("/no/such/place/either");
        let one = DaemonStart::new(place, Some(OsStr::new("a")));
        let other = DaemonStart::new(place, Some(OsStr::new("b")));
        let output = Output::new(place).unwrap();
        let mut sleep = Command::new("sleep");
        sleep.arg("60").envs(one.processes().marks().iter().cloned()).stderr(output.stdio().unwrap());
        let mut child = sleep.spawn().unwrap();
        let pid = child.id().cast_signed();
        let known =
            [&Processes::for_place(place), one.processes(), other.processes()].map(Processes::running);
        assert_eq!(Processes::for_place(place).identity(), Some("a".into()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(known, [vec![pid], vec![pid], vec![]]);
    }

    /// As while another process of the machine does not come to execute its program.
    #[test]
    fn a_slow_search_takes_nothing_of_the_time_to_end() {
        let mut children: Vec<_> =
            (0..20).map(|_| Command::new("sleep").arg("600").spawn().unwrap()).collect();
        let mut pids: Vec<_> = children.iter().map(|child| child.id().cast_signed()).collect();
        let killed = Processes::for_place(Path::new("/no/such/place")).kill_found(|| {
            if !pids.is_empty() {
                sleep(KILL_TIME_LIMIT);
            }
            pids.drain(..).map(HeldProcess::open).collect()
        });
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        killed.unwrap();
    }

    #[test]
    fn a_process_without_an_environment_is_not_waited_for() {
        let mut child = Command::new("sleep").arg("60").env_clear().spawn().unwrap();
        let pid = child.id().cast_signed();
        let begun = Instant::now();
        assert!(has_program(pid, begun + EXEC_TIME_LIMIT));
        let is_empty = has_empty_environment(pid);
        child.kill().unwrap();
        assert!(is_empty && !has_empty_environment(std::process::id().cast_signed()));
        child.wait().unwrap();
        assert!(!has_program(pid, Instant::now() + EXEC_TIME_LIMIT), "it is gone");
    }

    #[test]
    fn an_environment_that_an_exec_has_not_set_yet_is_not_empty() {
        let stat = |end_of_code: &str| {
            let mut fields = vec!["0"; 52];
            fields[1] = "(a) b)";
            fields[26] = end_of_code;
            fields[49..51].fill("7");
            fields.join(" ")
        };
        assert!(is_environment_empty(&stat("9")));
        assert!(!is_environment_empty(&stat("0")));
    }
}
