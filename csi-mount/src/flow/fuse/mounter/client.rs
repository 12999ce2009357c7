//! The driver's requests to a mounter.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::super::FuseDaemon;
use super::super::daemon::First;
use super::super::watch::{AtEnd, DaemonRun};
use super::VERSION;
use super::message::{Message, invalid};
use super::session::{Session, Sessions};
use super::socket::{Location, MESSAGE_TIME_LIMIT, Pods, unreachable};
use crate::error::{Error, ErrorKind, Result};
use crate::place::target::Target;
use crate::table::details::is_fuse;
use crate::table::mountinfo::{MountEntry, mounts};

const ASK: &str = "ask the mounter for";
/// What is between the program and the pod in the source of a mount.
const POD_MARK: &str = "@pod:";

/// Where FUSE daemons run that are not children of the driver: in a pod of their own, by a [`MounterServer`] in it.
///
/// A driver has one for its whole life, and [`resume`](crate::flow::fuse::resume())s its daemons when it starts. The
/// copies of this value share what they know.
///
/// The mounter is whoever listens there: it gets the devices of the volumes, their commands and their credentials.
///
/// ```no_run
/// use csi_mount::MountOptions;
/// use csi_mount::flow::fuse::{FuseDaemon, Mounter};
///
/// let mounter = Mounter::in_pods("s3-fuse", "s3-fuse");
/// let options = MountOptions::parse(["allow_other", "default_permissions", "nosuid", "nodev"])?;
/// let daemon = FuseDaemon::new("example-s3").args(["-f", "bucket"]).arg_device(options).mounter(mounter);
/// # drop(daemon);
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Clone)]
pub struct Mounter(Arc<Inner>);

struct Inner {
    location: Location,
    sessions: Sessions,
    /// The pods of places, where each has its own.
    pods: Mutex<BTreeMap<PathBuf, String>>,
}

