//! What is known about the root of an SMB mount without asking its server.
//!
//! `statx` with `AT_STATX_DONT_SYNC` reads only memory on other filesystems. The SMB client asks the server
//! with it too if it has marked the attributes as old (`cifs_getattr` in `fs/smb/client/inode.c`), as after a
//! name in the directory was removed. If the server is silent, that call waits without limit.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use crate::sys::ids::{DeviceNumber, MountId};
use crate::table::fd_info::FdInfo;
use crate::table::mountinfo;

/// How long an answer that the kernel has no SMB client holds, in milliseconds: its module is loaded by the
/// first mount.
const NONE_HOLDS: u64 = 100;

/// Whether any SMB filesystem can be mounted now: the kernel has the client.
pub(crate) fn can_exist() -> bool {
    /// The time from which the answer must be looked for again; the client was there if it is 0.
    static LOOK_FROM: AtomicU64 = AtomicU64::new(1);
    static START: OnceLock<Instant> = OnceLock::new();
    let now = || 1 + START.get_or_init(Instant::now).elapsed().as_millis() as u64;
    match LOOK_FROM.load(Ordering::Relaxed) {
        0 => true,
        later if later > 1 && now() < later => false,
        _ => {
            let is_there = Path::new("/sys/module/cifs").exists();
            LOOK_FROM.store(if is_there { 0 } else { now() + NONE_HOLDS }, Ordering::Relaxed);
            is_there
        }
    }
}

/// What the kernel has in memory about the root of an attached SMB mount: a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmbRoot {
    pub(crate) device: DeviceNumber,
    pub(crate) inode: u64,
    pub(crate) mount: MountId,
}

/// Returns `None` if the open file is not the root of an attached SMB mount, and before Linux 5.14, where fdinfo
/// has no inode number.
pub(crate) fn find(fd: BorrowedFd<'_>) -> io::Result<Option<SmbRoot>> {
    if can_exist() { root_of(fd, is_smb) } else { Ok(None) }
}

fn root_of(fd: BorrowedFd<'_>, is_meant: impl Fn(&str) -> bool) -> io::Result<Option<SmbRoot>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The kernel has the directory above in memory. There is none if this is a file.
    let Ok(above) = rustix::fs::openat(fd, c"..", flags, Mode::empty()) else { return Ok(None) };
    let FdInfo { mount, inode } = FdInfo::read(fd)?;
    let is_root = || FdInfo::read(above.as_fd()).is_ok_and(|above| above.mount != mount);
    let Some(inode) = inode.filter(|_| is_root()) else { return Ok(None) };
    let entry = mountinfo::mount_by_id(mount).map_err(io::Error::other)?;
    let entry = entry.filter(|entry| is_meant(&entry.fs_type));
    Ok(entry.map(|entry| SmbRoot { device: entry.device, inode, mount }))
}

/// Whether this type of filesystem is the kernel's SMB client.
pub(crate) fn is_smb(fs_type: &str) -> bool {
    matches!(fs_type, "cifs" | "smb3")
}

#[cfg(test)]
mod needs_root {
    use super::*;
    use crate::mounting::bind::Bind;
    use crate::mounting::mount::Mount;
    use crate::place::target::Target;
    use crate::table::facts::{self, Facts};
    use crate::testing::private_mount_namespace;

    #[test]
    fn what_is_known_is_what_statx_says() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let target = Target::new(directory.path()).unwrap();
            Mount::new("tmpfs", "x").at(&target).unwrap();
            for name in ["below", "bound"] {
                std::fs::create_dir(directory.path().join(name)).unwrap();
            }
            let bound = Target::new(directory.path().join("bound")).unwrap();
            Bind::new(&directory.path().join("below")).at(&bound).unwrap();
            let is_meant = |fs_type: &str| fs_type == "tmpfs";
            for root in [&target, &bound] {
                let opened = root.open("look").unwrap();
                let found = root_of(opened.fd.as_fd(), is_meant).unwrap();
                if FdInfo::read(opened.fd.as_fd()).unwrap().inode.is_none() {
                    assert_eq!(found, None, "before Linux 5.14");
                    continue;
                }
                let found = found.expect("it is the root of a mount");
                let Facts { device, inode, mount, .. } = facts::from_fd(&opened.fd).unwrap();
                assert_eq!(found, SmbRoot { device, inode, mount });
                assert_eq!(root_of(opened.fd.as_fd(), is_smb).unwrap(), None, "of another type");
            }
            let below = std::fs::File::open(directory.path().join("below")).unwrap();
            assert_eq!(root_of(below.as_fd(), is_meant).unwrap(), None, "not a root");
        });
    }
}
