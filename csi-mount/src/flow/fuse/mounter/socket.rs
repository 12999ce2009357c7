//! Where a mounter listens, and a connection to it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::error::{Error, ErrorKind, Result};
use crate::place::root::Root;
use crate::sys::descriptor::{path_of, peer_user};

const CONNECT: &str = "reach a mounter";
/// The socket in its directory.
pub(super) const SOCKET: &str = "mounter.sock";
/// How long one message can take.
pub(super) const MESSAGE_TIME_LIMIT: Duration = Duration::from_secs(10);
/// The volume of the pod in which the socket is (csi-deploy gives it this name), below the pod's directory.
const VOLUME: &str = "volumes/kubernetes.io~empty-dir/mounter";
/// Where the kubelet makes a directory for each pod: `NAMESPACE_POD_UID`.
const LOGS: &str = "/var/log/pods";

/// Where mounters listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    Directory(PathBuf),
    /// In pods of this node.
    Pods {
        kubelet: PathBuf,
        logs: PathBuf,
        namespace: String,
        pods: Pods,
    },
}

/// Which pods of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pods {
    /// Those of the DaemonSet with this name serve all places.
    OfDaemonSet(String),
    /// Each place has a pod, of its own or shared with others.
    OfPlace,
}

impl Location {
    pub(super) fn pods(namespace: String, pods: Pods) -> Self {
        Self::Pods { kubelet: "/var/lib/kubelet".into(), logs: LOGS.into(), namespace, pods }
    }

    /// The sockets that exist; not all are served. `pod` is the pod of the place.
    ///
    /// The kubelet makes the directory of a pod's logs, and its name proves the namespace: no other pod can have it.
    pub(super) fn sockets(&self, pod: Option<&str>) -> Result<Vec<Socket>> {
        match self {
            Self::Directory(directory) => {
                let root = Root::open(directory)?;
                Ok(Socket::open(root.directory(), directory.join(SOCKET)).into_iter().collect())
            }
            Self::Pods { kubelet, logs, namespace, pods: chosen } => {
                let pods = Root::open(kubelet.join("pods"))?;
                let failed = |error| Error::os(CONNECT, logs, error);
                let is_chosen = |found: &str| match chosen {
                    Pods::OfDaemonSet(name) => is_of_daemon_set(found, name),
                    Pods::OfPlace => pod == Some(found),
                };
                let mut sockets = Vec::new();
                for entry in fs::read_dir(logs).map_err(failed)?.flatten() {
                    let entry = entry.file_name();
                    let Some(uid) = entry.to_str().and_then(|text| uid_of(text, namespace, is_chosen)) else {
                        continue;
                    };
                    let below = Path::new(uid).join(VOLUME);
                    if let Some(directory) = pods.directory_at(&below)? {
                        sockets.extend(Socket::open(directory, pods.path().join(below).join(SOCKET)));
                    }
                }
                Ok(sockets)
            }
        }
    }
}

/// Whether a pod has this name and the suffix of a pod. Another DaemonSet's name can begin with this one.
fn is_of_daemon_set(pod: &str, name: &str) -> bool {
    let suffix = pod.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    suffix.is_some_and(|suffix| !suffix.contains('-'))
}

/// The UID of such a pod, from the name of the directory of its logs.
fn uid_of<'t>(entry: &'t str, namespace: &str, is_chosen: impl Fn(&str) -> bool) -> Option<&'t str> {
    let mut parts = entry.split('_');
    let is_namespace = parts.next()? == namespace;
    let is_pod = is_chosen(parts.next()?) && is_namespace;
    let uid = parts.next()?;
    let is_pod = is_pod && parts.next().is_none();
    let is_uid = !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    (is_pod && is_uid).then_some(uid)
}

/// The file of a socket, held: what its name leads to meanwhile does not matter.
pub(super) struct Socket {
    file: OwnedFd,
    pub(super) path: PathBuf,
}

impl Socket {
    /// Returns `None` if there is no socket. The pod can write to the directory, so a symbolic link does not count.
    fn open(directory: impl AsFd, path: PathBuf) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, SOCKET, flags, Mode::empty()).ok()?;
        let is_socket = FileType::from_raw_mode(fstat(&file).ok()?.st_mode) == FileType::Socket;
        is_socket.then_some(Self { file, path })
    }

    /// Connects to the process that made the socket.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        // A full queue of a process that has stopped is an error, and no wait.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // By the descriptor, because an address has 107 bytes.
        // A signal can end the wait for the mounter's lock of its queue.
        retry_on_intr(|| connect(&socket, &SocketAddrUnix::new(path_of(&self.file))?))?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(MESSAGE_TIME_LIMIT))?;
        stream.set_write_timeout(Some(MESSAGE_TIME_LIMIT))?;
        if peer_user(&stream)? != fstat(&self.file)?.st_uid {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(stream)
    }
}

