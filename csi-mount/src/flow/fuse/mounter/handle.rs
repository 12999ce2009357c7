//! The driver's handle of its mounters: where they are, and which of their daemons this process follows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::socket::{Location, Pods};
use crate::place::target::Target;
use crate::table::details::is_fuse;
use crate::table::mountinfo::MountEntry;

/// What is between the program and the pod in the source of a mount.
const POD_MARK: &str = "@pod:";

/// Where FUSE daemons run that are not children of the driver: in a pod of their own, in which a
/// [`MounterServer`](crate::flow::fuse::MounterServer) starts them.
///
/// A driver has one for its whole life, and [`resume`](crate::flow::fuse::resume())s its daemons when it starts. The
/// copies of this value share what they know.
///
/// Whoever listens there is the mounter, and gets the devices of the volumes, their commands and their credentials.
///
/// ```no_run
/// use csi_mount::MountOptions;
/// use csi_mount::flow::fuse::{FuseDaemon, Mounter};
///
/// let mounter = Mounter::in_pods("s3-fuse", "s3-fuse");
/// let options = MountOptions::parse(["allow_other", "default_permissions"])?;
/// let daemon = FuseDaemon::new("example-s3").args(["-f", "bucket"]).arg_device(options).mounter(mounter);
/// # drop(daemon);
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Clone)]
pub struct Mounter(Arc<Inner>);

struct Inner {
    location: Location,
    followers: Mutex<Followers>,
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

    /// The namespace of the pods, if they are [made for each volume](Self::in_pod_of_volume): for csi-kube's `FusePods`.
    pub fn namespace_of_volumes(&self) -> Option<&str> {
        match &self.0.location {
            Location::Pods { namespace, pods: Pods::OfPlace, .. } => Some(namespace),
            Location::Pods { .. } | Location::Directory(_) => None,
        }
    }

    /// The daemons of staged volumes that this process has started or found, for metrics.
    pub fn daemons(&self) -> Vec<MounterDaemon> {
        self.followers().daemons.values().cloned().collect()
    }

    /// Why the daemon of a place has died, in the words of its mounter: how it ended, `killed: over its memory limit of N
    /// bytes` if that is why, and the last lines that it printed. `None` if it runs, if the place was unstaged, or if
    /// another process followed it. If the whole pod has ended, nobody here knows why.
    pub fn last_end(&self, place: &Path) -> Option<String> {
        self.followers().last_ends.get(place).cloned()
    }

