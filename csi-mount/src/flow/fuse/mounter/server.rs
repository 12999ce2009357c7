//! The mounter: receives devices, and starts the daemons that serve them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::daemon::First;
use super::super::device::{is_connected, repeat_requests};
use super::super::memory::{MemoryGroup, killed_for_memory, remove_group};
use super::super::output::Output;
use super::super::processes::{DaemonStart, Leader, Processes};
use super::super::secrets::Secrets;
use super::super::start::ended_text;
use super::super::watch::{DaemonEnd, StartedDaemon};
use super::super::{FuseDaemon, credentials};
use super::VERSION;
use super::client::kind_name;
use super::message::{Message, invalid};
use super::socket::{MESSAGE_TIME_LIMIT, SOCKET};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::descriptor::{path_of, peer_user};

const SERVE: &str = "serve as a mounter in";
/// So many daemons in a row can continue a mount and die sooner than this. A request that ends each daemon would do so for
/// ever.
const QUICK_ENDS: u32 = 3;
const QUICK: Duration = Duration::from_secs(60);
/// How long a daemon has to end after SIGTERM, when the mounter ends.
const TERMINATE_TIME_LIMIT: Duration = Duration::from_secs(5);
/// How long a killed daemon can take to end.
const KILL_TIME_LIMIT: Duration = Duration::from_secs(5);

/// The mounter: starts FUSE daemons in its own pod for a driver in another one. See [`Mounter`](super::Mounter).
///
/// It needs no privilege, no capability and no host path: a directory for its socket, in which the driver finds it, and
/// a directory for temporary files, if daemons have [credentials](FuseDaemon::arg_credential). Only root can connect to it.
/// The output of the daemons is in its log (`tracing`, target `csi_mount::fuse_daemon`), each line with the field `at`: the
/// volume ([`FuseDaemon::identity`]), or the staging path.
///
/// Daemons of one mounter have the same user, so each could read the credentials of the others.
#[derive(Debug)]
pub struct MounterServer {
    listener: UnixListener,
    state: Mutex<State>,
    /// A daemon has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    daemons: BTreeMap<PathBuf, Served>,
    last_number: u64,
    /// It takes no new volume.
    is_draining: bool,
    /// It ends its daemons, whose drivers give their devices to another mounter.
    is_leaving: bool,
}

#[derive(Debug)]
struct Served {
    mount: ServedMount,
    processes: Processes,
    /// The program, which is a child of this process.
    program: Arc<Leader>,
    number: u64,
    is_ending: bool,
    /// How many processes of the container were killed before it started.
    killed_for_memory: Option<u64>,
}

/// What stays when the next daemon continues the mount.
#[derive(Debug)]
struct ServedMount {
    daemon: FuseDaemon,
    device: OwnedFd,
    /// All that its daemons were ever given.
    secrets: Secrets,
    /// How many daemons before this one have ended quickly.
    quick_ends: u32,
    followers: Vec<UnixStream>,
}

