//! What a driver does for a daemon in another pod while it runs: it keeps the device, and gives it to the next mounter if
//! that of the daemon has ended.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::FuseDaemon;
use super::super::daemon::First;
use super::super::daemon_start_lock::{DaemonStartLock, lock_threads};
use super::super::device::is_connected;
use super::super::watch::{AtEnd, DaemonEnd, DaemonRun, spawn};
use super::client::{Mounter, serve_request};
use super::message::Message;
use super::socket::MESSAGE_TIME_LIMIT;
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::health::{MountHealth, health_within};
use crate::place::target::Target;

const HAND_OVER: &str = "hand over the device of";
/// How long to look for the next mounter. Together with the next limit it is less than the minute after which users
/// get an error.
const MOUNTER_TIME_LIMIT: Duration = Duration::from_secs(40);
/// How long a daemon that continues a mount can take to answer.
const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(15);
const LOOK_TIME_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

/// One daemon, as far as its successor has to know it. It has the daemon's secrets.
pub(super) struct Session {
    run: DaemonRun,
    daemon: FuseDaemon,
    /// Which thread follows it.
    number: u64,
}

impl Session {
    pub(super) fn new(run: DaemonRun, daemon: FuseDaemon) -> Self {
        Self { run, daemon, number: 0 }
    }
}

/// The daemons that this process follows, by place.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Known>);

#[derive(Default)]
struct Known {
    sessions: BTreeMap<PathBuf, Session>,
    last: u64,
}

impl Sessions {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has(&self, place: &Path) -> bool {
        self.known().sessions.contains_key(place)
    }

    /// Replaces what is known of a daemon that is followed. Returns the session if it is not.
    pub(super) fn update(&self, place: &Path, session: Session) -> Option<Session> {
        match self.known().sessions.get_mut(place) {
            Some(known) => {
                *known = Session { number: known.number, ..session };
                None
            }
            None => Some(session),
        }
    }

    fn add(&self, place: &Path, session: Session) -> u64 {
        let mut known = self.known();
        known.last += 1;
        let number = known.last;
        known.sessions.insert(place.to_owned(), Session { number, ..session });
        number
    }

    fn daemon(&self, place: &Path, number: u64) -> Option<FuseDaemon> {
        let known = self.known();
        let session = known.sessions.get(place).filter(|session| session.number == number);
        session.map(|session| session.daemon.clone())
    }

    fn remove(&self, place: &Path, number: u64) -> Option<Session> {
        let mut known = self.known();
        let is_it = known.sessions.get(place).is_some_and(|session| session.number == number);
        if is_it { known.sessions.remove(place) } else { None }
    }
}

impl Mounter {
    /// Follows a daemon in a thread until it has ended. The receiver gets the reason.
    pub(super) fn follow(
        &self,
        place: &Path,
        session: Session,
        connection: UnixStream,
        device: Option<OwnedFd>,
        at_end: AtEnd,
    ) -> Receiver<String> {
        let (sender, ended) = channel();
        let number = self.sessions().add(place, session);
        let follower = Follower { mounter: self.clone(), place: place.to_owned(), number, device };
        spawn(move || {
            let begun = Instant::now();
            let mounter = follower.mounter.clone();
            let place = follower.place.clone();
            let (reason, last_lines) = follower.until_end(connection);
            // Once the mount is ready, nobody receives this.
            let _ = sender.send(reason);
            // A later stage can have started the next daemon already.
            if let Some(session) = mounter.sessions().remove(&place, number) {
                at_end(session.run, &DaemonEnd { lived: begun.elapsed(), status: None, last_lines });
            }
        });
        ended
    }
}

struct Follower {
    mounter: Mounter,
    place: PathBuf,
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
                match self.device.as_ref().and_then(|device| self.hand_over(device)) {
                    Some(next) => connection = next,
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
                return (text, last_lines);
            }
            let at = self.place.display();
            tracing::warn!(%at, "a FUSE daemon has died, and the next one continues its mount: {text}");
            self.end_unless_it_answers();
        }
    }

    /// Ends a daemon that has continued the mount and does not answer: its users would wait for ever.
    fn end_unless_it_answers(&self) -> bool {
        let answers = answers(&self.place);
        if !answers && let Err(error) = self.mounter.end(&self.place, Duration::ZERO) {
            tracing::warn!(%error, "a FUSE daemon that does not answer could not be ended");
        }
        answers
    }

    /// Gives the device to the next mounter. None if that is not possible in time, or the volume is unstaged meanwhile.
    fn hand_over(&self, device: &OwnedFd) -> Option<UnixStream> {
        let deadline = Instant::now() + MOUNTER_TIME_LIMIT;
        while is_connected(device) {
            match self.try_hand_over(device) {
                Ok(None) => return None,
                Ok(connection) => {
                    let at = self.place.display();
                    tracing::warn!(%at, "a mounter of FUSE daemons has ended, and the next one continues the mount");
                    return connection;
                }
                Err(error) => {
                    let is_final = !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Busy);
                    if is_final || Instant::now() > deadline {
                        tracing::warn!(%error, "a FUSE mount could not be continued by another mounter");
                        return None;
                    }
                    sleep(PAUSE);
                }
            }
        }
        None
    }

    /// Returns no connection if this is no longer the daemon of the place.
    fn try_hand_over(&self, device: &OwnedFd) -> Result<Option<UnixStream>> {
        let Some(daemon) = self.mounter.sessions().daemon(&self.place, self.number) else { return Ok(None) };
        let staging = Target::new(&self.place)?;
        // A stage and an unstage take the same locks.
        let _threads = lock_threads(HAND_OVER, &staging, PAUSE)?;
        let _processes = DaemonStartLock::take(HAND_OVER, &staging, PAUSE)?;
        if let Some(attached) = self.mounter.attach(&self.place)? {
            return Ok(Some(attached.connection));
        }
        let copy = device.try_clone().map_err(|error| Error::os(HAND_OVER, &self.place, error))?;
        let request = serve_request(First::Continues, &self.place, &daemon, Some(copy));
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
