//! Watching a daemon: its output is copied into the log, and its end is noticed.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::hand_over::{HandOver, device_of, hand_over};
use super::memory::over_memory_limit;
use super::output::{Copier, LastLines, Output};
use super::processes::Processes;
use super::recover::keep_trying;
use super::{FuseDaemon, is_lost};

use crate::{MountState, Owner, Result, Target};

/// How often the output is copied. A daemon that starts can end at once, so the first pauses are shorter.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];
/// A daemon that has continued a mount and dies sooner than this does not get a successor for the same mount.
const RESTARTED_TIME: Duration = Duration::from_secs(60);
/// How long after its daemon's end a mount can take to be unmounted or to report it.
const END_TIME_LIMIT: Duration = Duration::from_secs(5);

/// What the caller of a start learns about the program.
pub(super) struct Watched {
    pub(super) ended: Receiver<ExitStatus>,
    pub(super) last_lines: LastLines,
}

/// Watches a daemon that this process started, in a thread, so that the program does not stay a zombie.
pub(super) fn watch_started(
    (child, device): (Child, Option<OwnedFd>),
    output: &Output,
    (staging, daemon): (&Target, &FuseDaemon),
    processes: Processes,
    restarts: u32,
) -> Watched {
    let (sender, ended) = channel();
    let copier = Copier::new(output, daemon.secrets(), staging.path().display().to_string());
    let copier = copier.unwrap_or_else(|error| {
        tracing::warn!(%error, "the output of a FUSE daemon will not be logged");
        None
    });
    let last_lines = copier.as_ref().map(Copier::last_lines).unwrap_or_default();
    let launched = if daemon.launcher.is_empty() { Duration::ZERO } else { daemon.ready_time_limit };
    let watch = Watch::new(staging, daemon, processes, copier, restarts).with(device);
    spawn(move || watch.run(Some((child, sender)), launched));
    Watched { ended, last_lines }
}

/// Watches a daemon that an earlier process started, unless a process or thread already does.
pub(super) fn watch_existing(staging: &Target, daemon: &FuseDaemon) {
    let processes = Processes::for_place(staging.path());
    let Some(output) = processes.running().into_iter().find_map(Output::of_process) else { return };
    let at = staging.path().display().to_string();
    match Copier::new(&output, daemon.secrets(), at) {
        Ok(Some(copier)) => {
            let device = || processes.running().into_iter().find_map(device_of);
            let device = daemon.is_continued.then(device).flatten();
            let watch = Watch::new(staging, daemon, processes, Some(copier), 0).with(device);
            spawn(move || watch.run(None, Duration::ZERO));
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "the output of a FUSE daemon can't be read"),
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) {
    let spawned = std::thread::Builder::new().name("fuse-daemon".to_owned()).spawn(run);
    if let Err(error) = spawned {
        tracing::warn!(%error, "the output and the end of a FUSE daemon will not be logged");
    }
}

struct Watch {
    /// The path only: an open directory would keep the mount that it is on busy.
    staging: PathBuf,
    owner: Option<Owner>,
    /// Only if the daemon is to be started again: it has a secret.
    again: Option<FuseDaemon>,
    processes: Processes,
    copier: Option<Copier>,
    /// The device that the next daemon gets.
    device: Option<OwnedFd>,
    /// How often it was started again without having run for a while.
    restarts: u32,
}

impl Watch {
    fn new(
        staging: &Target,
        daemon: &FuseDaemon,
        processes: Processes,
        copier: Option<Copier>,
        restarts: u32,
    ) -> Self {
        let again = daemon.is_restarted.then(|| daemon.clone());
        let owner = staging.owner().cloned();
        let staging = staging.path().to_owned();
        Self { staging, owner, again, processes, copier, device: None, restarts }
    }

    fn with(self, device: Option<OwnedFd>) -> Self {
        Self { device, ..self }
    }

    /// `launched` is how long a launcher can take until the daemon runs.
    fn run(mut self, child: Option<(Child, Sender<ExitStatus>)>, launched: Duration) {
        let start = Instant::now();
        if let Some((child, sender)) = child {
            self.until_program_ended(child, &sender);
        }
        let mut was_seen = false;
        loop {
            let held = self.processes.held();
            if held.is_empty() && (was_seen || start.elapsed() >= launched) {
                break;
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
        if let Some(copier) = &mut self.copier {
            copier.finish();
        }
        let lived = start.elapsed();
        self.hand_over(lived);
        self.notice_end(lived);
    }

    /// Gives the device to the next daemon. Afterwards this process has it only if that daemon is watched.
    fn hand_over(&mut self, lived: Duration) {
        // A request that ends each daemon would do so for ever.
        let device = self.device.take().filter(|_| self.restarts == 0 || lived > RESTARTED_TIME);
        let (Some(device), Some(daemon)) = (device, &self.again) else { return };
        // The next daemon gets a new group.
        let (over, last_lines) = (over_memory_limit(&self.staging), self.last_lines());
        match self.target().and_then(|target| hand_over(&target, daemon, device)) {
            Ok(HandOver::NotNeeded) => {}
            Ok(HandOver::Continued) => {
                let at = self.staging.display();
                tracing::warn!(%at, "a FUSE daemon has died, and the next one continues its mount{over}{last_lines}");
            }
            Err(error) => {
                tracing::warn!(%error, "a FUSE mount could not be continued by another daemon{over}{last_lines}");
            }
        }
    }

    fn last_lines(&self) -> String {
        self.copier.as_ref().map(|copier| copier.last_lines().text()).unwrap_or_default()
    }

    fn target(&self) -> Result<Target> {
        let target = Target::new(&self.staging)?;
        Ok(match &self.owner {
            Some(owner) => target.owned_by(owner.clone()),
            None => target,
        })
    }

    fn copy(&mut self) {
        if let Some(copier) = &mut self.copier {
            copier.copy();
        }
    }

    fn until_program_ended(&mut self, mut child: Child, sender: &Sender<ExitStatus>) {
        let mut pause = PAUSES[0];
        loop {
            let ended = child.try_wait();
            self.copy();
            match ended {
                Ok(None) => {}
                Ok(Some(status)) => {
                    tracing::info!(%status, at = %self.staging.display(), "the program that served a FUSE \
                        filesystem has ended");
                    // Once the mount is ready, nobody receives this.
                    let _ = sender.send(status);
                    return;
                }
                Err(_) => return,
            }
            Processes::wait_for(child.id().cast_signed(), pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// A daemon that ends although its filesystem is mounted has died.
    fn notice_end(self, lived: Duration) {
        if !has_died(&self.staging) {
            return;
        }
        let last_lines = self.last_lines();
        let over = over_memory_limit(&self.staging);
        tracing::warn!(at = %self.staging.display(), "a FUSE daemon has died, and its volume is lost until it \
            is started again{over}{last_lines}");
        drop(self.copier);
        if let Some(daemon) = self.again {
            keep_trying(&self.staging, self.owner.as_ref(), &daemon, lived, self.restarts);
        }
    }
}

/// Whether the filesystem is still mounted and has no daemon. An unmount that is in progress is waited for.
///
/// The mount of a later daemon is not looked at: each look makes it busy for a moment.
fn has_died(staging: &Path) -> bool {
    let deadline = Instant::now() + END_TIME_LIMIT;
    let of_place = Processes::for_place(staging);
    let is_mounted =
        || -> Result<bool> { Ok(matches!(Target::new(staging)?.state()?, MountState::Mounted(_))) };
    while of_place.running().is_empty() && is_mounted().unwrap_or(false) {
        if is_lost(staging).unwrap_or(false) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(100));
    }
    false
}
