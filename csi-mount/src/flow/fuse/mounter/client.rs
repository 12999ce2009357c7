//! The driver's requests to a mounter.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::FuseDaemon;
use super::super::daemon::First;
use super::super::processes::warn_of_loss;
use super::VERSION;
use super::handle::{Mounter, pod_in_source};
use super::message::{Message, invalid};
use super::socket::{Location, MESSAGE_TIME_LIMIT, Pods, unreachable};
use crate::error::{Error, ErrorKind, Result};
use crate::table::mountinfo::mounts;

const ASK: &str = "ask the mounter for";

impl Mounter {
    /// Waits for the end of the daemon of a place that is unmounted, for at most this long; then it is killed, and data
    /// that it has not sent is lost. A place without a daemon counts as done, and so does one without a mounter: the
    /// daemons of a pod end with it.
    ///
    /// # Errors
    /// [`Unresponsive`](ErrorKind::Unresponsive): the mounter does not answer, or the daemon can't be killed.
    pub fn end(&self, place: &Path, limit: Duration) -> Result<()> {
        self.end_daemon(place, limit)?;
        self.forget(place);
        Ok(())
    }

    /// Ends the daemon of a place that stays a volume's: what is known about the place is kept.
    pub(in crate::flow::fuse) fn end_daemon(&self, place: &Path, limit: Duration) -> Result<()> {
        match self.try_end(place, limit) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            ended => ended,
        }
    }

    pub(super) fn try_end(&self, place: &Path, limit: Duration) -> Result<()> {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let request = request("end", place).number(millis);
        let (_, mut answer) = self.ask(place, &request, limit.saturating_add(2 * MESSAGE_TIME_LIMIT))?;
        if !limit.is_zero() && answer.message.next_text().is_ok_and(|how| how == "killed") {
            warn_of_loss(place, limit);
        }
        Ok(())
    }

    /// The daemon of a place, as its mounter knows it.
    pub(in crate::flow::fuse) fn served(&self, place: &Path) -> Result<Option<FuseDaemon>> {
        Ok(self.attach(place)?.map(|attached| attached.daemon))
    }

    /// The places whose daemons the mounter has. Where each place has a pod, the mounts tell them, also the places to which
    /// they are bound.
    pub(in crate::flow::fuse) fn places(&self) -> Result<Vec<PathBuf>> {
        if let Location::Pods { pods: Pods::OfPlace, .. } = self.location() {
            // Other drivers' pods are in other namespaces.
            let is_ours =
                |pod: String| self.location().sockets(Some(&pod)).is_ok_and(|found| !found.is_empty());
            let of_volumes = mounts()?.into_iter().filter(|entry| pod_in_source(entry).is_some_and(is_ours));
            return Ok(of_volumes.map(|entry| entry.mount_point).collect());
        }
        let none = Path::new("");
        let (_, mut answer) = self.ask(none, &request("list", none), MESSAGE_TIME_LIMIT)?;
        let places = |message: &mut Message| -> io::Result<Vec<PathBuf>> {
            let number = message.next_number()?;
            (0..number).map(|_| Ok(OsString::from_vec(message.next()?).into())).collect()
        };
        places(&mut answer.message).map_err(|error| Error::os(ASK, none, error))
    }

    pub(super) fn attach(&self, place: &Path) -> Result<Option<Attached>> {
        let (connection, mut answer) = self.ask(place, &request("attach", place), MESSAGE_TIME_LIMIT)?;
        if answer.is_unknown {
            return Ok(None);
        }
        let daemon = answer.message.next_daemon().map_err(|error| Error::os(ASK, place, error))?;
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
        for socket in self.location().sockets(pod.as_deref())? {
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
                let error = unreachable(self.location(), pod.as_deref(), &tried);
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

/// A daemon that a mounter has.
pub(super) struct Attached {
    pub(super) connection: UnixStream,
    pub(super) daemon: FuseDaemon,
    /// Only of a mount that the next daemon can continue.
    pub(super) device: Option<OwnedFd>,
}

pub(super) fn request(verb: &str, place: &Path) -> Message {
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

/// The kinds of errors that a mounter returns, and their words in an answer.
const KINDS: [(ErrorKind, &str); 7] = [
    (ErrorKind::Busy, "busy"),
    // As without a mounter: another one takes the daemon later.
    (ErrorKind::NotFound, "ending"),
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
