//! Many reads of one file at once, without threads: `io_setup(2)`, `io_submit(2)`, `io_getevents(2)`.

use std::ffi::{c_long, c_ulong};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::libc;

use super::features::{self, Feature};

/// How many reads one context takes at once.
pub(crate) const MAX_READS: usize = 256;
/// How many idle contexts the process keeps. Destroying one takes an RCU grace period of the machine, about
/// 30 ms.
const MAX_IDLE: usize = 4;

static IDLE: Mutex<Vec<ManyReads>> = Mutex::new(Vec::new());

/// One read and its buffer.
pub(crate) struct Read<'b> {
    pub(crate) offset: u64,
    pub(crate) buffer: &'b mut [u8],
    /// Set if the whole buffer was filled.
    pub(crate) is_complete: bool,
}

/// A context for the kernel's asynchronous I/O. Outside of [`read`](Self::read) it has no read in flight.
#[derive(Debug)]
pub(crate) struct ManyReads {
    /// `aio_context_t`; 0 after it was destroyed.
    context: c_ulong,
}

/// `struct iocb` of linux/aio_abi.h, for a plain read.
#[repr(C)]
#[derive(Clone, Copy)]
struct Iocb {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    second_result: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64);
const _: () = assert!(size_of::<Event>() == 32);

impl ManyReads {
    /// An idle context, or a new one. None if the kernel does not have the calls, a filter refuses them, or
    /// no context is left.
    pub(crate) fn new() -> Option<Self> {
        if !features::has(Feature::ManyReads) {
            return None;
        }
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.or_else(|| {
            let mut context: c_ulong = 0;
            // SAFETY: the kernel writes one aio_context_t, which must be zero before.
            let result = unsafe { libc::syscall(libc::SYS_io_setup, MAX_READS as c_long, &raw mut context) };
            (result == 0).then_some(Self { context })
        })
    }

    /// Makes these reads, at most [`MAX_READS`], and returns when all have ended, successfully or not.
    ///
    /// # Errors
    /// The context cannot be used any more. Reads with `is_complete` false count as not made.
    pub(crate) fn read(&mut self, fd: BorrowedFd<'_>, reads: &mut [Read<'_>]) -> io::Result<()> {
        let controls: Vec<Iocb> =
            (0..).zip(&mut *reads).map(|(index, read)| Iocb::new(fd, index, read)).collect();
        let pointers: Vec<*const Iocb> = controls.iter().map(ptr::from_ref).collect();
        let (submitted, outcome) = self.submit(&pointers);
        let waited = self.wait(submitted, |event| {
            let read = usize::try_from(event.data).ok().and_then(|index| reads.get_mut(index));
            if let Some(read) = read {
                read.is_complete = usize::try_from(event.result) == Ok(read.buffer.len());
            }
        });
        outcome.and(waited).inspect_err(|_| self.destroy()).map_err(Into::into)
    }

    /// How many reads the kernel accepted, and the error if not all.
    fn submit(&mut self, pointers: &[*const Iocb]) -> (usize, nix::Result<()>) {
        let mut taken = 0;
        while taken < pointers.len() {
            let rest = &pointers[taken..];
            // SAFETY: each pointer is to a live Iocb, which the kernel copies. Each buffer belongs to the
            // caller of `read`, which does not return before the kernel has finished all accepted reads.
            let result = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, rest.len() as c_long, rest.as_ptr())
            };
            match Errno::result(result) {
                Ok(0) => return (taken, Err(Errno::EAGAIN)),
                Ok(count) => taken += usize::try_from(count).unwrap_or(0).min(rest.len()),
                Err(Errno::EINTR) => {}
                Err(error) => return (taken, Err(error)),
            }
        }
        (taken, Ok(()))
    }

    /// Waits for this many events without a time limit, because the kernel writes to the buffers until then.
    fn wait(&mut self, count: usize, mut each: impl FnMut(Event)) -> nix::Result<()> {
        let mut events = [Event::default(); 64];
        let mut ended = 0;
        while ended < count {
            let room = events.len().min(count - ended);
            // SAFETY: the array is live, writable and has room for as many events as are passed as the
            // maximum.
            let result = unsafe {
                let none = ptr::null_mut::<libc::timespec>();
                let least = room as c_long;
                let most = room as c_long;
                libc::syscall(libc::SYS_io_getevents, self.context, least, most, events.as_mut_ptr(), none)
            };
            match Errno::result(result) {
                Ok(found) => {
                    let found = usize::try_from(found).unwrap_or(0).min(room);
                    events[..found].iter().copied().for_each(&mut each);
                    ended += found;
                }
                Err(Errno::EINTR) => {}
                Err(error) => {
                    // Waits for all reads in flight.
                    self.destroy();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn destroy(&mut self) {
        if self.context != 0 {
            // SAFETY: takes a number. It returns when no read of the context is in flight.
            unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
            self.context = 0;
        }
    }
}

impl Drop for ManyReads {
    fn drop(&mut self) {
        if self.context == 0 {
            return;
        }
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(Self { context: self.context });
        } else {
            drop(idle);
            self.destroy();
        }
    }
}

impl Iocb {
    /// `IOCB_CMD_PREAD`
    const PREAD: u16 = 0;

    fn new(fd: BorrowedFd<'_>, data: u64, read: &mut Read<'_>) -> Self {
        read.is_complete = false;
        Self {
            data,
            key_and_flags: 0,
            opcode: Self::PREAD,
            priority: 0,
            fd: fd.as_raw_fd().cast_unsigned(),
            buffer: read.buffer.as_mut_ptr() as u64,
            length: read.buffer.len() as u64,
            offset: read.offset.cast_signed(),
            reserved: 0,
            flags: 0,
            event_fd: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn reads_return_the_content_and_a_short_read_is_not_complete() {
        let file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..MAX_READS * 512 - 100).map(|index| (index / 512) as u8).collect();
        file.write_all_at(&content, 0).unwrap();
        let mut memory = vec![9; MAX_READS * 512];
        let mut reads: Vec<Read<'_>> = (0..)
            .zip(memory.chunks_mut(512))
            .map(|(index, buffer)| Read { offset: index * 512, buffer, is_complete: true })
            .collect();
        ManyReads::new().expect("this kernel has io_setup").read(file.as_fd(), &mut reads).unwrap();
        for (index, read) in reads.iter().enumerate() {
            assert_eq!(read.is_complete, index != MAX_READS - 1, "{index}");
            assert!(!read.is_complete || read.buffer.iter().all(|byte| *byte == index as u8), "{index}");
        }
    }

    #[test]
    fn a_context_that_failed_is_not_kept() {
        let mut broken = ManyReads { context: 1 };
        let mut memory = [0; 512];
        let file = tempfile::tempfile().unwrap();
        let mut reads = [Read { offset: 0, buffer: &mut memory, is_complete: true }];
        assert!(broken.read(file.as_fd(), &mut reads).is_err());
        assert!(!reads[0].is_complete);
        assert_eq!(broken.context, 0);
    }
}
