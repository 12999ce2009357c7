//! The processes of a daemon, recognized by their environment, whoever started them and when.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, ErrorKind as ErrorOfIo};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::sys::features::{self, Feature};
use crate::{Error, ErrorKind, Result};

/// The variable that names the place where a daemon mounts.
const PLACE: &str = "CSI_MOUNT_FUSE_AT";
/// The variable that distinguishes one start of a daemon from other starts for the same place.
const START: &str = "CSI_MOUNT_FUSE_START";
/// The variable with what the daemon serves, in the caller's words.
const IDENTITY: &str = "CSI_MOUNT_FUSE_SERVES";
/// How long a killed process can take to end.
const KILL_TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long a process can be in the middle of an `exec`: microseconds, and on an overloaded machine seconds.
/// A daemon that is not known after this limit is started a second time.
const EXEC_TIME_LIMIT: Duration = Duration::from_secs(10);
/// How often an environment is read that reads as empty although it is not.
const MAX_READS: u32 = 3;

/// One start of a daemon for a place.
pub(super) struct DaemonStart {
    place: PathBuf,
    processes: Processes,
}

impl DaemonStart {
    pub(super) fn new(place: &Path, identity: Option<&OsStr>) -> Self {
        let token = RandomState::new().build_hasher().finish();
        let mut processes = Processes::for_place(place);
        processes.marks.push((START, format!("{token:016x}").into()));
        processes.marks.extend(identity.map(|identity| (IDENTITY, identity.to_owned())));
        Self { place: place.to_owned(), processes }
    }

    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// The processes of this start only.
    pub(super) fn processes(&self) -> &Processes {
        &self.processes
    }
}

/// All processes that serve, or are about to serve, one place.
#[derive(Clone)]
pub(super) struct Processes {
    marks: Vec<(&'static str, OsString)>,
}

impl Processes {
    pub(super) fn for_place(place: &Path) -> Self {
        Self { marks: vec![(PLACE, place.into())] }
    }

    /// The variables that all of these processes have in their environment.
    pub(super) fn marks(&self) -> &[(&'static str, OsString)] {
        &self.marks
    }

    /// The processes that live now and are visible from here. A process that has ended has no environment.
    pub(super) fn running(&self) -> Vec<i32> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let own = std::process::id().cast_signed();
        let deadline = Instant::now() + EXEC_TIME_LIMIT;
        numbers.filter(|pid| *pid != own && self.is_marked(*pid, deadline)).collect()
    }

    fn is_marked(&self, pid: i32, deadline: Instant) -> bool {
        let environment = environment(pid, deadline);
        self.marks.iter().all(|(key, wanted)| value(&environment, key) == Some(wanted.as_bytes()))
    }

    /// What the living processes serve; none if that was not set, or no process is visible.
    pub(super) fn identity(&self) -> Option<OsString> {
        let deadline = Instant::now() + EXEC_TIME_LIMIT;
        let identity = |pid: i32| {
            let environment = environment(pid, deadline);
            value(&environment, IDENTITY).map(|identity| OsStr::from_bytes(identity).to_owned())
        };
        self.running().into_iter().find_map(identity)
    }

    /// The running processes, each held by a descriptor: no process that later gets its number is meant.
    pub(super) fn held(&self) -> Vec<HeldProcess> {
        let held = self.running().into_iter().map(HeldProcess::open);
        // The number can have become another process's before it was opened.
        held.filter(|process| self.is_marked(process.pid, Instant::now() + EXEC_TIME_LIMIT)).collect()
    }

    /// Waits for the end of a child of this process, or up to this limit.
    pub(super) fn wait_for(child: i32, limit: Duration) {
        match HeldProcess::open(child).descriptor {
            Some(descriptor) => drop(is_readable_within(&descriptor, limit)),
            None => sleep(limit),
        }
    }

    /// Waits for all of them to end, and for those that they start in the meantime. Returns whether they did.
    pub(super) fn wait_until_ended(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
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

    /// Kills all that live, and any process that they start in the meantime.
    pub(super) fn kill(&self, path: &Path) -> Result<()> {
        let deadline = Instant::now() + KILL_TIME_LIMIT;
        loop {
            let held = self.held();
            if held.is_empty() {
                return Ok(());
            }
            held.iter().for_each(HeldProcess::kill);
            if !held.iter().all(|process| process.has_ended_by(self, deadline)) {
                let pids: Vec<i32> = held.iter().map(|process| process.pid).collect();
                let reason = format!("its daemon can't be killed: process {pids:?}");
                return Err(Error::new(ErrorKind::Unresponsive, "end the daemon of", reason).at(path));
            }
        }
    }
}

/// A process that is held by a descriptor (`pidfd_open(2)`, Linux 5.3), or known by its number only.
pub(super) struct HeldProcess {
    pid: i32,
    descriptor: Option<OwnedFd>,
}

impl HeldProcess {
    fn open(pid: i32) -> Self {
        let number =
            rustix::process::Pid::from_raw(pid).filter(|_| features::has(Feature::ProcessDescriptor));
        let descriptor = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        Self { pid, descriptor }
    }

