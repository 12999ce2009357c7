//! The system calls of the table. Each one is made by a separate process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use csi_mount::testing::calls;
use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, RawDir, ResolveFlags, StatxFlags, access, fstatfs, getxattr, lstat,
    openat, openat2, readlinkat, rmdir, stat, statfs, statx,
};
use rustix::mount::{OpenTreeFlags, UnmountFlags, mount_bind, open_tree, unmount};

/// One system call at a mount point.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// Whether this crate makes the call without a child process, because it relies on it not to hang.
    pub(crate) is_relied_on: bool,
    /// The row with this crate's own result that is printed next to the call. Empty if there is none.
    pub(crate) helper: &'static str,
    pub(crate) make: fn(&Path) -> io::Result<()>,
}

const fn call(name: &'static str, helper: &'static str, make: fn(&Path) -> io::Result<()>) -> Call {
    Call { name, is_relied_on: false, helper, make }
}

const fn sure(name: &'static str, helper: &'static str, make: fn(&Path) -> io::Result<()>) -> Call {
    Call { name, is_relied_on: true, helper, make }
}

/// This crate's own queries and steps.
pub(crate) mod helper {
    pub(crate) const STATE: &str = "`mount_state`";
    pub(crate) const HEALTH: &str = "`health_within` a second";
    pub(crate) const STATS: &str = "`stats_within` a second";
    pub(crate) const BIND: &str = "`Bind` of it";
    pub(crate) const UNBIND: &str = "`unmount` of that bind";
    pub(crate) const REMOVE: &str = "`Target::remove`";
    pub(crate) const BELOW: &str = "`Bind` of what is below it";
    pub(crate) const UNSTAGE: &str = "`unstage`";
}

fn place(at: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn look(at: &Path, flags: AtFlags, mask: StatxFlags) -> io::Result<()> {
    Ok(statx(CWD, at, flags | AtFlags::NO_AUTOMOUNT, mask).map(drop)?)
}

const BASIC: StatxFlags = StatxFlags::BASIC_STATS;

/// In the order of the table: calls that never wait come first.
pub(crate) const CALLS: &[Call] = &[
    sure("read mountinfo", helper::STATE, |_| std::fs::read("/proc/thread-self/mountinfo").map(drop)),
    sure("open it with `O_PATH`", helper::STATE, |at| place(at).map(drop)),
    sure("`openat2` with `RESOLVE_NO_XDEV`", helper::STATE, |at| {
        Ok(openat2(CWD, at, OFlags::PATH, Mode::empty(), ResolveFlags::NO_XDEV).map(drop)?)
    }),
    sure("`statx` with `DONT_SYNC`", helper::STATE, |at| look(at, AtFlags::STATX_DONT_SYNC, BASIC)),
    sure("fdinfo of it", helper::STATE, |at| {
        let fd = place(at)?;
        let number = fd.as_raw_fd();
        std::fs::read(format!("/proc/thread-self/fdinfo/{number}")).map(drop)
    }),
    sure("`readlink` of its descriptor", helper::STATE, |at| {
        let fd = place(at)?;
        let number = fd.as_raw_fd();
        Ok(readlinkat(CWD, format!("/proc/self/fd/{number}"), Vec::new()).map(drop)?)
    }),
    sure("`open_tree` with `CLONE`", helper::BIND, |at| {
        Ok(open_tree(CWD, at, OpenTreeFlags::OPEN_TREE_CLONE).map(drop)?)
    }),
    sure("bind it, `umount` that", helper::UNBIND, |at| {
        let other = at.with_extension("bind");
        std::fs::create_dir_all(&other)?;
        mount_bind(at, &other)?;
        unmount(&other, UnmountFlags::empty())?;
        Ok(rmdir(&other)?)
    }),
    sure("`statmount`", helper::STATE, |at| calls::statmount(at)),
    call("`listmount`", "", |at| calls::listmount(at)),
    sure("`mount_setattr` of a copy of it", helper::BIND, |at| calls::mount_setattr(at)),
    call("`name_to_handle_at`", "", |at| calls::name_to_handle(at)),
    call("`statx` of its type and inode only", helper::STATE, |at| {
        look(at, AtFlags::empty(), StatxFlags::TYPE | StatxFlags::INO)
    }),
    call("`rmdir` of it", helper::REMOVE, |at| Ok(rmdir(at)?)),
    call("`statx` with `FORCE_SYNC`", helper::HEALTH, |at| look(at, AtFlags::STATX_FORCE_SYNC, BASIC)),
    call("`stat`", helper::HEALTH, |at| Ok(stat(at).map(drop)?)),
    call("`lstat`", helper::HEALTH, |at| Ok(lstat(at).map(drop)?)),
    call("`access`", helper::HEALTH, |at| Ok(access(at, Access::WRITE_OK)?)),
    call("`statfs`", helper::STATS, |at| Ok(statfs(at).map(drop)?)),
    call("`fstatfs` by an `O_PATH` descriptor", helper::STATS, |at| Ok(fstatfs(place(at)?).map(drop)?)),
    call("open it for reading", helper::HEALTH, |at| File::open(at).map(drop)),
    call("read the directory", helper::HEALTH, |at| {
        let fd = openat(CWD, at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut room = Vec::with_capacity(8192);
        match RawDir::new(fd, room.spare_capacity_mut()).next() {
            Some(Err(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }),
    call("`getxattr`", helper::HEALTH, |at| {
        // An answer such as "no data" or "no such attribute" also counts.
        Ok(getxattr(at, "user.x", &mut [0_u8; 64]).map(drop)?)
    }),
    call("`stat` of its `..`", helper::HEALTH, |at| Ok(stat(at.join("..")).map(drop)?)),
    call("`stat` below it", helper::BELOW, |at| Ok(stat(at.join("file")).map(drop)?)),
    call("open below it with `O_PATH`", helper::BELOW, |at| place(&at.join("other")).map(drop)),
    call("`statx` with `DONT_SYNC` below it", helper::BELOW, |at| {
        look(&at.join("third"), AtFlags::STATX_DONT_SYNC, BASIC)
    }),
];

/// Calls that the client can answer from its cache: on a mount that was just queried and has a long cache
/// time. This crate's own rows are about the other mount only.
pub(crate) const FRESH: &[Call] = &[
    call("`stat`, what it knows is fresh", "", |at| Ok(stat(at).map(drop)?)),
    call("`statx` with `FORCE_SYNC`, what it knows is fresh", "", |at| {
        look(at, AtFlags::STATX_FORCE_SYNC, BASIC)
    }),
    call("`statfs`, what it knows is fresh", "", |at| Ok(statfs(at).map(drop)?)),
    call("`fstatfs`, what it knows is fresh", "", |at| Ok(fstatfs(place(at)?).map(drop)?)),
];

/// The calls that remove the mount.
pub(crate) const UNMOUNTS: &[Call] = &[
    call("`umount`", helper::UNSTAGE, |at| Ok(unmount(at, UnmountFlags::empty())?)),
    call("`umount` with `MNT_FORCE`", helper::UNSTAGE, |at| Ok(unmount(at, UnmountFlags::FORCE)?)),
    call("`umount` with `MNT_DETACH`", helper::UNSTAGE, |at| Ok(unmount(at, UnmountFlags::DETACH)?)),
];

pub(crate) fn all() -> impl Iterator<Item = &'static Call> {
    CALLS.iter().chain(FRESH).chain(UNMOUNTS)
}
