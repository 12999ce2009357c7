//! What a driver does for a daemon in another pod while it runs: it keeps the device, and gives it to the next mounter if
//! that of the daemon has ended.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::FuseDaemon;
use super::super::daemon::First;
use super::super::daemon_start_lock::{DaemonStartLock, lock_threads};
use super::super::device::is_connected;
use super::super::recover::{after_end, has_died};
use super::super::watch::{DaemonEnd, DaemonRun, spawn};
use super::client::{request, serve_request};
use super::handle::{Begun, Mounter};
use super::message::Message;
use super::socket::MESSAGE_TIME_LIMIT;
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::health::{MountHealth, health_within};
use crate::place::target::Target;

const HAND_OVER: &str = "hand over the device of";
/// How long a mounter without a pod is waited for: csi-kube's `FusePods` makes another pod within a minute.
const POD_TIME_LIMIT: Duration = Duration::from_secs(90);
/// How long a daemon that continues a mount can take to answer.
const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(15);
const LOOK_TIME_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

impl Mounter {
    /// Mounts, and has the mounter start the daemon. The receiver gets the reason when the daemon ends.
    pub(in crate::flow::fuse) fn serve(
        &self,
        staging: &Target,
        daemon: &FuseDaemon,
        run: DaemonRun,
    ) -> Result<Receiver<String>> {
        // An earlier one of the place, without a mount: it can still store what it has.
        self.try_end(staging.path(), daemon.unmount_time_limit)?;
        let device = daemon.mount(staging)?;
        // A program that fails at its first start has no users who could wait for the next one.
        let first = FuseDaemon { is_continued: false, ..daemon.clone() };
        let request = serve_request(First::IsFirst, staging.path(), &first, device);
        let (connection, _) = self.ask(staging.path(), &request, daemon.ready_time_limit)?;
        // Its users get an error when the only process that has it open ends.
        let device = request.device.filter(|_| daemon.is_continued);
        Ok(self.follow(run, daemon.clone(), connection, device, Begun::Started))
    }

    /// Tells the mounter what the daemon of a place is from now on: one that serves, with these credentials.
    pub(in crate::flow::fuse) fn update(&self, place: &Path, daemon: &FuseDaemon) -> Result<()> {
        self.ask(place, &request("renew", place).daemon(daemon), MESSAGE_TIME_LIMIT).map(drop)
    }

    /// Gives a daemon that runs its new credentials, and follows it.
    pub(in crate::flow::fuse) fn renew(&self, staging: &Target, daemon: &FuseDaemon) -> Result<()> {
        self.update(staging.path(), daemon)?;
        // The mounter does not know a daemon that an earlier version of the driver has started as its child.
        let Some(attached) = self.attach(staging.path())? else { return Ok(()) };
        let run = DaemonRun::new(staging, daemon, 0);
        drop(self.follow(run, daemon.clone(), attached.connection, attached.device, Begun::Found));
        Ok(())
    }

    /// Follows a daemon that runs, for a driver that has just started.
    pub(in crate::flow::fuse) fn resume(&self, staging: &Target) -> Result<()> {
        if let Some(attached) = self.attach(staging.path())? {
            // The next stage brings what it takes to start it again.
            let run = DaemonRun::new(staging, &attached.daemon, 0);
            drop(self.follow(run, attached.daemon, attached.connection, attached.device, Begun::Resumed));
        }
        Ok(())
    }

    /// Follows a daemon in a thread until it has ended. The receiver gets the reason.
    fn follow(
        &self,
        run: DaemonRun,
        daemon: FuseDaemon,
        connection: UnixStream,
        device: Option<OwnedFd>,
        begun: Begun,
    ) -> Receiver<String> {
        let (sender, ended) = channel();
        let place = run.staging.clone();
        let identity = daemon.identity.clone();
        let Some(number) = self.add_follower(&place, connection.try_clone().ok(), identity, begun) else {
            return ended;
        };
        let follower = Follower { mounter: self.clone(), place, daemon, number, device };
        spawn(move || {
            let since = Instant::now();
            let mounter = follower.mounter.clone();
            let (reason, last_lines) = follower.until_end(connection);
            // Once the mount is ready, nobody receives this.
            let _ = sender.send(reason.clone());
            // A later stage can have started the next daemon already, or another thread follows this one.
            if mounter.remove_follower(&run.staging, number) {
                if has_died(&run.staging) {
                    mounter.set_last_end(&run.staging, reason);
                }
                after_end(run, &DaemonEnd { lived: since.elapsed(), status: None, last_lines });
            }
        });
        ended
    }
}