impl Mounter {
    /// The mounter whose socket is in this directory.
    ///
    /// Whoever can write to the directory can be the mounter. Symbolic links in its path are followed.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self::new(Location::Directory(directory.into()))
    }

    /// The mounter in the pods of a DaemonSet with this name, in this namespace: of those on this node the one that
    /// answers. Its socket is in an `emptyDir` volume with the name `mounter`.
    ///
    /// The driver needs the kubelet's directory `/var/lib/kubelet`, and `/var/log/pods`. The names there prove that a pod
    /// belongs to the namespace, so only who can make pods in this namespace can be the mounter.
    pub fn in_pods(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self::new(Location::pods(namespace.into(), Pods::OfDaemonSet(name.into())))
    }

    /// The mounters in pods that are made for each volume, in this namespace, as csi-kube's `FusePods` does it. The pod
    /// of a place is set with [`set_pod`](Self::set_pod); later its name is in the source of the mount.
    ///
    /// As for [`in_pods`](Self::in_pods), who can make pods in this namespace can be a mounter.
    pub fn in_pod_of_volume(namespace: impl Into<String>) -> Self {
        Self::new(Location::pods(namespace.into(), Pods::OfPlace))
    }

    /// Sets the name of the pod that serves a place, for [`in_pod_of_volume`](Self::in_pod_of_volume).
    pub fn set_pod(&self, place: &Path, pod: impl Into<String>) {
        let mut pods = self.0.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.insert(place.to_owned(), pod.into());
    }

    /// The name of the pod that serves a place, where each place has its own.
    pub(in crate::flow::fuse) fn pod_of(&self, place: &Path) -> Option<String> {
        if !matches!(self.0.location, Location::Pods { pods: Pods::OfPlace, .. }) {
            return None;
        }
        let mut pods = self.0.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if !pods.contains_key(place) {
            let mounted = Target::new(place).and_then(|target| target.mounted()).ok().flatten()?;
            pods.insert(place.to_owned(), pod_in_source(&mounted)?);
        }
        pods.get(place).cloned()
    }

    /// The namespace of the pods, if it is in pods.
    pub fn namespace(&self) -> Option<&str> {
        match &self.0.location {
            Location::Pods { namespace, .. } => Some(namespace),
            Location::Directory(_) => None,
        }
    }

    /// Sets another directory of the kubelet than `/var/lib/kubelet`, for [`in_pods`](Self::in_pods).
    #[must_use]
    pub fn kubelet_dir(self, directory: impl Into<PathBuf>) -> Self {
        let mut location = self.0.location.clone();
        if let Location::Pods { kubelet, .. } = &mut location {
            *kubelet = directory.into();
        }
        Self::new(location)
    }

    fn new(location: Location) -> Self {
        Self(Arc::new(Inner { location, sessions: Sessions::default(), pods: Mutex::default() }))
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    /// Waits for the end of the daemon of a place that is unmounted, for at most this long; then it is killed, and data
    /// that it has not sent is lost. A place without a daemon counts as done, and so does one without a mounter: the
    /// daemons of a pod end with it.
    ///
    /// # Errors
    /// [`Unresponsive`](ErrorKind::Unresponsive): the mounter does not answer, or the daemon can't be killed.
    pub fn end(&self, place: &Path, limit: Duration) -> Result<()> {
        match self.try_end(place, limit) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            ended => ended?,
        }
        // The next volume at this place has another pod.
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
        Ok(())
    }

    fn try_end(&self, place: &Path, limit: Duration) -> Result<()> {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let request = request("end", place).number(millis);
        self.ask(place, &request, limit + 2 * MESSAGE_TIME_LIMIT).map(drop)
    }

    /// Mounts, and has the mounter start the daemon. The receiver gets the reason when the daemon ends.
    pub(in crate::flow::fuse) fn serve(
        &self,
        staging: &Target,
        daemon: &FuseDaemon,
        run: DaemonRun,
        at_end: AtEnd,
    ) -> Result<Receiver<String>> {
        // A daemon that a killed stage has left, without a mount.
        self.try_end(staging.path(), Duration::ZERO)?;
        let device = daemon.mount(staging)?;
        let request = serve_request(First::IsFirst, staging.path(), daemon, device);
        let (connection, _) = self.ask(staging.path(), &request, daemon.ready_time_limit)?;
        // Its users get an error when the only process that has it open ends.
        let device = request.device.filter(|_| daemon.is_continued);
        let session = Session::new(run, daemon.clone());
        Ok(self.follow(staging.path(), session, connection, device, at_end))
    }

    /// Gives a daemon that runs its new credentials, and follows it.
    pub(in crate::flow::fuse) fn renew(
        &self,
        staging: &Target,
        daemon: &FuseDaemon,
        at_end: AtEnd,
    ) -> Result<()> {
        let place = staging.path();
        let run = DaemonRun::new(staging, daemon, 0);
        // None: a daemon that an earlier version of the driver has started as its child.
        let Some(attached) = self.attach(place)? else { return Ok(()) };
        self.ask(place, &request("renew", place).daemon(daemon), MESSAGE_TIME_LIMIT)?;
        let session = Session::new(run, daemon.clone());
        if let Some(session) = self.sessions().update(place, session) {
            drop(self.follow(place, session, attached.connection, attached.device, at_end));
        }
        Ok(())
    }

    /// Follows a daemon that runs, for a driver that has just started.
    pub(in crate::flow::fuse) fn resume(&self, staging: &Target, at_end: AtEnd) -> Result<()> {
        let place = staging.path();
        if self.sessions().has(place) {
            return Ok(());
        }
        if let Some(attached) = self.attach(place)? {
            // The next stage brings what it takes to start it again.
            let run = DaemonRun::new(staging, &attached.daemon, 0);
            let session = Session::new(run, attached.daemon);
            drop(self.follow(place, session, attached.connection, attached.device, at_end));
        }
        Ok(())
    }

    /// The daemon of a place, as its mounter knows it.
    pub(in crate::flow::fuse) fn served(&self, place: &Path) -> Result<Option<FuseDaemon>> {
        Ok(self.attach(place)?.map(|attached| attached.daemon))
    }

    /// The places whose daemons the mounter has.
    pub(in crate::flow::fuse) fn places(&self) -> Result<Vec<PathBuf>> {
        if let Location::Pods { pods: Pods::OfPlace, .. } = &self.0.location {
            // Other drivers' pods are in other namespaces.
            let is_ours =
                |pod: String| self.0.location.sockets(Some(&pod)).is_ok_and(|found| !found.is_empty());
            let of_volumes = mounts()?.into_iter().filter(|entry| pod_in_source(entry).is_some_and(is_ours));
            // A bind of the filesystem at a target has the same source, and its daemon does not know the target.
            let places = of_volumes.map(|entry| entry.mount_point);
            return Ok(places
                .filter(|place| self.attach(place).is_ok_and(|known| known.is_some()))
                .collect());
        }
        let none = Path::new("");
        let (_, mut answer) = self.ask(none, &request("list", none), MESSAGE_TIME_LIMIT)?;
        let places = |answer: &mut Message| -> io::Result<Vec<PathBuf>> {
            let number = answer.next_number()?;
            (0..number).map(|_| Ok(OsString::from_vec(answer.next()?).into())).collect()
        };
        places(&mut answer).map_err(|error| Error::os(ASK, none, error))
    }

    pub(super) fn attach(&self, place: &Path) -> Result<Option<Attached>> {
        let (connection, mut answer) = self.ask(place, &request("attach", place), MESSAGE_TIME_LIMIT)?;
        if answer.is_unknown {
            return Ok(None);
        }
        let daemon = answer.next_daemon().map_err(|error| Error::os(ASK, place, error))?;
        Ok(Some(Attached { connection, daemon, device: answer.message.device.take() }))
    }

    /// Sends a request to each mounter, until one knows the place or does what is asked.
    pub(super) fn ask(
        &self,
        place: &Path,
        request: &Message,
        limit: Duration,
    ) -> Result<(UnixStream, Answer)> {
        let mut unknown = None;
        let mut refused = None;
        let mut tried = Vec::new();
        let mut is_hung = false;
        let pod = self.pod_of(place);
        for socket in self.0.location.sockets(pod.as_deref())? {
            let asked = socket.connect().and_then(|connection| {
                connection.set_read_timeout(Some(limit.max(MESSAGE_TIME_LIMIT)))?;
                request.send(&connection)?;
                let answer = Message::receive(&connection)?.ok_or(io::ErrorKind::UnexpectedEof)?;
                Ok((connection, answer))
            });
            match asked.and_then(|(connection, answer)| Ok((connection, Answer::read(answer, place)?))) {
                Ok((connection, Ok(answer))) if answer.is_unknown => unknown = Some((connection, answer)),
                Ok((connection, Ok(answer))) => return Ok((connection, answer)),
                // A pod that is about to end takes nothing new, and another one can be there.
                Ok((_, Err(error))) => refused = Some(error),
                Err(error) => {
                    is_hung |= !has_ended(&error);
                    tried.push(format!("{}: {error}", socket.path.display()));
                }
            }
        }
        match (unknown, refused) {
            (Some(unknown), None) => Ok(unknown),
            (_, Some(error)) => Err(error),
            (None, None) => {
                let error = unreachable(&self.0.location, pod.as_deref(), &tried);
                Err(if is_hung { error.with_kind(ErrorKind::Unresponsive) } else { error })
            }
        }
    }
}

