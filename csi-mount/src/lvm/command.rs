//! lvm2's commands: one at a time for a volume group, and none that changes something is ever killed.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use std::{io, thread};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::tool::{self, Bounds, Output, ToolInput};
use crate::sys::descriptor_copies;

const LVM: &str = "lvm";
/// How much a report can print: 2 KiB for each of 30,000 volumes.
const LONGEST_REPORT: usize = 64 << 20;
/// How much of a command's messages an error has.
const LONGEST_TEXT: usize = 8 << 10;

/// The files that the driver has open don't concern lvm, which would warn of each.
const NO_WARNINGS: (&str, &str) = ("LVM_SUPPRESS_FD_WARNINGS", "1");
/// Without it lvm waits on a semaphore for a udev that is not in this container's IPC namespace.
const NO_UDEV: (&str, &str) = ("DM_DISABLE_UDEV", "1");
/// Reports have nothing but JSON on their standard output, and times in seconds, whatever `lvm.conf` says.
const ONLY_JSON: &str = "log{report_command_log=0}report{time_format=\"%s\"}";
/// Also starts no `dmeventd` in this container.
const NO_DAEMON: &str = "log{report_command_log=0}report{time_format=\"%s\"}activation{monitoring=0}";

/// How lvm is run.
#[derive(Debug)]
pub(super) struct Lvm {
    program: PathBuf,
    /// The words before lvm's own arguments.
    words: Vec<OsString>,
    is_on_host: bool,
    time_limit: Duration,
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
pub(super) struct Turn(#[expect(dead_code, reason = "it is dropped")] Arc<HeldTurn>);

#[derive(Debug)]
struct HeldTurn(Arc<Turns>);

impl Drop for HeldTurn {
    fn drop(&mut self) {
        *self.0.lock() = None;
        self.0.ended.notify_all();
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lvm {
    /// Finds lvm, or the program that starts it on the host.
    pub(super) fn find(launcher: &[String], time_limit: Duration) -> Result<Self> {
        let (program, words) = match launcher.split_first() {
            None => (tool::find(LVM, Some("lvm2"))?, Vec::new()),
            Some((program, words)) => {
                let words = words.iter().map(OsString::from).chain([LVM.into()]);
                (tool::find(program, None)?, words.collect())
            }
        };
        let is_on_host = !launcher.is_empty();
        Ok(Self { program, words, is_on_host, time_limit, turns: Arc::default() })
    }

    /// Waits until nothing else changes the volume group.
    ///
    /// # Errors
    /// [`ErrorKind::Pending`] at the time limit.
    pub(super) fn turn(&self, work: &'static str) -> Result<Turn> {
        let turns = &self.turns;
        let is_taken = |work: &mut Option<&'static str>| work.is_some();
        let waited = turns.ended.wait_timeout_while(turns.lock(), self.time_limit, is_taken);
        let (mut at_work, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = *at_work {
            return Err(self.pending(work, &format!("another operation ({other})")));
        }
        *at_work = Some(work);
        Ok(Turn(Arc::new(HeldTurn(Arc::clone(turns)))))
    }

    /// Runs a command that changes something. At the time limit it runs on.
    ///
    /// # Errors
    /// [`ErrorKind::Pending`] at the time limit; [`ErrorKind::ToolFailed`] if it fails.
    pub(super) fn change(&self, turn: &Turn, arguments: &[String]) -> Result<()> {
        let output = memfd_create("csi-mount lvm", MemfdFlags::CLOEXEC);
        let output = File::from(output.map_err(|error| Error::os("run", LVM, error))?);
        let (name, options) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (&**name, rest));
        let mut command = self.command(name, options);
        let streams = output.try_clone().and_then(|copy| Ok((copy, output.try_clone()?)));
        let (stdout, stderr) = streams.map_err(|error| Error::os("run", LVM, error))?;
        // A file and no pipe: a command that outlives this process would be killed when it writes to it.
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        tracing::debug!(command = ?arguments, "lvm");
        let (sender, receiver) = mpsc::channel();
        let held = turn.clone();
        let run = move || {
            let ended = descriptor_copies::spawn(&mut command).and_then(|mut child| child.wait());
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
        let words: Vec<OsString> = self.words(name, &options).collect();
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

    fn command(&self, name: &str, options: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.words(name, options)).env_clear().env("LC_ALL", "C").current_dir("/");
        command.env("PATH", tool::search_path()).envs(self.environment());
        command
    }

    fn words(&self, name: &str, options: &[String]) -> impl Iterator<Item = OsString> {
        let settings = if self.is_on_host { ONLY_JSON } else { NO_DAEMON };
        let fixed = [name.into(), "--config".into(), settings.into()];
        self.words.iter().cloned().chain(fixed).chain(options.iter().map(OsString::from))
    }

    fn environment(&self) -> Vec<(&'static str, &'static str)> {
        if self.is_on_host { vec![NO_WARNINGS] } else { vec![NO_WARNINGS, NO_UDEV] }
    }

    fn pending(&self, work: &'static str, what: &str) -> Error {
        let reason = format!("{what} still runs after {:?}", self.time_limit);
        Error::new(ErrorKind::Pending, work, reason).hint("try again: it is not stopped")
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// `sh -c SCRIPT lvm NAME --config … ARGUMENTS` in place of lvm.
    fn lvm(script: &str, limit: Duration) -> Lvm {
        Lvm::find(&["sh", "-c", script].map(str::to_owned), limit).unwrap()
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
}