    pub(super) fn set_last_end(&self, place: &Path, reason: String) {
        let mut followers = self.followers();
        // The next stage was faster.
        if !followers.by_place.contains_key(place) {
            followers.last_ends.insert(place.to_owned(), reason);
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
        let followers = Mutex::default();
        Self(Arc::new(Inner { location, followers, pods: Mutex::default() }))
    }

    /// Whether a pod that served a place exists, whether or not it runs.
    pub(super) fn has_pod(&self, place: &Path) -> bool {
        let pod = self.pod_of(place);
        self.location().sockets(pod.as_deref()).is_ok_and(|sockets| !sockets.is_empty())
    }

    pub(super) fn location(&self) -> &Location {
        &self.0.location
    }

    /// Forgets a place: the next volume there has another pod.
    pub(super) fn forget(&self, place: &Path) {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
        let mut followers = self.followers();
        followers.last_ends.remove(place);
        followers.daemons.remove(place);
    }

    fn followers(&self) -> MutexGuard<'_, Followers> {
        self.0.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a thread that follows the daemon of a place by this connection. It takes the place of an earlier one, whose
    /// connection ends. Returns its number, or `None` if another one stays.
    pub(super) fn add_follower(
        &self,
        place: &Path,
        connection: Option<UnixStream>,
        identity: Option<OsString>,
        begun: Begun,
    ) -> Option<u64> {
        let mut followers = self.followers();
        if begun == Begun::Resumed && followers.by_place.contains_key(place) {
            return None;
        }
        let first = MounterDaemon { identity, is_running: true, restarts: 0 };
        let again = |known: &mut MounterDaemon| {
            known.is_running = true;
            known.restarts += u64::from(begun == Begun::Started);
        };
        followers.daemons.entry(place.to_owned()).and_modify(again).or_insert(first);
        followers.last += 1;
        followers.last_ends.remove(place);
        let number = followers.last;
        let earlier = followers.by_place.insert(place.to_owned(), (number, connection));
        if let Some((_, Some(connection))) = earlier {
            drop(connection.shutdown(Shutdown::Both));
        }
        Some(number)
    }

    /// Whether this thread still is the one that follows the daemon of the place.
    pub(super) fn is_follower(&self, place: &Path, number: u64) -> bool {
        self.followers().is_follower(place, number)
    }

    /// The daemon that this thread follows has ended; the next one can continue its mount.
    pub(super) fn daemon_ended(&self, place: &Path, number: u64) {
        self.followers().change(place, number, |daemon| daemon.is_running = false);
    }

    /// The next daemon has continued the mount, by this connection if it is another one.
    pub(super) fn daemon_continued(&self, place: &Path, number: u64, connection: Option<UnixStream>) {
        let mut followers = self.followers();
        followers.change(place, number, |daemon| {
            daemon.is_running = true;
            daemon.restarts += 1;
        });
        if let Some(known) = followers.by_place.get_mut(place).filter(|(known, _)| *known == number)
            && connection.is_some()
        {
            known.1 = connection;
        }
    }

    /// Returns whether this thread was the one.
    pub(super) fn remove_follower(&self, place: &Path, number: u64) -> bool {
        let mut followers = self.followers();
        let is_it = followers.is_follower(place, number);
        if is_it {
            followers.by_place.remove(place);
        }
        is_it
    }
}

/// The threads that follow daemons. None of them is another one's successor for the same place.
#[derive(Default)]
struct Followers {
    by_place: BTreeMap<PathBuf, (u64, Option<UnixStream>)>,
    last: u64,
    /// Why the daemons of places have died that have no other one yet.
    last_ends: BTreeMap<PathBuf, String>,
    daemons: BTreeMap<PathBuf, MounterDaemon>,
}

impl Followers {
    fn is_follower(&self, place: &Path, number: u64) -> bool {
        self.by_place.get(place).is_some_and(|(known, _)| *known == number)
    }

    /// Changes what is known about the daemon that this thread follows.
    fn change(&mut self, place: &Path, number: u64, change: impl FnOnce(&mut MounterDaemon)) {
        let is_it = self.is_follower(place, number);
        if let Some(daemon) = self.daemons.get_mut(place).filter(|_| is_it) {
            change(daemon);
        }
    }
}

/// How this process comes to a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    Started,
    /// It runs already.
    Found,
    /// It runs already, and what a stage knows about it is better known.
    Resumed,
}

/// What [`Mounter::daemons`] knows about the daemon of a staged volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MounterDaemon {
    /// What it serves: [`FuseDaemon::identity`](crate::flow::fuse::FuseDaemon::identity).
    pub identity: Option<OsString>,
    /// Whether it runs. Otherwise its filesystem waits for the next one, or is lost.
    pub is_running: bool,
    /// How often it was started again, since the volume was staged or this process has started.
    pub restarts: u64,
}

/// The source of a mount whose daemon has a pod of its own.
pub(in crate::flow::fuse) fn source_with_pod(program: &Path, pod: &str) -> PathBuf {
    let mut source = program.as_os_str().to_owned();
    source.push(POD_MARK);
    source.push(pod);
    source.into()
}

pub(super) fn pod_in_source(entry: &MountEntry) -> Option<String> {
    if !is_fuse(&entry.fs_type) {
        return None;
    }
    entry.source.to_str()?.rsplit_once(POD_MARK).map(|(_, pod)| pod.to_owned())
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
