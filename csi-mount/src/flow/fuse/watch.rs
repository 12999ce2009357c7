//! Watching a daemon: its output is copied into the log, and its end is noticed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::FuseDaemon;
use super::device::is_connected;
use super::output::{Copier, LastLines, Output};
use super::processes::{Leader, Processes};
use super::secrets::Secrets;
use crate::mounted::health::{MountHealth, health_within};
use crate::place::owner::Owner;
use crate::place::target::Target;

/// How often the output is copied. A daemon that starts can end at once, so the first pauses are shorter.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// The time limit of a look at the mount of a daemon that has lost a process.
const HEALTH_TIME_LIMIT: Duration = Duration::from_secs(5);

/// What the caller of a start learns about the program.
pub(super) struct Watched {
    pub(super) ended: Receiver<ExitStatus>,
    pub(super) last_lines: LastLines,
    /// Set when the mount answers: then there is a daemon, also if it dies before the thread that watches has seen it.
    pub(super) is_ready: Arc<AtomicBool>,
    pub(super) output: Output,
}

/// One run of a daemon, as far as its successor has to know it.
pub(super) struct DaemonRun {
    /// The path only: an open directory would keep the mount that it is on busy.
    pub(super) staging: PathBuf,
    pub(super) owner: Option<Owner>,
    /// Only if the daemon is to be started again: it has a secret.
    pub(super) again: Option<FuseDaemon>,
    /// How often it was started again without having run for a while.
    pub(super) restarts: u32,
    /// Whether its stage has succeeded. Otherwise that stage's caller tries again, and nobody else does. It is final when
    /// the stage releases the lock of its place.
    pub(super) is_staged: Arc<AtomicBool>,
}

impl DaemonRun {
    pub(super) fn new(staging: &Target, daemon: &FuseDaemon, restarts: u32) -> Self {
        let again = daemon.is_restarted.then(|| daemon.clone());
        let owner = staging.owner().cloned();
        let is_staged = Arc::new(AtomicBool::new(true));
        Self { staging: staging.path().to_owned(), owner, again, restarts, is_staged }
    }
}

/// How a run ended.
pub(super) struct DaemonEnd {
    pub(super) lived: Duration,
    /// How its program ended, if this process started it.
    pub(super) status: Option<ExitStatus>,
    /// What it printed last, for a message.
    pub(super) last_lines: String,
}

impl DaemonEnd {
    /// How the program ended, for a message.
    pub(super) fn how(&self) -> String {
        self.status.map(|status| format!(": it ended with {status}")).unwrap_or_default()
    }
}

pub(super) type AtEnd = fn(DaemonRun, &DaemonEnd);

/// A daemon that this process has started.
pub(super) struct StartedDaemon {
    /// The program, or what starts it.
    pub(super) child: Child,
    pub(super) processes: Processes,
    pub(super) output: Output,
    pub(super) secrets: Secrets,
    /// For its lines in the log.
    pub(super) name: String,
    /// The device of its mount, if its program stays in the foreground and has not mounted itself.
    pub(super) device: Option<OwnedFd>,
    /// How long a launcher can take until the daemon runs.
    pub(super) launched: Duration,
}

impl StartedDaemon {
    /// Watches it in a thread, so that the program does not stay a zombie.
    pub(super) fn watch(self, at_end: impl FnOnce(&DaemonEnd) + Send + 'static) -> Watched {
        let Self { child, processes, output, secrets, name, device, launched } = self;
        let (sender, ended) = channel();
        let copier = Copier::new(&output, secrets, processes.place(), name);
        let copier = copier.unwrap_or_else(|error| {
            tracing::warn!(%error, "the output of a FUSE daemon will not be logged");
            None
        });
        let last_lines = copier.as_ref().map(Copier::last_lines).unwrap_or_default();
        let watch = Watch { place: processes.place().to_owned(), processes, copier, device };
        let is_ready = Arc::new(AtomicBool::new(false));
        let was_ready = Arc::clone(&is_ready);
        spawn(move || watch.until_end(Some((child, sender)), launched, &was_ready, at_end));
        Watched { ended, last_lines, is_ready, output }
    }
}

