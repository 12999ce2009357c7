//! What is asked about.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::sys::ids::{DeviceNumber, MountId};

/// What a query is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Usage(MountId),
    /// One unmount call. Separate from the usage, because an unmount releases the callers that wait for the
    /// usage.
    Unmount(MountId),
    /// All steps of an unmount, one after the other.
    Unmounting(MountId),
    /// The lookup of a path that continues in this mounted filesystem, which must be asked.
    Lookup(MountId),
    /// The lookup of a path, by the mount namespace or the directory where it starts.
    Path(PathStart, PathBuf),
    /// Mounting from a source.
    Mount(String),
    /// A killed program that has not exited.
    Program(i32),
    /// Freeing what the filesystem of this mount does not use.
    Trim(MountId),
    Frozen(MountId),
    /// What a loop device is attached to, by its device number and its disk sequence number.
    LoopDevice(DeviceNumber, Option<u64>),
    /// An unmount at a place that has left the tree but not finished, by the pid of its child: data is still
    /// to be written.
    FinishingUnmount(TargetKey, i32),
    /// A call to a remote disk or its driver, by what is called.
    #[cfg(feature = "remote")]
    RemoteDisk(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathStart {
    /// At the root directory, in the mount namespace with this link.
    Namespace(PathBuf),
    /// At this file of this mount: its inode, whatever descriptor is open on it.
    Directory(MountId, u64),
}

/// The identity of a target, independent of its path: the parent directory, and the name in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TargetKey {
    /// None if the directory did not exist.
    pub(crate) directory: Option<(DeviceNumber, u64)>,
    pub(crate) name: OsString,
}
