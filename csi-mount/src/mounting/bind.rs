//! Bind mounts that have their attributes before they are visible.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::detached::prepared::{self, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::attach::{self, Attached, Outcome};
use crate::mounting::id_map::IdMap;
use crate::path::{lookup, paths};
use crate::place::nesting::{MountedDirectory, Nesting, nesting};
use crate::place::target::{OpenTarget, Target, name_of};
use crate::sys::attributes::MountAttributes;
use crate::sys::features::{self, Feature};
use crate::sys::ids::MountId;
use crate::sys::mount_api::{self, Depth, StatMountBasic};
use crate::table::details::{Basics, Details, statmount_basics};
use crate::table::facts::{self, Facts};

/// Builder for a bind mount: a file or directory shown at a second place, with its own attributes there.
///
/// The attributes hold in every mount namespace that receives the mount, and the mount is never visible
/// without them: it is created detached, gets its attributes, and is then moved onto the target
/// (`open_tree(2)`, `mount_setattr(2)`, `move_mount(2)`; Linux 5.12). On older kernels it is prepared in a
/// private directory and moved from there. In contrast, a bind that is remounted read-only afterwards, as
/// `mount --bind -o ro` does, stays writable on the host if the target's mount is shared with the host.
///
/// The bind has the attributes of the source's mount in addition to the requested ones, so it never allows
/// more.
///
/// ```no_run
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{Bind, MountAttributes, Target};
///
/// let target = Target::new("/var/lib/kubelet/pods/uid/volumes/data/mount")?;
/// target.create_dir()?;
/// Bind::new("/srv/volumes/data").attributes(MountAttributes::RDONLY).at(&target)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is mounted before `at`"]
#[doc(alias = "MS_BIND")]
pub struct Bind<'a> {
    source: &'a Path,
    attributes: MountAttributes,
    depth: Depth,
    id_map: IdMap,
    is_private: bool,
}

const BIND: &str = "bind to";

impl<'a> Bind<'a> {
    /// A bind of the file or directory at an absolute path.
    ///
    /// Symbolic links in the path are followed, because the driver controls it. If a filesystem along the
    /// path does not answer, the call fails after five seconds.
    pub fn new(source: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        let attributes = MountAttributes::empty();
        let source = source.as_ref();
        Self { source, attributes, depth: Depth::Single, id_map: IdMap::new(), is_private: false }
    }

    /// Adds attributes to those that the source's mount has.
    pub fn attributes(mut self, attributes: MountAttributes) -> Self {
        self.attributes = self.attributes.combined_with(attributes);
        self
    }

    /// Includes the mounts below the source, with the same attributes added.
    ///
    /// Needs Linux 5.12 if attributes are requested.
    #[doc(alias = "MS_REC")]
    pub fn recursive(mut self) -> Self {
        self.depth = Depth::Recursive;
        self
    }

    /// Maps the owners and groups that the mount shows (`mount_setattr(2)` with `MOUNT_ATTR_IDMAP`).
    ///
    /// It needs Linux 5.12, a filesystem that supports it (ext4, XFS, btrfs; tmpfs since 6.3), and a source
    /// that is not mapped already. There is no fallback: without support the bind fails with
    /// [`ErrorKind::Unsupported`].
    ///
    /// For an existing bind mount the owner of its root shows whether it has the same map. This does not
    /// detect a different map that leaves that owner unchanged.
    pub fn id_map(mut self, map: IdMap) -> Self {
        self.id_map = map;
        self
    }

    /// Takes it out of its source's propagation group: what is mounted on it does not come to the source, nor the other way.
    pub(crate) fn private(mut self) -> Self {
        self.is_private = true;
        self
    }

