//! What the kernel reports about one mount: from statmount if possible, otherwise from mountinfo.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::attributes::MountAttributes;
use crate::sys::features::{self, Feature};
use crate::sys::ids::{DeviceNumber, MountId};
use crate::sys::mount_api::{self, StatMount, StatMountBasic};
use crate::table::mountinfo::{self, MountEntry};
use crate::table::{facts, smb_root};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Details {
    pub(crate) id: MountId,
    pub(crate) parent: MountId,
    pub(crate) device: DeviceNumber,
    pub(crate) attributes: MountAttributes,
    /// Whether the whole filesystem is read-only: it was mounted so, or an error made it so.
    pub(crate) is_super_read_only: bool,
    /// Whether an error made it refuse all operations.
    pub(crate) is_shut_down: bool,
    pub(crate) fs_type: String,
    pub(crate) source: OsString,
    /// Whether project quotas are enforced: reading the usage of a directory can then need the disk.
    pub(crate) has_project_quota: bool,
}

/// Which mount it is, where, and its attributes: the part of [`Details`] that is needed most and costs least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Basics {
    pub(crate) id: MountId,
    pub(crate) parent: MountId,
    pub(crate) attributes: MountAttributes,
}

impl Basics {
    /// As [`Details::from_fd`].
    pub(crate) fn from_fd(fd: impl AsFd, operation: &'static str, path: &Path) -> Result<Option<Self>> {
        match statmount_basics(fd.as_fd()) {
            Ok(Some(found)) => return Ok(Some(found.into())),
            Err(error) if is_errno(&error, Errno::NOENT) => return Ok(None),
            // The code below also finds the cause of another error.
            Ok(None) | Err(_) => {}
        }
        let details = Details::from_fd(fd, operation, path)?;
        Ok(details.map(|Details { id, parent, attributes, .. }| Self { id, parent, attributes }))
    }
}

impl From<StatMountBasic> for Basics {
    fn from(found: StatMountBasic) -> Self {
        Self { id: found.id, parent: found.parent, attributes: found.attributes }
    }
}

/// What the kernel reports at no extra cost about the mount of a file. None if the kernel has no call for it.
pub(crate) fn statmount_basics(fd: impl AsFd) -> io::Result<Option<StatMountBasic>> {
    match features::has(Feature::Statmount).then(|| unique_id(fd)) {
        Some(Ok(Some(id))) => mount_api::statmount_basic(id).map(Some),
        _ => Ok(None),
    }
}

/// Filesystems that the kernel serves without a server or daemon.
const LOCAL: [&str; 33] = [
    "bcachefs",
    "binfmt_misc",
    "bpf",
    "btrfs",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "mqueue",
    "nsfs",
    "ntfs3",
    "overlay",
    "proc",
    "ramfs",
    "rootfs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "vfat",
    "xfs",
    "zfs",
];

/// Filesystems whose `statfs(2)` and `statx(2)` read only memory, according to the sources of kernels with
/// statmount (`fs/ext4/super.c`, `fs/xfs/xfs_super.c`, `mm/shmem.c`). XFS of Linux 5.14 to 5.18 waited for
/// its disk.
const IN_MEMORY: [&str; 6] = ["ext2", "ext3", "ext4", "ramfs", "tmpfs", "xfs"];

/// ext4's option after an error: since Linux 6.15 an error does not make the superblock read-only.
const EMERGENCY_READ_ONLY: &str = "emergency_ro";
const SHUT_DOWN: &str = "shutdown";
const PROJECT_QUOTA: &str = "prjquota";

/// `STATX_MNT_ID_UNIQUE`: the id that statmount takes. It is never reused.
const MNT_ID_UNIQUE: u32 = 0x4000;

impl Details {
    /// The mount that a file is on. None if the mount is in no tree of this namespace (detached or
    /// unmounted).
    pub(crate) fn from_fd(fd: impl AsFd, operation: &'static str, path: &Path) -> Result<Option<Self>> {
        let os = |error: io::Error| Error::os(operation, path, error);
        match Self::from_statmount(fd.as_fd()) {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(error) if is_errno(&error, Errno::NOENT) => return Ok(None),
            // EPERM: the mount is not reachable from this process's root, and mountinfo does not list such
            // mounts. EOVERFLOW: its options are longer than our buffer, as for an overlay of many layers.
            Err(error) if is_errno(&error, Errno::PERM) || is_errno(&error, Errno::OVERFLOW) => {}
            Err(error) => return Err(os(error)),
        }
        let id = facts::from_fd(fd).map_err(os)?.mount;
        Ok(mountinfo::mount_by_id(id)?.map(Self::from))
    }

    /// As [`from_fd`](Self::from_fd), by one call whose cost does not depend on the number of mounts. None if
    /// the kernel is too old.
    pub(crate) fn from_statmount(fd: impl AsFd) -> io::Result<Option<Self>> {
        if features::has(Feature::Statmount)
            // An XFS that shut down refuses even this call; the mount table still has its row.
            && let Ok(Some(id)) = unique_id(fd)
        {
            return Ok(mount_api::statmount(id)?.map(Self::from));
        }
        Ok(None)
    }

