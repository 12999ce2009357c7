//! lvm2's commands: one at a time for a volume group, and none that changes something is ever killed.
//!
//! A command outlives a process that is killed. Until it has lvm's own lock, the next process would not see what it is
//! about to do. So each process locks the volume group, by a byte of the device mapper's control device, and each
//! command has this open file as its standard input: the lock ends with the last of them.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::device::sysfs::Sysfs;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::tool::{self, Bounds, Output, ToolInput};
use crate::lvm::disks::{self, KnownDisk};
use crate::sys::deadline::deadline;
use crate::sys::descriptor::byte_lock;
use crate::sys::descriptor_copies;

const LVM: &str = "lvm";
const CONTROL: &str = "/dev/mapper/control";
/// Between two tries to lock it.
const POLL: Duration = Duration::from_millis(20);
/// How much a report can print: 2 KiB for each of 30,000 volumes.
const LONGEST_REPORT: usize = 64 << 20;
/// How much of a command's messages an error has.
const LONGEST_TEXT: usize = 8 << 10;

/// The files that the driver has open don't concern lvm, which would warn of each.
const NO_WARNINGS: (&str, &str) = ("LVM_SUPPRESS_FD_WARNINGS", "1");
/// Without it lvm waits on a semaphore for a udev that is not in this container's IPC namespace.
const NO_UDEV: (&str, &str) = ("DM_DISABLE_UDEV", "1");
/// Whatever `lvm.conf` says: reports have nothing but JSON on their standard output, with all fields, as the parser of
/// reports knows them, and times in seconds; lvm discards nothing that was proven to read as zeros; and it keeps no copy of
/// the metadata for each change.
const SETTINGS: &str = "log{report_command_log=0 command_names=0 prefix=\"  \"}\
     report{time_format=\"%s\" binary_values_as_numeric=0 list_item_separator=\",\" compact_output=0 prefixes=0}\
     devices{issue_discards=0} backup{archive=0}";
/// In this container: starts no `dmeventd` either.
const NO_DAEMON: &str = "activation{monitoring=0}";

/// How lvm is run.
#[derive(Debug)]
pub(super) struct Lvm {
    program: PathBuf,
    /// The words before lvm's own arguments.
    words: Vec<OsString>,
    group: String,
    /// What is locked.
    control: PathBuf,
    /// None to run it here.
    launcher: Vec<String>,
    time_limit: Duration,
    /// The disks of the group, from its first report on.
    pub(super) disks: Option<Vec<KnownDisk>>,
    pub(super) sysfs: Sysfs,
    turns: Arc<Turns>,
}

/// Who works on the volume group.
#[derive(Debug, Default)]
struct Turns {
    work: Mutex<Option<&'static str>>,
    ended: Condvar,
}

/// The right to change the volume group. A command that runs on in the background has it too.
#[derive(Debug, Clone)]
pub(super) struct Turn(Arc<HeldTurn>);

#[derive(Debug)]
struct HeldTurn {
    turns: Arc<Turns>,
    /// Locked against other processes. None without a device mapper, where no command can have begun.
    control: Option<File>,
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        self.control = None;
        *self.turns.lock() = None;
        self.turns.ended.notify_all();
    }
}

