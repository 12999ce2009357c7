//! What a simulated node remembers: its devices, filesystems, mounts, marks and the faults that are due.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::device::sysfs::DeviceIdentity;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::mounted::health::MountHealth;
use crate::mounting::options::{FsOption, MountOptions};
use crate::place::owner::OwnerId;
use crate::quota::DirectoryLimit;
use crate::sys::attributes::MountAttributes;
use crate::sys::ids::DeviceNumber;

/// The filesystem of the node itself.
pub(super) const HOST: DeviceNumber = DeviceNumber::new(0, 1);
/// The size of filesystems that are on no device.
pub(super) const LARGE: u64 = 1 << 40;

/// Files by their paths in a filesystem.
pub(super) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What is on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Blank,
    /// Bytes that are no filesystem.
    Raw(Vec<u8>),
    /// A filesystem of this size, and the index of its files.
    Filesystem(Filesystem, u64, usize),
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) size: u64,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) number: DeviceNumber,
    pub(super) disk: usize,
    /// What a loop device knows of the size.
    pub(super) size: u64,
    pub(super) is_read_only: bool,
    /// The file or device beneath a loop device.
    pub(super) backing: Option<PathBuf>,
    /// The target that a read-only loop device was made for.
    pub(super) made_for: Option<PathBuf>,
    /// What a disk reports about itself. A loop device over it reports nothing.
    pub(super) identity: DeviceIdentity,
}

/// A filesystem that was mounted.
#[derive(Debug)]
pub(super) struct Superblock {
    pub(super) fs_type: String,
    pub(super) source: OsString,
    pub(super) number: DeviceNumber,
    pub(super) capacity: u64,
    pub(super) files: usize,
    pub(super) disk: Option<usize>,
    pub(super) options: String,
    pub(super) health: MountHealth,
    pub(super) is_full: bool,
    /// What its FUSE daemon serves.
    pub(super) identity: Option<OsString>,
}

impl Superblock {
    /// A healthy filesystem with these files, on no device.
    pub(super) fn new(fs_type: &str, source: impl Into<OsString>, files: usize, capacity: u64) -> Self {
        Self {
            fs_type: fs_type.to_owned(),
            source: source.into(),
            number: DeviceNumber::new(0, 0),
            capacity,
            files,
            disk: None,
            options: "rw".to_owned(),
            health: MountHealth::Healthy,
            is_full: false,
            identity: None,
        }
    }
}

/// What a mount shows at its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Root {
    Directory(PathBuf),
    Filesystem(usize),
    Node(PathBuf),
}

#[derive(Debug, Clone)]
pub(super) struct Mount {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    pub(super) root: Root,
    pub(super) attributes: MountAttributes,
}

/// A directory of the real system: its device, its number, and when it was made, because numbers are reused.
pub(super) type Inode = (u64, u64, Option<SystemTime>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// Directories and empty files of the node that exist in memory only.
    pub(super) directories: BTreeSet<PathBuf>,
    pub(super) places: BTreeSet<PathBuf>,
    pub(super) host_files: Files,
    pub(super) marks: BTreeMap<PathBuf, (OwnerId, Option<Root>)>,
    /// What was set with `set_permissions`.
    pub(super) permissions: BTreeMap<(Option<usize>, PathBuf), u32>,
    /// Directories of the real system that can hold so much and no more, by what stays when they are renamed.
    pub(super) limits: BTreeMap<Inode, DirectoryLimit>,
    pub(super) disks: Vec<Disk>,
    pub(super) images: BTreeMap<(u64, u64, PathBuf), usize>,
    /// The disks that have been attached, by what they are known by.
    pub(super) attached: BTreeMap<String, usize>,
    pub(super) nodes: BTreeMap<PathBuf, Node>,
    /// Links to device nodes.
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    pub(super) files: Vec<Files>,
    pub(super) superblocks: Vec<Superblock>,
    pub(super) mounts: Vec<Mount>,
    /// Mounts on which a workload has a file open.
    pub(super) open: BTreeSet<u64>,
    pub(super) missing_tools: BTreeSet<String>,
    pub(super) failure: Option<ErrorKind>,
    pub(super) crash_after: Option<u64>,
    pub(super) is_crashed: bool,
    pub(super) steps: u64,
    last: u32,
}