    /// Whether the filesystem has a daemon or server that can be gone, so that asking it can hang.
    ///
    /// Every type that is not known to be local counts as remote.
    pub(crate) fn is_remote(&self) -> bool {
        is_remote(&self.fs_type)
    }

    /// Whether the kernel reports its usage from memory, so that the query cannot hang.
    pub(crate) fn answers_from_memory(&self) -> bool {
        features::has(Feature::Statmount) && IN_MEMORY.contains(&&*self.fs_type) && !self.has_project_quota
    }
}

/// For example `ext4 from /dev/loop0 (7:0), ro,nosuid`.
impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fs_type, source, device, attributes, .. } = self;
        write!(f, "{fs_type} from {} ({device}), {attributes}", Path::new(source).display())
    }
}

/// As [`Details::is_remote`], for a type of filesystem.
pub(crate) fn is_remote(fs_type: &str) -> bool {
    !LOCAL.contains(&fs_type)
}

/// Whether a type of filesystem is FUSE, with a subtype or without: `fuse.sshfs`.
pub(crate) fn is_fuse(fs_type: &str) -> bool {
    fs_type == "fuse" || fs_type.starts_with("fuse.")
}

pub(crate) fn unique_id(fd: impl AsFd) -> io::Result<Option<u64>> {
    if smb_root::find(fd.as_fd())?.is_some() {
        return Ok(None);
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(fd, c"", flags, StatxFlags::from_bits_retain(MNT_ID_UNIQUE))?;
    Ok((found.stx_mask & MNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id))
}

fn is_errno(error: &io::Error, number: Errno) -> bool {
    Errno::from_io_error(error) == Some(number)
}

impl From<StatMount> for Details {
    fn from(found: StatMount) -> Self {
        let mut fs_type = String::from_utf8_lossy(&found.fs_type).into_owned();
        if let Some(subtype) = found.fs_subtype {
            fs_type = format!("{fs_type}.{}", String::from_utf8_lossy(&subtype));
        }
        Self {
            id: found.id,
            parent: found.parent,
            device: found.device,
            attributes: found.attributes,
            is_super_read_only: found.is_super_read_only || found.options.has_flag(EMERGENCY_READ_ONLY),
            is_shut_down: found.options.has_flag(SHUT_DOWN),
            has_project_quota: found.options.has_flag(PROJECT_QUOTA),
            fs_type,
            source: found.source,
        }
    }
}

impl From<MountEntry> for Details {
    fn from(entry: MountEntry) -> Self {
        Self {
            id: entry.id,
            parent: entry.parent,
            device: entry.device,
            attributes: entry.attributes,
            is_super_read_only: ["ro", EMERGENCY_READ_ONLY]
                .iter()
                .any(|flag| entry.super_options.has_flag(flag)),
            is_shut_down: entry.super_options.has_flag(SHUT_DOWN),
            has_project_quota: entry.super_options.has_flag(PROJECT_QUOTA),
            fs_type: entry.fs_type,
            source: entry.source,
        }
    }
}

#[cfg(test)]
mod needs_root {
    use super::*;
    use crate::internal::without_features;
    use crate::mounting::mount::Mount;
    use crate::mounting::options::MountOptions;
    use crate::place::target::Target;
    use crate::testing::private_mount_namespace;

    #[test]
    fn statmount_and_mountinfo_agree() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let target = Target::new(directory.path()).unwrap();
            for flags in
                [&[][..], &["ro", "noatime"], &["nosuid", "nodev", "noexec", "strictatime"], &["nosymfollow"]]
            {
                let options = MountOptions::parse(flags).unwrap();
                Mount::new("tmpfs", "so urce").options(&options).at(&target).unwrap();
                let opened = target.open("look").unwrap();
                let details = || Details::from_fd(&opened.fd, "look", target.path()).unwrap().unwrap();
                let old = without_features(&[Feature::Statmount, Feature::StatxMount], details);
                assert_eq!(details(), old);
                let basics = || Basics::from_fd(&opened.fd, "look", target.path()).unwrap().unwrap();
                assert_eq!(
                    (basics().id, basics().parent, basics().attributes),
                    (old.id, old.parent, old.attributes)
                );
                assert_eq!(basics(), without_features(&[Feature::Statmount], basics));
                assert_eq!((old.attributes, old.fs_type.as_str()), (options.attributes(), "tmpfs"));
                assert_eq!(
                    (old.parent, old.is_super_read_only),
                    (opened.directory.mount, options.is_read_only())
                );
                drop(opened);
                crate::unmount(&target).unwrap();
            }
        });
    }

    #[test]
    fn statmount_works_for_a_filesystem_without_options() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let target = Target::new(directory.path()).unwrap();
            let statmount = |options: &[&str]| {
                let options = MountOptions::parse(options).unwrap();
                Mount::new("tmpfs", "x").options(&options).at(&target).unwrap();
                let id = unique_id(&target.open("look").unwrap().fd).unwrap();
                let found = id.map(|id| mount_api::statmount(id).map(|found| found.is_some()).ok());
                crate::unmount(&target).unwrap();
                found
            };
            assert_eq!(statmount(&[]), statmount(&["size=1m"]));
        });
    }
}