/// One daemon, as far as its successor has to know it. It has the daemon's secrets.
struct Follower {
    mounter: Mounter,
    place: PathBuf,
    daemon: FuseDaemon,
    /// Which thread this is.
    number: u64,
    device: Option<OwnedFd>,
}

impl Follower {
    /// Returns why the daemon ended, and the last lines that it printed. The device is closed then, so that its users get
    /// an error.
    fn until_end(self, mut connection: UnixStream) -> (String, String) {
        drop(connection.set_read_timeout(None));
        loop {
            let Ok(Some(mut event)) = Message::receive(&connection) else {
                self.mounter.daemon_ended(&self.place, self.number);
                match self.device.as_ref().and_then(|device| self.hand_over(device)) {
                    Some(next) => {
                        connection = next;
                        let copy = connection.try_clone().ok();
                        self.mounter.daemon_continued(&self.place, self.number, copy);
                    }
                    None => {
                        let text = "the pod of its daemon has ended".to_owned();
                        return (text.clone(), format!(": {text}"));
                    }
                }
                continue;
            };
            let kind = event.next_text().unwrap_or_default();
            let text = event.next_text().unwrap_or_default();
            let last_lines = event.next_text().unwrap_or_default();
            if kind != "continued" {
                self.mounter.daemon_ended(&self.place, self.number);
                return (text, last_lines);
            }
            self.mounter.daemon_continued(&self.place, self.number, None);
            let at = self.place.display();
            tracing::warn!(%at, "a FUSE daemon has died, and the next one continues its mount: {text}");
            self.end_unless_it_answers();
        }
    }

    /// Ends a daemon that has continued the mount and does not answer: its users would wait for ever.
    fn end_unless_it_answers(&self) -> bool {
        let answers = answers(&self.place);
        if !answers && let Err(error) = self.mounter.end_daemon(&self.place, Duration::ZERO) {
            tracing::warn!(%error, "a FUSE daemon that does not answer could not be ended");
        }
        answers
    }

    /// Gives the device to the next mounter. Returns `None` if that is not possible in time, or if the volume is unstaged
    /// meanwhile.
    fn hand_over(&self, device: &OwnedFd) -> Option<UnixStream> {
        let begun = Instant::now();
        let at = self.place.display();
        let mut is_said = false;
        while is_connected(device) {
            // Also before the first attempt: what answers there can end each connection.
            sleep(PAUSE);
            match self.try_hand_over(device) {
                Ok(None) => return None,
                Ok(connection) => {
                    tracing::warn!(%at, "a mounter of FUSE daemons has ended, and the next one continues the mount");
                    return connection;
                }
                Err(error) => {
                    let is_final = !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Busy);
                    let limit = self.time_limit();
                    if is_final || begun.elapsed() > limit {
                        tracing::warn!(%error, %at, "a FUSE mount could not be continued by another mounter");
                        return None;
                    }
                    if !std::mem::replace(&mut is_said, true) {
                        tracing::warn!(%error, %at, ?limit, "the users of a FUSE mount wait for its next mounter");
                    }
                }
            }
        }
        None
    }

    /// How long users can wait for the next mounter. Kubernetes starts a container that has ended again, after pauses that
    /// grow; nobody may make a pod that is gone again.
    fn time_limit(&self) -> Duration {
        let limit = self.daemon.continue_time_limit;
        if self.mounter.has_pod(&self.place) { limit } else { limit.min(POD_TIME_LIMIT) }
    }

    /// Returns no connection if this is no longer the daemon of the place.
    fn try_hand_over(&self, device: &OwnedFd) -> Result<Option<UnixStream>> {
        if !self.mounter.is_follower(&self.place, self.number) {
            return Ok(None);
        }
        let staging = Target::new(&self.place)?;
        // A stage and an unstage take the same locks.
        let _threads = lock_threads(HAND_OVER, &staging, PAUSE)?;
        let _processes = DaemonStartLock::take(HAND_OVER, &staging, PAUSE)?;
        if let Some(attached) = self.mounter.attach(&self.place)? {
            // The next message is the daemon's end.
            drop(attached.connection.set_read_timeout(None));
            return Ok(Some(attached.connection));
        }
        let copy = device.try_clone().map_err(|error| Error::os(HAND_OVER, &self.place, error))?;
        let request = serve_request(First::Continues, &self.place, &self.daemon, Some(copy));
        let (connection, _) = self.mounter.ask(&self.place, &request, MESSAGE_TIME_LIMIT)?;
        if self.end_unless_it_answers() {
            drop(connection.set_read_timeout(None));
            return Ok(Some(connection));
        }
        let reason = format!("the next daemon did not answer within {ANSWER_TIME_LIMIT:?}");
        Err(Error::new(ErrorKind::Unresponsive, HAND_OVER, reason).at(&self.place))
    }
}