impl State {
    /// Under which a directory's permissions are kept: the files of a filesystem and the path there, or a
    /// path of the node.
    pub(super) fn permissions_key(&self, path: &Path) -> Option<(Option<usize>, PathBuf)> {
        match self.through(path) {
            Some((mount, rest)) => match &mount.root {
                Root::Filesystem(index) => Some((Some(self.superblocks[*index].files), rest)),
                Root::Directory(root) => Some((None, canonical(&root.join(rest)))),
                Root::Node(_) => None,
            },
            None => self.is_directory(path).then(|| (None, canonical(path))),
        }
    }

    /// The fault that is due when a verb starts.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.refuse_crashed()?;
        match self.failure.take() {
            Some(kind) => Err(Error::new(kind, "simulate", "the test asked for this failure")),
            None => Ok(()),
        }
    }

    pub(super) fn refuse_crashed(&self) -> Result<()> {
        if self.is_crashed {
            Err(Error::new(ErrorKind::Io, "simulate", "the process was killed"))
        } else {
            Ok(())
        }
    }

    /// Counts one change of the node. The process is killed before it, if that is due.
    pub(super) fn step(&mut self) -> Result<()> {
        self.is_crashed |= self.crash_after == Some(self.steps);
        self.refuse_crashed()?;
        self.steps += 1;
        Ok(())
    }

    pub(super) fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    pub(super) fn top(&self, path: &Path) -> Option<&Mount> {
        let path = resolved(path);
        self.mounts.iter().rev().find(|mount| mount.path == path)
    }

    /// The mount that a path leads through, and the rest of the path in it.
    pub(super) fn through(&self, path: &Path) -> Option<(&Mount, PathBuf)> {
        let path = resolved(path);
        let above = self.mounts.iter().filter(|mount| path.starts_with(&mount.path));
        let mount = above.max_by_key(|mount| (mount.path.components().count(), mount.id))?;
        Some((mount, path.strip_prefix(&mount.path).unwrap_or(Path::new("")).to_owned()))
    }

    pub(super) fn superblock(&self, mount: &Mount) -> Option<&Superblock> {
        match mount.root {
            Root::Filesystem(index) => Some(&self.superblocks[index]),
            _ => None,
        }
    }

    pub(super) fn add_superblock(&mut self, superblock: Superblock) -> usize {
        let minor = self.next();
        let number = match superblock.disk {
            Some(_) => superblock.number,
            None => DeviceNumber::new(0, 100 + minor),
        };
        self.superblocks.push(Superblock { number, ..superblock });
        self.superblocks.len() - 1
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.top(path).is_some()
            || self.is_directory(path)
            || self.places.contains(path)
            || self.host_files.contains_key(path)
            || fs::symlink_metadata(path).is_ok()
    }

    /// Whether the node itself has this directory.
    pub(super) fn is_directory(&self, path: &Path) -> bool {
        path == Path::new("/")
            || self.directories.contains(path)
            || fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
    }
}

/// The path with symbolic links in its parent resolved, as in the mount table.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// The path with symbolic links resolved, if it exists on the real system.
pub(super) fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

pub(super) fn fail<T>(kind: ErrorKind, operation: &'static str, path: &Path, reason: &str) -> Result<T> {
    Err(Error::new(kind, operation, reason).at(path))
}

/// The options of a filesystem as the mount table shows them.
pub(super) fn options_text(options: &MountOptions) -> String {
    let option = |option: &FsOption| match option.value() {
        Some(value) => format!("{}={value}", option.key()),
        None => option.key().to_owned(),
    };
    std::iter::once("rw".to_owned())
        .chain(options.filesystem().iter().map(option))
        .collect::<Vec<_>>()
        .join(",")
}
