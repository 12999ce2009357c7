//! Runs one system call that might never return in a child process that can be abandoned.

mod calls;
mod child_call;

use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

use super::descriptor_copies::Copies;
use super::features::{self, Feature};
use super::ioctl::LoopStatus;
pub(crate) use child_call::{ChildCall, MountElsewhere, Open};

/// How long to wait for a child to close what it inherited. It makes a few system calls that cannot wait.
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait for a killed child to exit. If a dead daemon holds its request, it exits only together
/// with the daemon.
const REAP_TIME_LIMIT: Duration = Duration::from_millis(100);

/// What the child found; zeros for what was not asked.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChildReply {
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
    /// A `LoopStatus`, or the registrations of a device.
    pub(crate) words: [u64; LoopStatus::WORDS],
}

const ANSWER: usize = size_of::<ChildReply>();
/// The length of the message that says that the child has closed what it inherited.
const CLOSED: usize = 1;

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
pub(crate) fn usage_from_memory(fd: BorrowedFd<'_>) -> ChildReply {
    calls::health(fd)
}

impl Child {
    /// Starts the child, in a process group of its own. When this returns, it has no descriptors of this process
    /// but those that it needs.
    pub(crate) fn start(question: ChildCall<'_>) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let parent = rustix::process::getpid();
        // A signal handler of the parent must not run in the child, where it would act in the name of the
        // parent.
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        let copies = Copies::begin();
        // SAFETY: the child runs only `in_child`, which makes raw system calls on memory that existed before
        // the fork, takes no lock, allocates nothing, and never returns.
        let forked = match unsafe { libc::fork() } {
            0 => calls::in_child(question, theirs.as_fd(), parent),
            pid => Errno::result(pid),
        };
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        let child = Self { pid: Pid::from_raw(forked?), socket };
        // Only the child has this end now, so the wait also ends if the child does.
        drop(theirs);
        // A child that is too late for this is too late for its answer too.
        let _ = child.wait_for_message(Instant::now() + CLOSE_TIME_LIMIT);
        drop(copies);
        Ok(child)
    }

    /// Waits for the answer; `TimedOut` if there is none before the deadline.
    pub(crate) fn answer(&self, deadline: Instant) -> io::Result<(ChildReply, Option<OwnedFd>)> {
        loop {
            self.wait_for_message(deadline)?;
            if let Some(answer) = self.receive()? {
                return Ok(answer);
            }
        }
    }

    fn wait_for_message(&self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the last iteration does not spin.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next message; none if it only says that the child has closed what it inherited.
    fn receive(&self) -> io::Result<Option<(ChildReply, Option<OwnedFd>)>> {
        let mut bytes = [0; ANSWER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?.bytes {
            ANSWER => {}
            CLOSED => return Ok(None),
            _ => return Err(io::Error::other("the helper process ended without an answer")),
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
        let answer = ChildReply {
            error: next(),
            stat_error: next(),
            setting: next(),
            block_size: next(),
            blocks: next(),
            blocks_free: next(),
            blocks_available: next(),
            inodes: next(),
            inodes_free: next(),
            words: std::array::from_fn(|_| next()),
        };
        Ok(Some((answer, fd)))
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