/// Whether the mount answers, or is no longer mounted.
fn answers(place: &Path) -> bool {
    let deadline = Instant::now() + ANSWER_TIME_LIMIT;
    loop {
        match health_within(place, LOOK_TIME_LIMIT) {
            Ok(MountHealth::Unresponsive) if Instant::now() < deadline => {}
            Ok(MountHealth::Unresponsive | MountHealth::Dead(_)) | Err(_) => return false,
            Ok(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::socket::SOCKET;
    use super::*;

    /// Each message of another driver's daemon would be late, and the daemon taken for one that has ended.
    #[test]
    fn the_end_of_a_daemon_that_another_driver_has_handed_over_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(SOCKET)).unwrap();
        std::thread::spawn(move || {
            let (connection, _) = listener.accept().unwrap();
            drop(Message::receive(&connection));
            drop(Message::new("serving").daemon(&FuseDaemon::new("sleep")).send(&connection));
        });
        let mounter = Mounter::at(directory.path());
        let place = directory.path().join("place");
        let number = mounter.add_follower(&place, None, None, Begun::Found).unwrap();
        let daemon = FuseDaemon::new("sleep");
        let follower = Follower { mounter, place, daemon, number, device: None };
        let device = std::fs::File::open("/dev/null").unwrap().into();
        let connection = follower.try_hand_over(&device).unwrap().unwrap();
        assert_eq!(connection.read_timeout().unwrap(), None);
    }

    #[test]
    fn a_mounter_that_closes_each_connection_is_asked_at_intervals() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(SOCKET)).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                drop(Message::receive(&connection));
                drop(Message::new("serving").daemon(&FuseDaemon::new("sleep")).send(&connection));
            }
        });
        let mounter = Mounter::at(directory.path());
        let place = directory.path().join("place");
        let number = mounter.add_follower(&place, None, None, Begun::Found).unwrap();
        let device = Some(std::fs::File::open("/dev/null").unwrap().into());
        let daemon = FuseDaemon::new("sleep");
        let follower = Follower { mounter: mounter.clone(), place: place.clone(), daemon, number, device };
        let (connection, _) = UnixStream::pair().unwrap();
        let begun = Instant::now();
        let ended = std::thread::spawn(move || follower.until_end(connection));
        while asked.load(Ordering::SeqCst) < 3 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not asked");
            sleep(PAUSE);
        }
        let count = asked.load(Ordering::SeqCst);
        let most = begun.elapsed().as_millis() / PAUSE.as_millis();
        mounter.add_follower(&place, None, None, Begun::Found);
        ended.join().unwrap();
        assert!(count as u128 <= most, "{count} times, and not {most}");
    }
}
