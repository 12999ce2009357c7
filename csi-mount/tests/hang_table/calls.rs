//! The system calls of the table, each made by a process of its own.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, RawDir, ResolveFlags, StatxFlags, access, fstatfs, getxattr, lstat,
    openat, openat2, readlinkat, rmdir, stat, statfs, statx,
};
use rustix::mount::{OpenTreeFlags, UnmountFlags, mount_bind, open_tree, unmount};

/// One system call at a mount point.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// Whether this crate makes it without a child, taking for granted that it can't hang.
    pub(crate) is_relied_on: bool,
    pub(crate) make: fn(&Path) -> io::Result<()>,
}

const fn call(name: &'static str, make: fn(&Path) -> io::Result<()>) -> Call {
    Call { name, is_relied_on: false, make }
}

const fn sure(name: &'static str, make: fn(&Path) -> io::Result<()>) -> Call {
    Call { name, is_relied_on: true, make }
}

fn place(at: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn look(at: &Path, flags: AtFlags, mask: StatxFlags) -> io::Result<()> {
    Ok(statx(CWD, at, flags | AtFlags::NO_AUTOMOUNT, mask).map(drop)?)
}

const BASIC: StatxFlags = StatxFlags::BASIC_STATS;

/// In the order of the table: what never waits first.
pub(crate) const CALLS: &[Call] = &[
    sure("read mountinfo", |_| std::fs::read("/proc/thread-self/mountinfo").map(drop)),
    sure("open it with `O_PATH`", |at| place(at).map(drop)),
    sure("`openat2` with `RESOLVE_NO_XDEV`", |at| {
        Ok(openat2(CWD, at, OFlags::PATH, Mode::empty(), ResolveFlags::NO_XDEV).map(drop)?)
    }),
    sure("`statx` with `DONT_SYNC`", |at| look(at, AtFlags::STATX_DONT_SYNC, BASIC)),
    sure("fdinfo of it", |at| {
        let fd = place(at)?;
        let number = fd.as_raw_fd();
        std::fs::read(format!("/proc/thread-self/fdinfo/{number}")).map(drop)
    }),
    sure("`readlink` of its descriptor", |at| {
        let fd = place(at)?;
        let number = fd.as_raw_fd();
        Ok(readlinkat(CWD, format!("/proc/self/fd/{number}"), Vec::new()).map(drop)?)
    }),
    sure("`open_tree` with `CLONE`", |at| Ok(open_tree(CWD, at, OpenTreeFlags::OPEN_TREE_CLONE).map(drop)?)),
    sure("bind it, `umount` that", |at| {
        let other = at.with_extension("bind");
        std::fs::create_dir_all(&other)?;
        mount_bind(at, &other)?;
        unmount(&other, UnmountFlags::empty())?;
        Ok(rmdir(&other)?)
    }),
    call("`statx` of its type and inode only", |at| {
        look(at, AtFlags::empty(), StatxFlags::TYPE | StatxFlags::INO)
    }),
    call("`rmdir` of it", |at| Ok(rmdir(at)?)),
    call("`statx` with `FORCE_SYNC`", |at| look(at, AtFlags::STATX_FORCE_SYNC, BASIC)),
    call("`stat`", |at| Ok(stat(at).map(drop)?)),
    call("`lstat`", |at| Ok(lstat(at).map(drop)?)),
    call("`access`", |at| Ok(access(at, Access::WRITE_OK)?)),
    call("`statfs`", |at| Ok(statfs(at).map(drop)?)),
    call("`fstatfs` by an `O_PATH` descriptor", |at| Ok(fstatfs(place(at)?).map(drop)?)),
    call("open it for reading", |at| File::open(at).map(drop)),
    call("read the directory", |at| {
        let fd = openat(CWD, at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut room = Vec::with_capacity(8192);
        match RawDir::new(fd, room.spare_capacity_mut()).next() {
            Some(Err(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }),
    call("`getxattr`", |at| {
        // No data or no such thing is an answer as well.
        Ok(getxattr(at, "user.x", &mut [0_u8; 64]).map(drop)?)
    }),
    call("`stat` of its `..`", |at| Ok(stat(at.join("..")).map(drop)?)),
    call("`stat` below it", |at| Ok(stat(at.join("file")).map(drop)?)),
    call("open below it with `O_PATH`", |at| place(&at.join("other")).map(drop)),
    call("`statx` with `DONT_SYNC` below it", |at| look(&at.join("third"), AtFlags::STATX_DONT_SYNC, BASIC)),
];

/// What takes it off.
pub(crate) const UNMOUNTS: &[Call] = &[
    call("`umount`", |at| Ok(unmount(at, UnmountFlags::empty())?)),
    call("`umount` with `MNT_FORCE`", |at| Ok(unmount(at, UnmountFlags::FORCE)?)),
    call("`umount` with `MNT_DETACH`", |at| Ok(unmount(at, UnmountFlags::DETACH)?)),
];