    /// Mounts it, unless the same source is mounted there with the same attributes.
    ///
    /// An existing mount has to work: a dead filesystem, or one that does not answer, is refused. On failure
    /// nothing new is mounted. If several callers bind to one target at once, one mounts and the others find
    /// it mounted.
    ///
    /// # Errors
    /// - [`ErrorKind::AlreadyMounted`]: something else is mounted at the target, or the same with other
    ///   attributes.
    /// - [`ErrorKind::NotFound`]: the source, or the directory or file to mount on, does not exist.
    /// - [`ErrorKind::InvalidInput`]: a path can never work, one path is inside the other, only one of them
    ///   is a directory, or the target is a symbolic link.
    /// - [`ErrorKind::PermissionDenied`]: CAP_SYS_ADMIN is missing.
    /// - [`ErrorKind::Busy`]: the source was unmounted during the call, or other processes mount and unmount
    ///   at the target at the same time.
    /// - [`ErrorKind::Unresponsive`]: a filesystem along the source's path does not answer, the source's own
    ///   filesystem shut down, or the existing mount is dead or does not answer.
    /// - [`ErrorKind::Unsupported`]: this kernel does not support an attribute.
    pub fn at(&self, target: &Target) -> Result<Outcome> {
        let path = paths::absolute("bind", self.source)?;
        let (source, attributes) = self.open(&path)?;
        attach::mount_once(
            BIND,
            target,
            |opened, found| accept(&source, attributes, target, opened, found),
            |opened| {
                check_pair(&source, target, &opened)?;
                let bind = || {
                    let mount = source.prepared(attributes, opened.facts.file_type)?;
                    attach::attach(BIND, mount, target, &opened, attributes)
                };
                bind().map_err(diagnosed)
            },
        )
    }

    /// Mounts a directory on top of the target's topmost mount, which must be this one.
    pub(crate) fn on_top_of(&self, below: MountId, target: &Target) -> Result<Outcome> {
        let path = paths::absolute("bind", self.source)?;
        let (source, attributes) = self.open(&path)?;
        let mount = source.prepared(attributes, FileType::Directory).map_err(diagnosed)?;
        match attach::attach_on_top(BIND, mount, target, below, attributes)? {
            Attached::Ours => Ok(Outcome::Mounted),
            Attached::Lost => Err(attach::busy(BIND, target)),
        }
    }

    /// The source, and the attributes of its bind.
    fn open<'s>(&'s self, path: &'s Path) -> Result<(Source<'s>, MountAttributes)> {
        let open = || -> io::Result<_> {
            let fd = lookup::open_path(path, OFlags::empty())?;
            let facts = facts::from_fd(&fd)?;
            Ok((fd, facts))
        };
        let (fd, facts) = open().map_err(|error| Error::os("bind", path, error))?;
        if facts.is_broken() {
            let reason = "its filesystem is dead, and does not return the type of the file";
            let error = Error::new(ErrorKind::Unresponsive, "bind", reason).at(path);
            return Err(error.hint("restore its device or server; then unmount it and mount it again"));
        }
        let statmount = statmount_basics(&fd).ok().flatten();
        let mount = match statmount {
            Some(statmount) => Some(statmount.into()),
            None => Basics::from_fd(&fd, "bind", path)?,
        };
        let mount = mount.ok_or_else(|| {
            Error::new(ErrorKind::Busy, "bind", "it was unmounted during the call").at(path)
        })?;
        let attributes = mount.attributes.combined_with(self.attributes);
        Ok((Source { path, fd, facts, statmount, bind: self }, attributes))
    }
}

struct Source<'a> {
    path: &'a Path,
    fd: OwnedFd,
    facts: Facts,
    statmount: Option<StatMountBasic>,
    bind: &'a Bind<'a>,
}