/// Whether this is the error of a mounter that has ended.
fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof)
}

/// The source of a mount whose daemon has a pod of its own.
pub(in crate::flow::fuse) fn source_with_pod(program: &Path, pod: &str) -> PathBuf {
    let mut source = program.as_os_str().to_owned();
    source.push(POD_MARK);
    source.push(pod);
    source.into()
}

fn pod_in_source(entry: &MountEntry) -> Option<String> {
    if !is_fuse(&entry.fs_type) {
        return None;
    }
    entry.source.to_str()?.rsplit_once(POD_MARK).map(|(_, pod)| pod.to_owned())
}

/// A daemon that a mounter has.
pub(super) struct Attached {
    pub(super) connection: UnixStream,
    pub(super) daemon: FuseDaemon,
    /// Only of a mount that the next daemon can continue.
    pub(super) device: Option<OwnedFd>,
}

fn request(verb: &str, place: &Path) -> Message {
    Message::new(VERSION).word(verb).word(place.as_os_str().as_bytes())
}

pub(super) fn serve_request(
    first: First,
    place: &Path,
    daemon: &FuseDaemon,
    device: Option<OwnedFd>,
) -> Message {
    let verb = if first == First::IsFirst { "serve" } else { "continue" };
    request(verb, place).daemon(daemon).with(device)
}

pub(super) struct Answer {
    message: Message,
    is_unknown: bool,
}

impl Answer {
    fn read(mut message: Message, place: &Path) -> io::Result<Result<Self>> {
        let verb = message.next_text()?;
        match verb.as_str() {
            "serving" | "done" | "places" => Ok(Ok(Self { message, is_unknown: false })),
            "unknown" => Ok(Ok(Self { message, is_unknown: true })),
            "refused" => {
                let kind = message.next_text()?;
                let text = message.next_text()?;
                Ok(Err(Error::new(kind_named(&kind), "start the daemon", text).at(place)))
            }
            _ => Err(invalid("the mounter's answer is unknown: it has another version")),
        }
    }
}

impl std::ops::Deref for Answer {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

impl std::ops::DerefMut for Answer {
    fn deref_mut(&mut self) -> &mut Message {
        &mut self.message
    }
}

/// The kinds of errors that a mounter returns, and their words in an answer.
const KINDS: [(ErrorKind, &str); 6] = [
    (ErrorKind::Busy, "busy"),
    (ErrorKind::InvalidInput, "invalid"),
    (ErrorKind::MissingTool, "missing"),
    (ErrorKind::PermissionDenied, "denied"),
    (ErrorKind::Unresponsive, "unresponsive"),
    (ErrorKind::Unsupported, "unsupported"),
];

pub(super) fn kind_name(kind: ErrorKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("failed", |(_, name)| name)
}

fn kind_named(name: &str) -> ErrorKind {
    KINDS.iter().find(|(_, known)| *known == name).map_or(ErrorKind::ToolFailed, |(kind, _)| *kind)
}

impl PartialEq for Mounter {
    fn eq(&self, other: &Self) -> bool {
        self.0.location == other.0.location
    }
}

impl Eq for Mounter {}

impl fmt::Debug for Mounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mounter").field(&self.0.location).finish()
    }
}