/// The error if no mounter answers.
pub(super) fn unreachable(location: &Location, pod: Option<&str>, tried: &[String]) -> Error {
    let mut hint = "is its pod on this node, and does it run?";
    let at = match location {
        Location::Directory(directory) => directory.display().to_string(),
        Location::Pods { namespace, pods: Pods::OfDaemonSet(name), .. } => {
            format!("the pods of {namespace}/{name} on this node")
        }
        Location::Pods { namespace, .. } => match pod {
            Some(pod) => format!("{namespace}/{pod} on this node"),
            None => {
                hint = "does ControllerPublishVolume answer with what csi-kube's FusePods gives?";
                format!("a pod of {namespace}, because the publish context has no pod's name")
            }
        },
    };
    let tried = if tried.is_empty() { String::new() } else { format!(": {}", tried.join("; ")) };
    let reason = format!("no mounter answers at {at}{tried}");
    Error::new(ErrorKind::NotFound, CONNECT, reason).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_volume_without_a_pod_is_the_controllers_omission() {
        let location = Location::pods("n".to_owned(), Pods::OfPlace);
        let hint = |pod| unreachable(&location, pod, &[]).to_string();
        assert!(hint(None).contains("ControllerPublishVolume"), "{}", hint(None));
        assert!(hint(Some("p")).contains("n/p on this node; is its pod"), "{}", hint(Some("p")));
    }

    #[test]
    fn only_pods_of_the_daemon_set_are_known() {
        let uid = |entry| uid_of(entry, "flat-fuse", |pod| is_of_daemon_set(pod, "flat"));
        assert_eq!(uid("flat-fuse_flat-x7k2p_0a1b-2c"), Some("0a1b-2c"));
        for other in [
            "default_flat-x7k2p_0a1b",
            "flat-fuse_flat-other-x7k2p_0a1b",
            "flat-fuse_flat_0a1b",
            "flat-fuse_flat-x7k2p_..",
            "flat-fuse_flat-x7k2p_",
            "flat-fuse_flat-x7k2p_0a1b_c",
            "flat-fuse_flat-x7k2p",
        ] {
            assert_eq!(uid(other), None, "{other}");
        }
    }

    #[test]
    fn the_socket_of_a_pod_is_found_with_a_long_path_and_not_through_a_link() {
        let node = tempfile::tempdir().unwrap();
        let kubelet = node.path().join("k".repeat(120));
        let logs = node.path().join("logs");
        let directory = |uid: &str| kubelet.join("pods").join(uid).join(VOLUME);
        for uid in ["0a", "0b", "0c"] {
            fs::create_dir_all(logs.join(format!("fuse_m-xyz_{uid}"))).unwrap();
            fs::create_dir_all(directory(uid)).unwrap();
        }
        fs::create_dir(logs.join("other_m-xyz_0d")).unwrap();
        let opened = fs::File::open(directory("0a")).unwrap();
        let listener = UnixListener::bind(path_of(&opened).join(SOCKET)).unwrap();
        std::os::unix::fs::symlink(directory("0a").join(SOCKET), directory("0b").join(SOCKET)).unwrap();
        let pods = Pods::OfDaemonSet("m".to_owned());
        let namespace = "fuse".to_owned();
        let location = Location::Pods { kubelet, logs, namespace, pods };
        let sockets = location.sockets(None).unwrap();
        let [socket] = &sockets[..] else { panic!("{} sockets", sockets.len()) };
        socket.connect().unwrap();
        let Location::Pods { kubelet, logs, namespace, .. } = location else { unreachable!() };
        let location = Location::Pods { kubelet, logs, namespace, pods: Pods::OfPlace };
        let known = |pod| location.sockets(pod).unwrap().len();
        assert_eq!([known(Some("m-xyz")), known(Some("m")), known(None)], [1, 0, 0]);
        // Closing it is not enough: a child that another test is forking has a copy of it for a moment.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(socket.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