impl Source<'_> {
    /// The bind with its attributes. It is not visible yet.
    fn prepared(&self, attributes: MountAttributes, file_type: FileType) -> Result<Prepared> {
        if features::has(Feature::FsContext) && features::has(Feature::MountSetattr) {
            let mount = Prepared::Detached(self.detached(attributes)?);
            return self.made_private(mount);
        }
        if !self.bind.id_map.is_identity() {
            let error = Error::new(
                ErrorKind::Unsupported,
                "map owners of the bind of",
                "this kernel does not support it",
            );
            return Err(error.at(self.path).hint("it needs Linux 5.12"));
        }
        let mount = prepared::bind(self.path, &self.fd, self.bind.depth, attributes, file_type)?;
        self.made_private(mount)
    }

    fn made_private(&self, mount: Prepared) -> Result<Prepared> {
        if self.bind.is_private {
            mount.make_private().map_err(|error| Error::os("bind", self.path, error))?;
        }
        Ok(mount)
    }

    /// Makes the bind in no namespace, with its attributes.
    fn detached(&self, attributes: MountAttributes) -> Result<OwnedFd> {
        let os = |error: io::Error| Error::os("bind", self.path, error);
        let recursive = match self.bind.depth {
            Depth::Single => OpenTreeFlags::empty(),
            Depth::Recursive => OpenTreeFlags::AT_RECURSIVE,
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | recursive;
        let mount = open_tree(&self.fd, c"", flags).map_err(|error| os(error.into()))?;
        mount_api::mount_setattr(&mount, attributes, self.bind.depth).map_err(|error| {
            Error::os("set attributes of the bind of", self.path, error)
                .add_reason(format_args!("{attributes} was requested"))
        })?;
        if !self.bind.id_map.is_identity() {
            let namespace = self.bind.id_map.namespace(self.path)?;
            mount_api::set_id_map(&mount, &namespace, self.bind.depth).map_err(|error| {
                let error = Error::os("map owners of the bind of", self.path, error);
                match error.kind() {
                    // The kernel reports only EINVAL.
                    ErrorKind::InvalidInput => error.with_kind(ErrorKind::Unsupported).hint(
                        "its filesystem does not support it on this kernel: ext4, XFS and btrfs need \
                         5.12 to 5.15, tmpfs 6.3",
                    ),
                    _ => error,
                }
            })?;
        }
        Ok(mount)
    }
}

/// Accepts an existing mount only if it is the same file with the same attributes.
fn accept(
    source: &Source<'_>,
    attributes: MountAttributes,
    target: &Target,
    opened: &OpenTarget,
    found: &Details,
) -> Result<()> {
    if !opened.facts.is_same_file(&source.facts) {
        let difference = format!("something other than {} is mounted", source.path.display());
        return Err(attach::refuse(BIND, target, found, &difference));
    }
    attach::require_attributes(BIND, target, found, attributes)?;
    if opened.facts.owner != source.bind.id_map.shown(source.facts.owner) {
        return Err(attach::refuse(BIND, target, found, "the existing mount has another id map"));
    }
    Ok(())
}

/// Refuses a pair that cannot be bound, or that would show a tree inside itself.
fn check_pair(source: &Source<'_>, target: &Target, opened: &OpenTarget) -> Result<()> {
    let refuse = |why: &str| {
        let reason = format!("{why} the source {}", source.path.display());
        Err(Error::new(ErrorKind::InvalidInput, BIND, reason).at(target.path()))
    };
    let from = source.facts.file_type;
    let onto = opened.facts.file_type;
    if (from == FileType::Directory) != (onto == FileType::Directory) {
        let reason = format!("it is {}, and {} {}", name_of(onto), source.path.display(), name_of(from));
        return Err(Error::new(ErrorKind::InvalidInput, BIND, reason).at(target.path()));
    }
    if opened.facts.is_same_file(&source.facts) {
        return refuse("it is the same as");
    }
    if onto != FileType::Directory {
        return Ok(());
    }
    let directory = target.parent(BIND)?;
    let onto = MountedDirectory::new(directory, &opened.facts, statmount_basics(directory).ok().flatten());
    let from = MountedDirectory::new(source.fd.as_fd(), &source.facts, source.statmount);
    match nesting(&from, &onto, &opened.directory).map_err(|error| target.error(BIND, error))? {
        Nesting::Separate => Ok(()),
        Nesting::Inside => refuse("it is inside"),
        Nesting::Contains => refuse("it contains"),
    }
}

/// Adds the fix if the error number has only one meaning for a bind.
fn diagnosed(error: Error) -> Error {
    match error.kind() {
        ErrorKind::PermissionDenied => error.hint("the process needs CAP_SYS_ADMIN"),
        _ => error,
    }
}