impl Turn {
    /// The standard input of a command, by which it has the lock too.
    fn stdin(&self) -> io::Result<Stdio> {
        let control = self.0.control.as_ref().map(File::try_clone).transpose()?;
        Ok(control.map_or_else(Stdio::null, Stdio::from))
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lvm {
    /// Finds lvm, or the program that starts it on the host.
    pub(super) fn find(group: &str, launcher: &[String], time_limit: Duration) -> Result<Self> {
        let (program, words) = program(launcher, LVM, "lvm2")?;
        Ok(Self {
            program,
            words,
            group: group.to_owned(),
            control: CONTROL.into(),
            launcher: launcher.to_owned(),
            time_limit,
            disks: None,
            sysfs: Sysfs::system(),
            turns: Arc::default(),
        })
    }

    /// Waits until nothing else changes the volume group.
    ///
    /// # Errors
    /// [`ErrorKind::Pending`] at the time limit.
    pub(super) fn turn(&self, work: &'static str) -> Result<Turn> {
        let turns = &self.turns;
        let end = deadline(self.time_limit);
        let is_taken = |work: &mut Option<&'static str>| work.is_some();
        let waited = turns.ended.wait_timeout_while(turns.lock(), self.time_limit, is_taken);
        let (mut at_work, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = *at_work {
            return Err(self.pending(work, &format!("another operation ({other})")));
        }
        *at_work = Some(work);
        drop(at_work);
        let mut held = HeldTurn { turns: Arc::clone(turns), control: None };
        held.control = self.lock_control(work, end)?;
        Ok(Turn(Arc::new(held)))
    }

    /// Keeps other processes away from the volume group.
    fn lock_control(&self, work: &'static str, end: Instant) -> Result<Option<File>> {
        let failed = |error| Error::os(work, &self.control, error);
        let control = match File::options().read(true).write(true).open(&self.control) {
            Err(error) if is_without_driver(&error) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let lock = byte_lock(self.group.as_bytes(), libc::F_WRLCK);
        loop {
            match fcntl(&control, FcntlArg::F_OFD_SETLK(&lock)) {
                Ok(_) => return Ok(Some(control)),
                Err(Errno::EAGAIN) if Instant::now() < end => thread::sleep(POLL),
                Err(Errno::EAGAIN) => return Err(self.pending(work, "a command of another process")),
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    /// Runs a command that changes something. At the time limit it runs on.
    ///
    /// # Errors
    /// [`ErrorKind::Pending`] at the time limit; [`ErrorKind::ToolFailed`] if it fails.
    pub(super) fn change(&self, turn: &Turn, arguments: &[String]) -> Result<()> {
        self.change_with(turn, arguments, ())
    }

    /// As [`change`](Self::change), and drops `guard` when the command has ended.
    pub(super) fn change_with(
        &self,
        turn: &Turn,
        arguments: &[String],
        guard: impl Send + 'static,
    ) -> Result<()> {
        let output = memfd_create("csi-mount lvm", MemfdFlags::CLOEXEC);
        let output = File::from(output.map_err(|error| Error::os("run", LVM, error))?);
        let (name, options) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (&**name, rest));
        let mut command = self.command(name, options)?;
        let streams = output.try_clone().and_then(|copy| Ok((copy, output.try_clone()?)));
        let (stdout, stderr) = streams.map_err(|error| Error::os("run", LVM, error))?;
        // A file and no pipe: a command that outlives this process would be killed when it writes to it.
        command.stdout(stdout).stderr(stderr).process_group(0);
        command.stdin(turn.stdin().map_err(|error| Error::os("run", LVM, error))?);
        tracing::debug!(command = ?arguments, "lvm");
        let (sender, receiver) = mpsc::channel();
        let held = turn.clone();
        let run = move || {
            let ended = descriptor_copies::spawn(&mut command).and_then(|mut child| child.wait());
            drop(command);
            drop(guard);
            drop(held);
            // The caller can have given up.
            drop(sender.send(ended));
        };
        let thread = thread::Builder::new().name("lvm".to_owned()).spawn(run);
        thread.map_err(|error| Error::os("run", LVM, error))?;
        match receiver.recv_timeout(self.time_limit) {
            Ok(ended) => succeeded(name, ended, &output),
            Err(_) => Err(self.pending("change a volume group", &format!("lvm {name}"))),
        }
    }

    /// Runs a command that only reads, and returns what it prints. It is killed at the time limit.
    pub(super) fn report(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        let (name, options) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (*name, rest));
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let words: Vec<OsString> = self.words(name, &options)?.collect();
        let environment = self.environment();
        let given = ToolInput {
            environment: &environment,
            stdout_limit: Some(LONGEST_REPORT),
            ..ToolInput::default()
        };
        let output = tool::run(LVM, &self.program, &words, given, Bounds::from(self.time_limit), |_| Ok(()))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(tool::failed("run a program", &format!("lvm {name}"), &output))
    }

    /// Runs a program beside it, such as dmsetup, or lvm as the administrator does, and returns what it prints. It only reads, or
    /// is done at once.
    pub(super) fn ask(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let (program, mut words) = program(&self.launcher, name, name)?;
        words.extend(arguments.iter().map(OsString::from));
        let environment = self.environment();
        let given =
            ToolInput { environment: &environment, stdout_limit: Some(LONGEST_TEXT), ..ToolInput::default() };
        let output = tool::run(name, &program, &words, given, Bounds::from(self.time_limit), |_| Ok(()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(tool::failed("run a program", name, &output))
    }

    fn command(&self, name: &str, options: &[String]) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(self.words(name, options)?).env_clear().env("LC_ALL", "C").current_dir("/");
        command.env("PATH", tool::search_path()).envs(self.environment());
        Ok(command)
    }

    fn words(&self, name: &str, options: &[String]) -> Result<impl Iterator<Item = OsString>> {
        let more = if self.is_on_host() { "" } else { NO_DAEMON };
        let disks = disks::settings(self.disks.as_deref(), &self.sysfs)?;
        let fixed = [name.into(), "--config".into(), [SETTINGS, more, &disks].concat().into()];
        Ok(self.words.iter().cloned().chain(fixed).chain(options.iter().map(OsString::from)))
    }

    fn is_on_host(&self) -> bool {
        !self.launcher.is_empty()
    }

    fn environment(&self) -> Vec<(&'static str, &'static str)> {
        if self.is_on_host() { vec![NO_WARNINGS] } else { vec![NO_WARNINGS, NO_UDEV] }
    }

    fn pending(&self, work: &'static str, what: &str) -> Error {
        let reason = format!("{what} still runs after {:?}", self.time_limit);
        Error::new(ErrorKind::Pending, work, reason).hint("try again: it is not stopped")
    }
}

/// A program, and the words before its arguments: it is found here, or a launcher starts it on the host.
fn program(launcher: &[String], name: &str, package: &str) -> Result<(PathBuf, Vec<OsString>)> {
    match launcher.split_first() {
        None => Ok((tool::find(name, Some(package))?, Vec::new())),
        Some((program, words)) => {
            let words = words.iter().map(OsString::from).chain([name.into()]);
            Ok((tool::find(program, None)?, words.collect()))
        }
    }
}

fn succeeded(name: &str, ended: io::Result<ExitStatus>, output: &File) -> Result<()> {
    let status = ended.map_err(|error| Error::os("run", LVM, error))?;
    if status.success() {
        return Ok(());
    }
    let mut text = vec![0; LONGEST_TEXT];
    let length = output.metadata().map_or(0, |file| file.len());
    let from = length.saturating_sub(LONGEST_TEXT as u64);
    let read = output.read_at(&mut text, from).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..read]).into_owned();
    Err(tool::failed("run a program", &format!("lvm {name}"), &Output { status, text, stdout: Vec::new() }))
}

/// Whether the kernel has no device mapper. Programs make its node, which leads nowhere then.
fn is_without_driver(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    error.kind() == io::ErrorKind::NotFound || matches!(code, Some(Errno::ENODEV | Errno::ENXIO))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// `sh -c SCRIPT lvm NAME --config … ARGUMENTS` in place of lvm.
    fn lvm(script: &str, limit: Duration) -> Lvm {
        let found = Lvm::find("group", &["sh", "-c", script].map(str::to_owned), limit).unwrap();
        Lvm { control: "/no/such/device".into(), ..found }
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_failure_has_the_commands_messages() {
        let lvm = lvm("echo $1 $4 $LC_ALL; echo why >&2; exit $5", Duration::from_secs(60));
        let turn = lvm.turn("test").unwrap();
        lvm.change(&turn, &words(&["lvcreate", "--yes", "0"])).unwrap();
        let error = lvm.change(&turn, &words(&["lvcreate", "--yes", "5"])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ToolFailed);
        let text = error.to_string();
        assert!(text.ends_with("lvm lvcreate ended with exit status: 5: lvcreate --yes C | why"), "{text}");
        assert_eq!(lvm.report(&["fullreport", "x", "0"]).unwrap(), b"fullreport x C\n");
        assert_eq!(lvm.report(&["fullreport", "x", "1"]).unwrap_err().kind(), ErrorKind::ToolFailed);
    }

    /// With other values of these, reports have another form, or an erased volume's extents are discarded, after which
    /// a disk can return old data.
    #[test]
    fn what_an_administrator_has_in_lvm_conf_changes_no_report_and_no_erase() {
        let lvm = lvm("echo \"$2 $3\"", Duration::from_secs(60));
        let given = String::from_utf8(lvm.report(&["fullreport"]).unwrap()).unwrap();
        for setting in [
            "report_command_log=0",
            "command_names=0",
            "prefix=\"  \"",
            "time_format=\"%s\"",
            "binary_values_as_numeric=0",
            "list_item_separator=\",\"",
            "compact_output=0",
            "prefixes=0",
            "issue_discards=0",
            "archive=0",
            "use_devicesfile=0",
            "\"r|.*|\"]",
        ] {
            assert!(given.starts_with("--config ") && given.contains(setting), "{setting} in {given}");
        }
    }

    /// The command waits for a file that the test makes.
    #[test]
    fn a_late_command_goes_on_and_keeps_its_turn() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        // It ends with the directory, so that a failed test leaves no process.
        let script = "until test -e $4; do test -d ${4%/go} && sleep 0.01 || exit; done; echo done > $5";
        let lvm = lvm(script, Duration::from_millis(50));
        let turn = lvm.turn("first").unwrap();
        let error = lvm.change(&turn, &words(&["lvcreate", &path("go"), &path("done")])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Pending, "{error}");
        drop(turn);
        let error = lvm.turn("second").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Pending, "{error}");
        assert!(error.to_string().contains("second: another operation (first) still runs"), "{error}");
        std::fs::write(path("go"), "").unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while lvm.turn("third").is_err() {
            assert!(Instant::now() < end, "the turn never ends");
        }
        assert_eq!(std::fs::read_to_string(path("done")).unwrap(), "done\n");
    }

    /// Without a driver no command can have begun. Whether one has, is not known when the node is denied.
    #[test]
    fn only_a_kernel_without_a_device_mapper_has_no_lock() {
        let is_without = |code: Errno| is_without_driver(&io::Error::from_raw_os_error(code as i32));
        assert!([Errno::ENOENT, Errno::ENODEV, Errno::ENXIO].into_iter().all(is_without));
        assert!(![Errno::EACCES, Errno::EPERM, Errno::EIO].into_iter().any(is_without));
    }

    /// Its process was killed, so nobody else has its turn.
    #[test]
    fn the_next_process_waits_for_a_command_of_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let control = directory.path().join("control");
        File::create(&control).unwrap();
        let go = directory.path().join("go").display().to_string();
        let lvm = |group: &str| {
            let script = "until test -e $4; do test -d ${4%/go} && sleep 0.01 || exit; done";
            let launcher = ["sh", "-c", script].map(str::to_owned);
            let found = Lvm::find(group, &launcher, Duration::from_millis(50)).unwrap();
            Lvm { control: control.clone(), ..found }
        };
        let first = lvm("group");
        let turn = first.turn("first").unwrap();
        let mut command = first.command("lvcreate", std::slice::from_ref(&go)).unwrap();
        let mut child = command.stdin(turn.stdin().unwrap()).spawn().unwrap();
        drop((command, turn));
        let error = lvm("group").turn("second").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Pending, "{error}");
        lvm("another group").turn("third").unwrap();
        std::fs::write(go, "").unwrap();
        child.wait().unwrap();
        lvm("group").turn("second").unwrap();
    }
}