/// Watches a daemon that an earlier process started, unless a thread of this process already does.
///
/// That earlier process can still live, and watch it too, while a plugin is replaced. Its output is copied when that one
/// has ended. Both act on the daemon's end: a start is safe to repeat, and who lives starts it again.
pub(super) fn watch_existing(staging: &Target, daemon: &FuseDaemon, at_end: AtEnd) {
    let processes = Processes::for_place(staging.path());
    let Some(output) = processes.running().into_iter().find_map(Output::of_process) else { return };
    let at = staging.path().display().to_string();
    match Copier::new(&output, daemon.secrets(), staging.path(), at) {
        Ok(Some(copier)) => {
            let run = DaemonRun::new(staging, daemon, 0);
            let watch = Watch { place: run.staging.clone(), processes, copier: Some(copier), device: None };
            let is_ready = AtomicBool::new(true);
            spawn(move || watch.until_end(None, Duration::ZERO, &is_ready, |end| at_end(run, end)));
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "the output of a FUSE daemon can't be read"),
    }
}

pub(super) fn spawn(run: impl FnOnce() + Send + 'static) {
    let spawned = std::thread::Builder::new().name("fuse-daemon".to_owned()).spawn(run);
    if let Err(error) = spawned {
        tracing::warn!(%error, "the output and the end of a FUSE daemon will not be logged");
    }
}

struct Watch {
    place: PathBuf,
    processes: Processes,
    copier: Option<Copier>,
    device: Option<OwnedFd>,
}

impl Watch {
    fn until_end(
        mut self,
        child: Option<(Child, Sender<ExitStatus>)>,
        launched: Duration,
        is_ready: &AtomicBool,
        at_end: impl FnOnce(&DaemonEnd),
    ) {
        let start = Instant::now();
        let status = child.and_then(|(child, sender)| self.until_program_ended(child, &sender));
        let mut was_seen = false;
        // A program that puts itself into the background ends with success.
        let mut has_lost_one = launched.is_zero() && status.is_some_and(|status| !status.success());
        let mut known = 0;
        loop {
            was_seen |= is_ready.load(Ordering::SeqCst);
            let held = self.processes.held();
            if held.is_empty() && (was_seen || start.elapsed() >= launched) {
                break;
            }
            has_lost_one |= held.len() < known;
            known = held.len();
            if std::mem::take(&mut has_lost_one) && was_seen && self.is_not_served() {
                self.end_helpers();
            }
            was_seen |= !held.is_empty();
            let until = Instant::now() + PAUSES[1];
            if held.is_empty() {
                sleep(PAUSES[1]);
            }
            for process in &held {
                process.has_ended_by(&self.processes, until);
            }
            self.copy();
        }
        let last_lines = self.copier.map(|mut copier| {
            copier.finish();
            copier.last_lines().text()
        });
        at_end(&DaemonEnd { lived: start.elapsed(), status, last_lines: last_lines.unwrap_or_default() });
    }

    /// Whether one of the daemon's processes served the mount and has ended, and what is left only keeps it from being lost.
    fn is_not_served(&self) -> bool {
        // With a device, the program was the one.
        self.device.is_none()
            && matches!(
                health_within(&self.place, HEALTH_TIME_LIMIT),
                Ok(MountHealth::Unresponsive | MountHealth::Dead(_))
            )
    }

    /// The users of a mount whose daemon has died would wait until the last process that has the device has ended.
    fn end_helpers(&self) {
        if let Err(error) = self.processes.kill(Vec::new()) {
            tracing::info!(%error, "a helper process of a FUSE daemon that has died stays");
        }
    }

    fn copy(&mut self) {
        if let Some(copier) = &mut self.copier {
            copier.copy();
        }
    }

    fn until_program_ended(&mut self, mut child: Child, sender: &Sender<ExitStatus>) -> Option<ExitStatus> {
        let program = Leader::of(&child);
        let mut pause = PAUSES[0];
        while !program.has_ended_within(pause) {
            self.copy();
            pause = (pause * 2).min(PAUSES[1]);
        }
        self.copy();
        if self.device.take().is_some_and(|device| is_connected(&device)) {
            // As long as the program is not waited for, the number of its group is no other one's.
            program.kill_group();
            self.end_helpers();
        }
        let status = child.wait().ok()?;
        tracing::info!(%status, at = %self.place.display(), "the program that served a FUSE filesystem has ended");
        // Once the mount is ready, nobody receives this.
        let _ = sender.send(status);
        Some(status)
    }
}
