//! Runs one system call that might never return in a child process that can be abandoned.

use std::ffi::{CStr, c_int};
use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use rustix::process::{PidfdFlags, pidfd_open};

use super::features::{self, Feature, OPENAT2};
use super::ioctl::{self, LoopStatus};
use super::new_mount::{self, MountMethod, NewMount};
use super::pass_descriptor;

/// How long to wait for a killed child to exit. If a dead daemon holds its request, it exits only together
/// with the daemon.
const REAP_TIME_LIMIT: Duration = Duration::from_millis(100);

/// The system call that the child makes.
#[derive(Clone, Copy)]
pub(crate) enum Question<'a> {
    /// `openat2(2)` with `O_PATH`; the reply has the descriptor.
    Open(Open<'a>),
    /// `fstatfs(2)`.
    Usage(BorrowedFd<'a>),
    /// `fstatfs(2)`, and a `statx(2)` that must ask the server.
    Health(BorrowedFd<'a>),
    /// `umount2(2)` of this name in the directory, with these flags.
    Unmount(BorrowedFd<'a>, &'a CStr, c_int),
    /// A new mount; the reply has its descriptor, unless it is made at a path.
    Mount(NewMount<'a>),
    /// `LOOP_GET_STATUS64` of this node: the kernel stats the backing file, which asks that file's
    /// filesystem.
    LoopStatus(&'a CStr),
    /// `rmdir(2)` of a name in the directory that does not exist. It fails, but first waits while the
    /// filesystem is frozen.
    WaitForThaw(BorrowedFd<'a>),
    /// `chmod(2)` of a directory by the link of its descriptor in /proc, if it has other permissions.
    SetPermissions(BorrowedFd<'a>, &'a CStr, u32),
    /// `umount2(2)` in another mount namespace, of one mount and only if it is not in use.
    UnmountElsewhere(MountElsewhere<'a>),
}

/// A mount in another mount namespace.
#[derive(Clone, Copy)]
pub(crate) struct MountElsewhere<'a> {
    /// `/proc/PID/ns/mnt`
    pub(crate) namespace: BorrowedFd<'a>,
    /// The directory that contains the mount point, as an absolute path in that namespace.
    pub(crate) directory: &'a CStr,
    pub(crate) name: &'a CStr,
    pub(crate) mount: u64,
}

/// A place to open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open<'a> {
    /// None if the path is absolute.
    pub(crate) directory: Option<BorrowedFd<'a>>,
    pub(crate) path: &'a CStr,
    /// `O_…`
    pub(crate) flags: c_int,
    /// `RESOLVE_…`. If it is not 0, `openat2` is used.
    pub(crate) resolve: u64,
}

/// What the child found; zeros for what was not asked.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The error number of the call (of `fstatfs`), or 0.
    pub(crate) error: u64,
    /// The error number of the `statx`, or 0.
    pub(crate) stat_error: u64,
    /// Which setting of a new mount was refused, counted from 1; 0 for the mount as a whole.
    pub(crate) setting: u64,
    /// Bytes in a block of the counts below.
    pub(crate) block_size: u64,
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_available: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
    /// See [`LoopStatus`].
    pub(crate) loop_status: [u64; LoopStatus::WORDS],
}

const ANSWER: usize = size_of::<Answer>();

/// A child that runs a query.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    socket: OwnedFd,
}

/// A child that nothing waits for any more, killed or not: its call in the kernel waits for a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stuck(Pid);

impl Stuck {
    /// A program that was killed elsewhere and has not exited either.
    pub(crate) fn new(pid: Pid) -> Self {
        Self(pid)
    }

    /// Whether it has exited. If so, this also reaps it.
    pub(crate) fn is_gone(self) -> bool {
        // ECHILD: the program reaps all its children itself.
        !matches!(waitpid(self.0, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
    }

    /// Its pid, which no other process gets before `is_gone` has returned true.
    pub(crate) fn number(self) -> i32 {
        self.0.as_raw()
    }

    /// Kills it, and waits briefly for it to exit.
    pub(crate) fn end(self) -> Result<(), Self> {
        // A pidfd becomes readable when the child exits, so the wait ends at once. Before Linux 5.3 the child
        // is polled.
        let number = rustix::process::Pid::from_raw(self.number());
        let descriptor = number
            .filter(|_| features::has(Feature::ProcessDescriptor))
            .and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        // A child that has answered has possibly exited already.
        let _ = kill(self.0, Signal::SIGKILL);
        let deadline = Instant::now() + REAP_TIME_LIMIT;
        if let Some(descriptor) = &descriptor {
            let timeout = PollTimeout::try_from(REAP_TIME_LIMIT).unwrap_or(PollTimeout::MAX);
            // After an error the loop below polls the child.
            let _ = poll(&mut [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)], timeout);
        }
        let mut pause = Duration::from_micros(20);
        while !self.is_gone() {
            if Instant::now() > deadline {
                return Err(self);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// The answer of a filesystem that answers from memory, without a child process.
pub(crate) fn usage_from_memory(fd: BorrowedFd<'_>) -> Answer {
    Answer { stat_error: stat(fd), ..usage(fd) }
}

impl Child {
    /// Starts the child, in a process group of its own.
    pub(crate) fn start(question: Question<'_>) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let parent = nix::unistd::getpid();
        // A signal handler of the parent must not run in the child, where it would act in the name of the
        // parent.
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        // SAFETY: the child runs only `in_child`, which makes raw system calls on memory that existed before
        // the fork, takes no lock, allocates nothing, and never returns.
        let forked = match unsafe { libc::fork() } {
            0 => in_child(question, theirs.as_raw_fd(), parent.as_raw()),
            pid => Errno::result(pid),
        };
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        Ok(Self { pid: Pid::from_raw(forked?), socket })
    }

    /// Waits for the answer; `TimedOut` if there is none before the deadline.
    pub(crate) fn answer(&self, deadline: Instant) -> io::Result<(Answer, Option<OwnedFd>)> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the last iteration does not spin.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return self.receive(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&self) -> io::Result<(Answer, Option<OwnedFd>)> {
        let mut bytes = [0; ANSWER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?.bytes;
        if length != ANSWER {
            return Err(io::Error::other("the helper process ended without an answer"));
        }
        let fd = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let mut numbers = bytes.chunks_exact(8).map(|chunk| {
            let mut number = [0; 8];
            number.copy_from_slice(chunk);
            u64::from_ne_bytes(number)
        });
        let mut next = || numbers.next().unwrap_or_default();
        let answer = Answer {
            error: next(),
            stat_error: next(),
            setting: next(),
            block_size: next(),
            blocks: next(),
            blocks_free: next(),
            blocks_available: next(),
            inodes: next(),
            inodes_free: next(),
            loop_status: std::array::from_fn(|_| next()),
        };
        Ok((answer, fd))
    }

    /// Lets the child continue without a reader for its answer.
    pub(crate) fn abandon(self) -> Stuck {
        Stuck(self.pid)
    }

    /// Kills the child, and waits briefly for it to exit.
    pub(crate) fn end(self) -> Result<(), Stuck> {
        Stuck(self.pid).end()
    }
}

/// Makes only raw system calls: another thread can have held any lock at the time of the fork.
fn in_child(question: Question<'_>, socket: c_int, parent: libc::pid_t) -> ! {
    let (needed, named): (Option<c_int>, &[c_int]) = match question {
        Question::Open(Open { directory, .. }) => (directory.map(|fd| fd.as_raw_fd()), &[]),
        Question::Usage(fd)
        | Question::Health(fd)
        | Question::WaitForThaw(fd)
        | Question::SetPermissions(fd, ..)
        | Question::UnmountElsewhere(MountElsewhere { namespace: fd, .. })
        | Question::Unmount(fd, ..) => (Some(fd.as_raw_fd()), &[]),
        Question::Mount(NewMount { method: MountMethod::Context { context, .. }, named }) => {
            (Some(context.as_raw_fd()), named)
        }
        Question::Mount(NewMount { method: MountMethod::Path { .. }, named }) => (None, named),
        Question::LoopStatus(_) => (None, &[]),
    };
    // An unmount must finish its writes even if the thread that asked for it ends.
    let is_bound = !matches!(question, Question::Unmount(..));
    // SAFETY: plain integers. The parent's descriptors must not stay open in a child that can get stuck.
    unsafe {
        if is_bound {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        // The parent can have died before the signal was requested.
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        libc::setpgid(0, 0);
        close_all_but(socket, needed.unwrap_or(socket), named);
    }
    let (answer, fd) = match question {
        Question::Open(place) => match open(place) {
            Ok(fd) => (Answer::default(), Some(fd)),
            Err(number) => (Answer { error: number, ..Answer::default() }, None),
        },
        Question::Usage(fd) => (usage(fd), None),
        Question::Health(fd) => (Answer { stat_error: stat(fd), ..usage(fd) }, None),
        Question::Unmount(directory, name, flags) => (unmount(directory, name, flags), None),
        Question::Mount(NewMount { method, .. }) => match new_mount::make(method) {
            Ok(fd) => (Answer::default(), fd),
            Err(refusal) => {
                (Answer { error: refusal.error, setting: refusal.setting, ..Answer::default() }, None)
            }
        },
        Question::LoopStatus(node) => (loop_status(node), None),
        Question::UnmountElsewhere(place) => {
            let error = unmount_elsewhere(place).err().unwrap_or(0);
            (Answer { error, ..Answer::default() }, None)
        }
        Question::WaitForThaw(directory) => (wait_for_thaw(directory), None),
        Question::SetPermissions(directory, link, mode) => (set_permissions(directory, link, mode), None),
    };
    let bytes: *const Answer = &raw const answer;
    // SAFETY: `answer` is live and ANSWER bytes long, without padding; _exit runs nothing of the parent's.
    unsafe {
        match fd {
            Some(fd) => pass_descriptor::send(socket, bytes.cast(), ANSWER, fd),
            None => libc::send(socket, bytes.cast(), ANSWER, libc::MSG_NOSIGNAL),
        };
        libc::_exit(0)
    }
}

/// Closes all descriptors except these.
///
/// # Safety
/// Only for a process that uses no other descriptor afterwards.
unsafe fn close_all_but(one: c_int, other: c_int, named: &[c_int]) {
    const CLOSE_RANGE: libc::c_long = 436;
    let is_kept = |fd: c_int| fd == one || fd == other || named.contains(&fd);
    // It only reads this thread's own memory.
    let is_there = features::has(Feature::CloseRange);
    let mut from = 0;
    loop {
        let kept = [one, other].into_iter().chain(named.iter().copied()).filter(|fd| *fd >= from).min();
        let to = kept.map_or(c_int::MAX, |kept| kept - 1);
        // SAFETY: as the caller promises; the arguments are integers.
        if from <= to && (!is_there || unsafe { libc::syscall(CLOSE_RANGE, from, to, 0) } != 0) {
            // Before Linux 5.9: closes as many as a process usually has.
            // SAFETY: as above.
            (0..1024).filter(|fd| !is_kept(*fd)).for_each(|fd| _ = unsafe { libc::close(fd) });
            return;
        }
        let Some(kept) = kept else { return };
        from = kept + 1;
    }
}

/// `struct open_how`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn open(place: Open<'_>) -> Result<c_int, u64> {
    let directory = place.directory.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    let flags = place.flags | libc::O_PATH | libc::O_CLOEXEC;
    loop {
        let how = OpenHow { flags: flags as u64, mode: 0, resolve: place.resolve };
        // SAFETY: the path is a C string that the parent keeps, `how` a live struct of the size that is
        // passed.
        let fd = unsafe {
            if place.resolve == 0 {
                libc::openat(directory, place.path.as_ptr(), flags)
            } else {
                let (how, size) = (&raw const how, size_of::<OpenHow>());
                libc::syscall(OPENAT2, directory, place.path.as_ptr(), how, size) as c_int
            }
        };
        match Errno::last_raw() {
            _ if fd >= 0 => return Ok(fd),
            // Something was renamed during the walk, so the kernel cannot guarantee the result.
            libc::EAGAIN => {}
            number => return Err(number as u64),
        }
    }
}

fn usage(fd: BorrowedFd<'_>) -> Answer {
    let mut found = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the buffer is live and of the call's type.
    let error = error_of(unsafe { libc::fstatfs64(fd.as_raw_fd(), found.as_mut_ptr()) });
    // SAFETY: all zeros is a valid value of this struct of integers, and the kernel overwrote it with
    // another.
    let found = unsafe { found.assume_init() };
    // The counts are in fragments if the filesystem has them.
    let block_size = if found.f_frsize > 0 { found.f_frsize } else { found.f_bsize };
    Answer {
        error,
        block_size: block_size as u64,
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        inodes: found.f_files,
        inodes_free: found.f_ffree,
        ..Answer::default()
    }
}

fn set_permissions(directory: BorrowedFd<'_>, link: &CStr, mode: u32) -> Answer {
    const BITS: u32 = 0o7777;
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer is live and of the call's type.
    let error = error_of(unsafe { libc::fstat(directory.as_raw_fd(), found.as_mut_ptr()) });
    // SAFETY: all zeros is a valid value of this struct of integers, and the kernel overwrote it with
    // another.
    let is_right = unsafe { found.assume_init() }.st_mode & BITS == mode & BITS;
    if error != 0 || is_right {
        return Answer { error, ..Answer::default() };
    }
    // `fchmod` refuses an `O_PATH` descriptor.
    // SAFETY: the link is a C string that the parent keeps.
    let result = unsafe { libc::chmod(link.as_ptr(), mode & BITS) };
    Answer { error: error_of(result), ..Answer::default() }
}

/// The kernel asks for write access before it looks up the name. Nothing changes: no directory has this name.
fn wait_for_thaw(directory: BorrowedFd<'_>) -> Answer {
    const UNUSED_NAME: &CStr =
        c"csi-mount asks whether this filesystem is frozen; no directory has this name";
    // SAFETY: the name is a C string, the descriptor is open until the child exits.
    let result = unsafe { libc::unlinkat(directory.as_raw_fd(), UNUSED_NAME.as_ptr(), libc::AT_REMOVEDIR) };
    Answer { error: error_of(result), ..Answer::default() }
}

/// The open comes first and can hang as well: it reads the partition table of a new device.
fn loop_status(node: &CStr) -> Answer {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    // SAFETY: the path is a C string that the parent keeps.
    let fd = unsafe { libc::open(node.as_ptr(), flags) };
    if fd < 0 {
        return Answer { error: Errno::last_raw() as u64, ..Answer::default() };
    }
    // SAFETY: it was just opened, and is open until the child exits.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match ioctl::loop_status(fd) {
        Ok(info) => {
            let sequence = ioctl::disk_sequence(fd).unwrap_or(0);
            Answer { loop_status: LoopStatus { info, sequence }.to_words(), ..Answer::default() }
        }
        Err(error) => Answer { error: error as i32 as u64, ..Answer::default() },
    }
}

/// The error number of a `statx` that the file's server must answer.
fn stat(fd: BorrowedFd<'_>) -> u64 {
    /// `STATX_BASIC_STATS`
    const BASIC_STATS: libc::c_uint = 0x7ff;
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC | libc::AT_NO_AUTOMOUNT;
    let (fd, path) = (fd.as_raw_fd(), c"".as_ptr());
    // As large as `struct statx`. The content is not used.
    let mut found = [0_u64; 32];
    // SAFETY: the path is a C string, the buffer live and as large as what the kernel writes.
    let result = unsafe { libc::syscall(libc::SYS_statx, fd, path, flags, BASIC_STATS, found.as_mut_ptr()) };
    error_of(result as c_int)
}

fn unmount(directory: BorrowedFd<'_>, name: &CStr, flags: c_int) -> Answer {
    // SAFETY: the name is a C string that the parent keeps. The child's working directory is its own.
    let error = unsafe {
        match error_of(libc::fchdir(directory.as_raw_fd())) {
            0 => error_of(libc::umount2(name.as_ptr(), flags)),
            error => error,
        }
    };
    Answer { error, ..Answer::default() }
}

/// Does nothing and returns `ESTALE` if a different mount is there.
fn unmount_elsewhere(place: MountElsewhere<'_>) -> Result<(), u64> {
    let checked = |result: c_int| match error_of(result) {
        0 => Ok(()),
        error => Err(error),
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the child has one thread and shares nothing with its parent that setns or fchdir changes. The
    // paths are C strings that the parent keeps.
    unsafe {
        checked(libc::setns(place.namespace.as_raw_fd(), libc::CLONE_NEWNS))?;
        let directory = libc::open(place.directory.as_ptr(), flags);
        if directory < 0 {
            return Err(Errno::last_raw() as u64);
        }
        checked(libc::fchdir(directory))?;
        libc::close(directory);
    }
    if mount_at(place.name)? != place.mount {
        return Err(libc::ESTALE as u64);
    }
    // Without MNT_DETACH and MNT_FORCE, so that the kernel refuses it while the mount is in use.
    // SAFETY: the name is a C string that the parent keeps.
    checked(unsafe { libc::umount2(place.name.as_ptr(), libc::UMOUNT_NOFOLLOW) })
}

/// The id of the mount whose root has this name in the child's working directory.
fn mount_at(name: &CStr) -> Result<u64, u64> {
    /// `STATX_MNT_ID` and `STATX_ATTR_MOUNT_ROOT`
    const MOUNT_ID: libc::c_uint = 0x1000;
    const MOUNT_ROOT: u64 = 0x2000;
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let name = name.as_ptr();
    // SAFETY: the path is a C string, the buffer live and of the call's type.
    let result =
        unsafe { libc::syscall(libc::SYS_statx, libc::AT_FDCWD, name, flags, MOUNT_ID, found.as_mut_ptr()) };
    match error_of(result as c_int) {
        0 => {}
        error => return Err(error),
    }
    // SAFETY: all zeros is a valid value of this struct of integers, and the kernel overwrote it with
    // another.
    let found = unsafe { found.assume_init() };
    match found.stx_attributes & MOUNT_ROOT != 0 && found.stx_mask & MOUNT_ID != 0 {
        true => Ok(found.stx_mnt_id),
        false => Err(libc::ESTALE as u64),
    }
}

fn error_of(result: c_int) -> u64 {
    if result == 0 { 0 } else { Errno::last_raw() as u64 }
}