    /// An error means that the process is gone. The next check shows that.
    fn kill(&self) {
        match &self.descriptor {
            Some(descriptor) => drop(pidfd_send_signal(descriptor, rustix::process::Signal::KILL)),
            None => drop(kill(Pid::from_raw(self.pid), Signal::SIGKILL)),
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
    let Ok(all) = fs::read_dir("/proc") else { return true };
    let mut numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let own = rustix::process::geteuid().as_raw().to_string();
    let has_other_user = |pid: i32| {
        // The process name in it can be any bytes.
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        users.split_whitespace().any(|user| user != own)
    };
    let is_denied = |pid: i32| {
        let read = fs::read(format!("/proc/{pid}/environ"));
        read.is_err_and(|error| error.kind() == ErrorOfIo::PermissionDenied)
    };
    numbers.any(|pid| is_denied(pid) && has_other_user(pid))
}

fn value<'e>(environment: &'e [u8], key: &str) -> Option<&'e [u8]> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| variable.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
}

/// The environment of a process. A process in the middle of an `exec` has none yet: this waits for it until
/// the deadline.
fn environment(pid: i32, deadline: Instant) -> Vec<u8> {
    let stat =
        || String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).unwrap_or_default()).into_owned();
    // A file that was opened before an exec reads as empty after it, and a process can execute one program
    // after another.
    for _ in 0..MAX_READS {
        match read_at_once(&format!("/proc/{pid}/environ")) {
            Ok(nothing) if nothing.is_empty() => {}
            // No permission, or the process is gone.
            known => return known.unwrap_or_default(),
        }
        let mut recorded = EnvironmentState::from_stat(&stat());
        while recorded == EnvironmentState::NotYet && Instant::now() < deadline {
            sleep(Duration::from_micros(100));
            recorded = EnvironmentState::from_stat(&stat());
        }
        if recorded == EnvironmentState::Absent {
            break;
        }
    }
    Vec::new()
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

/// Whether the kernel has recorded where the environment of a process is, from its line in `/proc/PID/stat`
/// (proc(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EnvironmentState {
    /// An `exec` has replaced the memory and closed the close-on-exec descriptors. The kernel sets the
    /// environment's start and end to one address, then finds the end, and records the addresses of the
    /// code last.
    NotYet,
    /// The process has ended, is a kernel thread, or its environment is empty.
    Absent,
    Present,
}

impl EnvironmentState {
    fn from_stat(stat: &str) -> Self {
        const EXITING: u64 = 0x4;
        const KERNEL_THREAD: u64 = 0x0020_0000;
        // The fields after the process name, which can contain anything, start with the third.
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let (Some(state), Some(flags), Some(start_of_code)) = (field(3), field(9), field(26)) else {
            return Self::Absent;
        };
        let has_none = flags.parse::<u64>().is_ok_and(|flags| flags & (EXITING | KERNEL_THREAD) != 0);
        if matches!(state, "Z" | "X") || has_none {
            Self::Absent
        } else if start_of_code == "0" {
            Self::NotYet
        } else if field(50) == field(51) {
            Self::Absent
        } else {
            Self::Present
        }
    }
}

#[cfg(test)]
mod tests {
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
            let mut child = Command::new("sleep").arg("60").envs(marks).spawn().unwrap();
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
        let mut child =
            Command::new("sh").args(["-c", again, again]).envs(others).envs(marks).spawn().unwrap();
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
        let (one, other) =
            (DaemonStart::new(place, Some(OsStr::new("a"))), DaemonStart::new(place, Some(OsStr::new("b"))));
        let mut child =
            Command::new("sleep").arg("60").envs(one.processes().marks().iter().cloned()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let known =
            [&Processes::for_place(place), one.processes(), other.processes()].map(Processes::running);
        assert_eq!(Processes::for_place(place).identity(), Some("a".into()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(known, [vec![pid], vec![pid], vec![]]);
    }

    #[test]
    fn only_a_process_that_will_have_an_environment_is_waited_for() {
        let stat = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        assert_eq!(EnvironmentState::from_stat(&stat("self")), EnvironmentState::Present);
        let own = stat("self");
        let fields: Vec<&str> = own.trim().rsplit_once(") ").unwrap().1.split(' ').collect();
        let with = |changes: &[(usize, &str)]| {
            let mut fields = fields.clone();
            changes.iter().for_each(|(number, value)| fields[number - 3] = value);
            EnvironmentState::from_stat(&format!("1 (a ) b) {}", fields.join(" ")))
        };
        let (before, middle) = ([(26, "0"), (50, "0"), (51, "0")], [(26, "0"), (50, "4096"), (51, "4096")]);
        assert_eq!([with(&before), with(&middle)], [EnvironmentState::NotYet; 2]);
        assert_eq!(with(&middle[1..]), EnvironmentState::Absent, "an empty environment");
        assert_eq!(with(&[(3, "Z"), (26, "0")]), EnvironmentState::Absent, "it has ended");
        assert_eq!(with(&[(9, "2129984"), (26, "0")]), EnvironmentState::Absent, "a kernel thread");
        assert_eq!(with(&[(9, "4194308"), (26, "0")]), EnvironmentState::Absent, "it is about to end");
        assert_eq!(EnvironmentState::from_stat(""), EnvironmentState::Absent, "it is gone");
    }
}
