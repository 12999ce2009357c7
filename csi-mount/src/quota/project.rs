//! The project of a directory: chosen, limited, measured and given up.

use std::ffi::{CString, OsStr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rustix::fs::{AtFlags, Mode, StatxFlags, XattrFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{DirectoryLimit, Quota, support};
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::stats::{FilesystemUsage, Stats};
use crate::place::target::is_empty;
use crate::sys::features::{self, Feature};
use crate::sys::project_quota::{
    Account, COUNTED, ENFORCED, FileAttributes, INHERIT, Quotas, file_attributes, set_file_attributes,
};

/// Our ids begin here. The kubelet's begin at 1048577, those of people near 1.
const FIRST_ID: u32 = 0x4000_0000;
const IDS: u32 = 0x4000_0000;
/// An id is chosen at random among the first of them, so that the quota file, which XFS never shrinks, stays small; and
/// among more when most of those are in use.
const WINDOWS: [u32; 3] = [1 << 16, 1 << 20, IDS];
/// The attribute that says which project a directory got from us. A file's owner can change the file's project, and no
/// attribute of this kind (xattr(7)).
const PROOF: &str = "trusted.csi-mount.project";
const NO_PROOF: rustix::io::Errno = rustix::io::Errno::NODATA;
const NO_ATTRIBUTES: rustix::io::Errno = rustix::io::Errno::OPNOTSUPP;
const TOO_LONG: rustix::io::Errno = rustix::io::Errno::RANGE;
/// How many the first are. A test makes them few.
static FIRST_WINDOW: AtomicU32 = AtomicU32::new(1 << 12);
const ATTEMPTS: u32 = 32;
/// How long a removal waits until XFS has freed the removed files.
const FREED_WITHIN: Duration = Duration::from_secs(5);

/// An open directory, and the quotas of its filesystem.
pub(super) struct Project<'d> {
    operation: &'static str,
    path: &'d Path,
    directory: BorrowedFd<'d>,
    /// The node of the filesystem's device, if the kernel needs it and /dev has it.
    node: Option<CString>,
    /// All zeros if the filesystem has no projects.
    attributes: FileAttributes,
}

impl<'d> Project<'d> {
    pub(super) fn open(operation: &'static str, path: &'d Path, directory: BorrowedFd<'d>) -> Result<Self> {
        let attributes = match file_attributes(directory) {
            Err(Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => {
                FileAttributes::default()
            }
            attributes => attributes.map_err(|error| Error::os(operation, path, error))?,
        };
        let needs_node = !features::has(Feature::QuotaDescriptor);
        let node = if needs_node { support::device_node(operation, path, directory)? } else { None };
        Ok(Self { operation, path, directory, node, attributes })
    }

    fn quotas(&self) -> Result<Quotas<'_>> {
        match &self.node {
            Some(node) => Ok(Quotas::OnDevice(node)),
            None if features::has(Feature::QuotaDescriptor) => Ok(Quotas::Of(self.directory)),
            None => Err(support::no_node(self.operation, self.path, self.directory)?),
        }
    }

    fn account_of(&self, id: u32) -> Result<Account> {
        self.quotas()?.account(id).or_else(|error| Err(self.refused(error)?))
    }

    /// The error of a call about quotas, which says how to switch them on if they are off.
    fn refused(&self, error: Errno) -> Result<Error> {
        if is_off(error) {
            return support::missing(self.operation, self.path, self.directory, false);
        }
        Ok(match error {
            Errno::EPERM => support::not_permitted(self.operation, self.path),
            Errno::ERANGE => self.failed(error).with_kind(ErrorKind::OutOfRange),
            error => self.failed(error),
        })
    }

    fn error(&self, kind: ErrorKind, reason: impl Into<String>) -> Error {
        Error::new(kind, self.operation, reason).at(self.path)
    }

    fn failed(&self, error: Errno) -> Error {
        Error::os(self.operation, self.path, error)
    }

    /// The directory's own project. `None` if new files do not belong to it.
    fn id(&self) -> Option<u32> {
        let FileAttributes { flags, project, .. } = self.attributes;
        (flags & INHERIT != 0 && project != 0).then_some(project)
    }

    /// The project that this directory got from us, whatever its own is now.
    fn own_id(&self) -> Result<Option<u32>> {
        let mut text = [0; 128];
        let text = match rustix::fs::fgetxattr(self.directory, PROOF, &mut text[..]) {
            Err(NO_PROOF | NO_ATTRIBUTES | TOO_LONG) => return Ok(None),
            read => &text[..read.map_err(|error| Error::os(self.operation, self.path, error))?],
        };
        let text = String::from_utf8_lossy(text);
        let id = text.split(' ').next().and_then(|id| id.parse().ok()).filter(|id| is_ours(*id));
        // A copy of the directory can have the attribute too.
        Ok(match id {
            Some(id) if self.proof(id)? == text => Some(id),
            _ => None,
        })
    }

    /// What is recorded at the directory that got this project: with what no other directory has.
    fn proof(&self, id: u32) -> Result<String> {
        let found =
            rustix::fs::statx(self.directory, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME);
        let found = found.map_err(|error| Error::os(self.operation, self.path, error))?;
        Ok(format!("{id} {} {}.{}", found.stx_ino, found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
    }

    fn record(&self, id: u32) -> Result<()> {
        let recorded =
            rustix::fs::fsetxattr(self.directory, PROOF, self.proof(id)?.as_bytes(), XattrFlags::empty());
        recorded.map_err(|error| Error::os(self.operation, self.path, error))
    }

    /// The project by which the directory is measured.
    fn counted_id(&self) -> Result<Option<u32>> {
        Ok(match self.id() {
            None => None,
            Some(id) => Some(self.own_id()?.unwrap_or(id)),
        })
    }

    /// The project, if it is one of ours and nothing but this directory belongs to it.
    fn sole_id(&self) -> Result<Option<u32>> {
        let id = self.attributes.project;
        Ok(if is_ours(id) && self.account_of(id)?.used_inodes == 1 { Some(id) } else { None })
    }

    /// Refuses a filesystem that can't enforce limits, or does not do it now, and says how to change that.
    fn require_enforced(&self) -> Result<()> {
        let state = match self.quotas()?.state() {
            Err(error) if is_off(error) => 0,
            state => state.map_err(|error| self.failed(error))?,
        };
        if state & ENFORCED == 0 {
            let is_counted = state & COUNTED != 0;
            return Err(support::missing(self.operation, self.path, self.directory, is_counted)?);
        }
        // Whether this process is allowed to.
        self.account_of(0).map(drop)
    }

    /// The limit of the directory, if the filesystem enforces it.
    fn enforced_limit(&self) -> Result<Option<DirectoryLimit>> {
        // Most directories have no project, and this needs no call.
        if self.id().is_none() {
            return Ok(None);
        }
        match self.require_enforced() {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            enforced => enforced.and_then(|()| self.limit()),
        }
    }

    fn account(&self) -> Result<Account> {
        self.account_of(self.counted_id()?.unwrap_or(0))
    }

    /// Takes a project id that nothing else has. The directory itself is the claim: it is the id's only inode, or
    /// another process has chosen the same id.
    fn claim(&mut self) -> Result<u32> {
        if let Some(id) = self.sole_id()? {
            // The claim of a call that was interrupted.
            return Ok(id);
        }
        let flags = self.attributes.flags & !INHERIT;
        for window in [FIRST_WINDOW.load(Ordering::Relaxed)].into_iter().chain(WINDOWS) {
            for _ in 0..ATTEMPTS {
                let id = FIRST_ID + random()? % window;
                let found = self.account_of(id)?;
                if found.used_inodes > 0 || found.used_bytes > 0 {
                    continue;
                }
                match self.set_attributes(id, flags) {
                    // A limit that is left of an earlier directory.
                    Err(Errno::EDQUOT | Errno::ENOSPC) => continue,
                    set => set.map_err(|error| self.failed(error))?,
                }
                if self.sole_id()? == Some(id) {
                    return Ok(id);
                }
            }
        }
        Err(self.error(ErrorKind::NoSpace, "no project id is free"))
    }

    fn set_attributes(&mut self, project: u32, flags: u32) -> nix::Result<()> {
        let mut attributes = self.attributes;
        attributes.flags = flags;
        attributes.project = project;
        set_file_attributes(self.directory, &attributes)?;
        self.attributes = attributes;
        Ok(())
    }

    fn set_limits(&self, id: u32, limit: DirectoryLimit) -> Result<()> {
        let set = self.quotas()?.set_limits(id, limit.bytes, limit.inodes);
        set.or_else(|error| Err(self.refused(error)?))
    }
}

impl Quota for Project<'_> {
    /// A directory whose content belongs to a project is refused, too: the limit of that one would not count for what
    /// has an own one.
    fn require_limits_below(&self) -> Result<()> {
        self.require_enforced()?;
        match self.id() {
            None => Ok(()),
            Some(id) => Err(self
                .error(ErrorKind::Unsupported, format!("what is made there belongs to project {id}"))
                .hint("use another parent directory, or take the project from it: chattr -P -p 0")),
        }
    }

    fn make(&self, name: &OsStr) -> rustix::io::Result<()> {
        rustix::fs::mkdirat(self.directory, name, Mode::from_raw_mode(0o777))
    }

    fn limit(&self) -> Result<Option<DirectoryLimit>> {
        if self.id().is_none() {
            return Ok(None);
        }
        let account = self.account()?;
        let limit = DirectoryLimit { bytes: account.hard_bytes(), inodes: account.hard_inodes };
        Ok((limit.bytes > 0).then_some(limit))
    }

    fn limit_empty(&mut self, limit: DirectoryLimit) -> Result<DirectoryLimit> {
        if self.id().is_some() && self.own_id()?.is_some() {
            // Its removal was interrupted.
            self.change(limit)?;
            return Ok(limit);
        }
        if !is_empty(self.directory).map_err(|error| Error::os(self.operation, self.path, error))? {
            return Err(self
                .error(ErrorKind::Unsupported, "it has files that no limit counts")
                .hint("only an empty directory can get its first limit: copy its content into a new one"));
        }
        let id = self.claim()?;
        self.record(id)?;
        self.set_limits(id, limit)?;
        // Last: the directory counts as limited from here on.
        self.set_attributes(id, self.attributes.flags | INHERIT).map_err(|error| self.failed(error))?;
        Ok(limit)
    }

    fn change(&self, limit: DirectoryLimit) -> Result<()> {
        let Some(id) = self.own_id()?.filter(|_| self.id().is_some()) else {
            return Err(match self.id() {
                Some(id) => {
                    self.error(ErrorKind::NotOwned, format!("it belongs to project {id} of somebody else"))
                }
                None => self.error(ErrorKind::Unsupported, "it was made without a limit"),
            });
        };
        let used = self.account()?;
        if used.used_bytes > limit.bytes || used.used_inodes > limit.inodes {
            let reason = format!(
                "it holds {} bytes and {} inodes, more than {} and {}",
                used.used_bytes, used.used_inodes, limit.bytes, limit.inodes
            );
            return Err(self.error(ErrorKind::OutOfRange, reason));
        }
        self.set_limits(id, limit)
    }

    fn usage(&self) -> Result<Option<Stats>> {
        let Some(limit) = self.enforced_limit()? else { return Ok(None) };
        let account = self.account()?;
        let of = |total: u64, used: u64| FilesystemUsage::new(total, used, total.saturating_sub(used));
        let inodes = of(limit.inodes, account.used_inodes);
        Ok(Some(Stats::new(of(limit.bytes, account.used_bytes), (limit.inodes > 0).then_some(inodes))))
    }

    fn sync(&self) -> Result<()> {
        let failed = |error: rustix::io::Errno| Error::os(self.operation, self.path, error);
        // Both filesystems log changes in their order, so the sync of a later change of the directory, here of its
        // ctime, includes the limit. A sync of the limit alone does not exist.
        rustix::fs::fchown(self.directory, None, None).map_err(failed)?;
        rustix::fs::fsync(self.directory).map_err(failed)
    }
}

/// Makes this process choose project ids among so few first, so that processes choose the same one.
#[cfg(any(test, feature = "testing"))]
pub fn set_first_project_ids(number: u32) {
    FIRST_WINDOW.store(number, Ordering::Relaxed);
}

/// Takes the limit from an empty directory that is about to be removed. While the directory exists nobody else can
/// choose its id. A failure is harmless: an id that nothing belongs to is free, whatever its limit is.
pub(crate) fn release(path: &Path, directory: BorrowedFd<'_>) {
    if let Err(error) = take_limit(path, directory) {
        tracing::debug!("the limit of a removed directory is left: {error}");
    }
}

fn take_limit(path: &Path, directory: BorrowedFd<'_>) -> Result<()> {
    let project = Project::open("take the limit from", path, directory)?;
    let Some(id) = project.own_id()? else { return Ok(()) };
    // XFS counts removed files until it has freed them in the background.
    let own_inodes = u64::from(project.attributes.project == id);
    let end = Instant::now() + FREED_WITHIN;
    loop {
        if project.account_of(id)?.used_inodes <= own_inodes {
            return project.set_limits(id, DirectoryLimit { bytes: 0, inodes: 0 });
        }
        if Instant::now() > end {
            return Err(project.error(ErrorKind::Busy, "other files have the same project id"));
        }
        // This makes XFS hurry.
        project.account_of(0)?;
        sleep(Duration::from_millis(1));
    }
}

/// Whether quotas are off, or unknown to the filesystem.
fn is_off(error: Errno) -> bool {
    matches!(error, Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ESRCH | Errno::ENOTBLK)
}

fn is_ours(id: u32) -> bool {
    (FIRST_ID..FIRST_ID + IDS).contains(&id)
}

fn random() -> Result<u32> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::os("choose a project id", "/dev/urandom", error))?;
    Ok(u32::from_ne_bytes(bytes))
}