impl MounterServer {
    /// Makes the socket in this directory.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists): another process serves there. [`NotFound`](ErrorKind::NotFound): the
    /// directory does not exist.
    pub fn bind(directory: impl AsRef<Path>) -> Result<Arc<Self>> {
        let directory = directory.as_ref();
        let failed = |error| Error::os(SERVE, directory, error);
        let opened = fs::File::open(directory).map_err(failed)?;
        // An address has 107 bytes.
        let path = path_of(&opened).join(SOCKET);
        if UnixStream::connect(&path).is_ok() {
            let reason = "another process serves there";
            return Err(Error::new(ErrorKind::AlreadyExists, SERVE, reason).at(directory));
        }
        // Left by an earlier process in this pod.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        // The daemons of a container end with its first process, and their files stay in the pod.
        if std::process::id() == 1 {
            credentials::remove_all();
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        Ok(Arc::new(Self { listener, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Serves until [`drain`](Self::drain) has ended.
    pub fn serve(self: &Arc<Self>) {
        loop {
            match self.listener.accept() {
                Ok((connection, _)) => {
                    let server = Arc::clone(self);
                    super::super::watch::spawn(move || server.handle(connection));
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Takes no new volume from now on, and waits until the last daemon has ended, for at most `limit`. Then it sends
    /// SIGTERM to those that are left, waits some seconds, and lets [`serve`](Self::serve) return.
    ///
    /// A mount that can be continued is not lost then: its driver gives the device to the next mounter.
    pub fn drain(&self, limit: Duration) {
        let mut state = self.state();
        state.is_draining = true;
        if !state.daemons.is_empty() {
            tracing::info!(
                daemons = state.daemons.len(),
                "FUSE daemons still serve mounts; waiting for their end"
            );
        }
        state = self.until(state, limit, |state| state.daemons.is_empty());
        state.is_leaving = true;
        for (place, served) in &state.daemons {
            tracing::warn!(at = %place.display(), "ending a FUSE daemon whose filesystem is still mounted");
            served.processes.terminate(&served.program);
        }
        drop(self.until(state, TERMINATE_TIME_LIMIT, |state| state.daemons.is_empty()));
        // It wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this is so, for at most `limit`.
    fn until<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        limit: Duration,
        is_so: impl Fn(&State) -> bool,
    ) -> MutexGuard<'s, State> {
        let waited = self.changed.wait_timeout_while(state, limit, |state| !is_so(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn handle(self: &Arc<Self>, connection: UnixStream) {
        if let Err(error) = self.answer(&connection) {
            tracing::warn!(%error, "a request to the mounter failed");
        }
    }

    fn answer(self: &Arc<Self>, connection: &UnixStream) -> io::Result<()> {
        connection.set_read_timeout(Some(MESSAGE_TIME_LIMIT))?;
        connection.set_write_timeout(Some(MESSAGE_TIME_LIMIT))?;
        // The daemons have this process's user, and must not get what others have.
        if peer_user(connection)? != 0 {
            connection.shutdown(Shutdown::Both)?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let Some(mut request) = Message::receive(connection)? else { return Ok(()) };
        if request.next_text()? != VERSION {
            let reason = format!("this mounter has the version {VERSION} only: replace its pod");
            return refused(ErrorKind::Unsupported, &reason).send(connection);
        }
        let verb = request.next_text()?;
        let place = PathBuf::from(std::ffi::OsStr::from_bytes(&request.next()?));
        match verb.as_str() {
            "serve" => self.serve_place(place, request, First::IsFirst, connection),
            "continue" => self.serve_place(place, request, First::Continues, connection),
            "attach" => self.attach(&place, connection),
            "renew" => self.renew(&place, received(&mut request)?).send(connection),
            "end" => {
                let limit = Duration::from_millis(request.next_number()?);
                self.end(&place, limit).send(connection)
            }
            "list" => {
                let state = self.state();
                let answer = Message::new("places").number(state.daemons.len() as u64);
                let places = state.daemons.keys();
                places
                    .fold(answer, |answer, place| answer.word(place.as_os_str().as_bytes()))
                    .send(connection)
            }
            _ => refused(ErrorKind::Unsupported, "this mounter does not know the request").send(connection),
        }
    }

    fn serve_place(
        self: &Arc<Self>,
        place: PathBuf,
        mut request: Message,
        first: First,
        connection: &UnixStream,
    ) -> io::Result<()> {
        let daemon = received(&mut request)?;
        let device = request.device.take().ok_or_else(|| invalid("the device is missing"))?;
        let mut state = self.state();
        // Another start can have held the lock until the driver gave up and undid its stage.
        if !is_open(connection) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if state.is_draining {
            let text = "the pod of its daemon is about to end; the next pod takes it";
            return refused(ErrorKind::NotFound, text).send(connection);
        }
        if state.daemons.contains_key(&place) {
            return refused(ErrorKind::Busy, "a daemon serves this place already").send(connection);
        }
        let followers = vec![connection.try_clone()?];
        let mount = ServedMount { daemon, device, secrets: Secrets::default(), quick_ends: 0, followers };
        match self.start(&mut state, &place, mount, first) {
            Ok(()) => Message::new("serving").send(connection),
            Err(error) => {
                credentials::remove(&place);
                remove_group(&place);
                refused(error.kind(), &error.to_string()).send(connection)
            }
        }
    }

    /// Starts a daemon. The lock on the state is held: a program must not end before it is known.
    fn start(
        self: &Arc<Self>,
        state: &mut State,
        place: &Path,
        mount: ServedMount,
        first: First,
    ) -> Result<()> {
        let daemon = &mount.daemon;
        if first == First::Continues {
            repeat_requests("continue the mount at", &mount.device, place)?;
        }
        let watched = mount.device.try_clone().map_err(|error| Error::os(SERVE, place, error))?;
        // Left by a mounter that was killed, outside of a container.
        Processes::for_place(place).kill(Vec::new())?;
        mount.secrets.add(&daemon.secrets());
        let start = DaemonStart::new(place, daemon.identity.as_deref());
        let output = Output::new(place).map_err(|error| Error::os(SERVE, place, error))?;
        let killed_for_memory = killed_for_memory();
        let child = daemon.start(&start, &output, Some(&mount.device), first)?;
        let program = Arc::new(Leader::of(&child));
        let processes = start.processes().clone();
        let identity = daemon.identity.as_ref().map(|name| name.to_string_lossy().into_owned());
        let started = StartedDaemon {
            child,
            processes: processes.clone(),
            output,
            secrets: mount.secrets.clone(),
            name: identity.unwrap_or_else(|| place.display().to_string()),
            device: Some(watched),
            launched: Duration::ZERO,
        };
        state.last_number += 1;
        let number = state.last_number;
        let server = Arc::clone(self);
        let own_place = place.to_owned();
        started.watch(move |end: &DaemonEnd| server.ended(&own_place, number, end));
        let served = Served { mount, processes, program, number, is_ending: false, killed_for_memory };
        state.daemons.insert(place.to_owned(), served);
        Ok(())
    }

    /// A daemon has ended: the next one continues the mount, or the device is closed, so that the users of the
    /// filesystem get an error.
    fn ended(self: &Arc<Self>, place: &Path, number: u64, end: &DaemonEnd) {
        let mut state = self.state();
        reap_orphans(&state);
        if state.daemons.get(place).is_none_or(|served| served.number != number) {
            return;
        }
        let Some(served) = state.daemons.remove(place) else { return };
        let Served { mut mount, is_ending, killed_for_memory: killed_before, .. } = served;
        let was_killed = end.status.is_some_and(|status| status.signal() == Some(Signal::SIGKILL as i32));
        let mut over = mount.daemon.memory_reason(place);
        if was_killed && killed_for_memory() > killed_before && MemoryGroup::existing(place).is_none() {
            over = ", killed: the memory of its container was used up".to_owned();
        }
        let mut reason = ended_text(end.status, &over, &end.last_lines);
        remove_group(place);
        mount.quick_ends = if end.lived > QUICK { 0 } else { mount.quick_ends + 1 };
        let is_worth_it = !is_ending && mount.quick_ends <= QUICK_ENDS;
        let is_continued = mount.daemon.is_continued && is_worth_it && is_connected(&mount.device);
        if is_continued && state.is_leaving {
            // The connection ends without a word, and the driver gives its copy to the next mounter.
            self.changed.notify_all();
            return;
        }
        let kept = mount.followers.iter().filter_map(|one| one.try_clone().ok()).collect();
        let followers = std::mem::replace(&mut mount.followers, kept);
        if is_continued {
            match self.start(&mut state, place, mount, First::Continues) {
                Ok(()) => {
                    let event = Message::new("continued").word(&reason).word(&end.last_lines);
                    followers.iter().for_each(|follower| drop(event.send(follower)));
                    return;
                }
                Err(error) => reason = format!("{reason}; the next one can't continue its mount: {error}"),
            }
        } else {
            // Its users get an error.
            drop(mount);
        }
        credentials::remove(place);
        tracing::info!(at = %place.display(), "{reason}");
        let event =
            Message::new("ended").word(&reason).word(format!("{}{over}{}", end.how(), end.last_lines));
        followers.iter().for_each(|follower| drop(event.send(follower)));
        self.changed.notify_all();
    }

    fn attach(&self, place: &Path, connection: &UnixStream) -> io::Result<()> {
        let mut state = self.state();
        let Some(served) = state.daemons.get_mut(place) else {
            return Message::new("unknown").send(connection);
        };
        let ServedMount { daemon, device, followers, .. } = &mut served.mount;
        let device = daemon.is_continued.then(|| device.try_clone()).transpose()?;
        Message::new("serving").daemon(daemon).with(device).send(connection)?;
        // Each stage attaches, and closes the connection if its process follows the daemon already.
        followers.retain(is_open);
        followers.push(connection.try_clone()?);
        Ok(())
    }

    /// Replaces the credentials, for the daemon that runs and for those that follow it.
    fn renew(&self, place: &Path, daemon: FuseDaemon) -> Message {
        let mut state = self.state();
        let Some(served) = state.daemons.get_mut(place) else { return Message::new("unknown") };
        // Before the daemon can read and print them.
        served.mount.secrets.add(&daemon.secrets());
        match credentials::write(place, daemon.credentials()) {
            Ok(()) => {
                served.mount.daemon = daemon;
                Message::new("done")
            }
            Err(error) => refused(error.kind(), &error.to_string()),
        }
    }

    /// Waits for the end of a daemon, and kills it after the limit. `done` is followed by `killed` then.
    fn end(&self, place: &Path, limit: Duration) -> Message {
        let mut state = self.state();
        let Some(served) = state.daemons.get_mut(place) else {
            // Those that a killed mounter has left.
            credentials::remove(place);
            return Message::new("unknown");
        };
        served.is_ending = true;
        let number = served.number;
        let processes = served.processes.clone();
        let program = Arc::clone(&served.program);
        // The next one at this place is another stage's.
        let is_gone = |state: &State| state.daemons.get(place).is_none_or(|served| served.number != number);
        state = self.until(state, limit, is_gone);
        if is_gone(&state) {
            return Message::new("done");
        }
        drop(state);
        tracing::warn!(at = %place.display(), "killing a FUSE daemon");
        if !program.has_ended_within(Duration::ZERO) {
            program.kill_group();
        }
        // Those that have left the group.
        if let Err(error) = processes.kill(Vec::new()) {
            return refused(error.kind(), &error.to_string());
        }
        state = self.until(self.state(), KILL_TIME_LIMIT, is_gone);
        if is_gone(&state) {
            return Message::new("done").word("killed");
        }
        refused(ErrorKind::Unresponsive, "its daemon was killed and has not ended")
    }
}

/// A daemon that this process starts.
fn received(request: &mut Message) -> io::Result<FuseDaemon> {
    Ok(FuseDaemon { is_in_mounter: true, ..request.next_daemon()? })
}

/// Whether the other side has not closed the connection.
fn is_open(connection: &UnixStream) -> bool {
    let mut polled = [PollFd::new(connection, PollFlags::empty())];
    let is_polled = poll(&mut polled, Some(&Timespec::default())).is_ok();
    is_polled && !polled[0].revents().contains(PollFlags::HUP)
}

fn refused(kind: ErrorKind, text: &str) -> Message {
    Message::new("refused").word(kind_name(kind)).word(text)
}

/// Takes the exit status of processes that daemons left: in a container they are children of its first process.
fn reap_orphans(state: &State) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let own = |pid: Pid| state.daemons.values().any(|served| served.program.pid() == pid.as_raw());
    while std::process::id() == 1
        && let Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) = waitid(Id::All, flags)
        && !own(pid)
    {
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::{request, serve_request};
    use super::*;

    /// What the server does with a request whose driver has gone before, or waits for the answer.
    fn asked(server: &Arc<MounterServer>, request: &Message, is_waiting: bool) {
        let (driver, connection) = UnixStream::pair().unwrap();
        request.send(&driver).unwrap();
        let waiting = is_waiting.then_some(driver);
        // An error is logged.
        let _ = server.answer(&connection);
        drop(waiting);
    }

    /// The driver has undone its stage, and nobody would end the daemon.
    #[test]
    fn a_request_that_was_given_up_starts_no_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let server = MounterServer::bind(directory.path()).unwrap();
        let place = Path::new("/no/such/place/of/a/mounter");
        let daemon = FuseDaemon::new("sleep").arg("600");
        let device = || Some(fs::File::open("/dev/null").unwrap().into());
        for (is_waiting, expected) in [(false, 0), (true, 1)] {
            asked(&server, &serve_request(First::IsFirst, place, &daemon, device()), is_waiting);
            assert_eq!(server.state().daemons.len(), expected);
        }
        asked(&server, &request("end", place).number(0), true);
        assert!(server.state().daemons.is_empty());
    }
}
