//! Devices of the device mapper, by name. A device that a killed program left half made is not in sysfs, so
//! `cryptsetup` does not find and close it.
#![allow(unsafe_code, reason = "ioctl(2) is a raw system call")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::Result;

use crate::sys::ids::DeviceNumber;

/// `struct dm_ioctl` of linux/dm-ioctl.h.
#[repr(C)]
struct Request {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_number: u32,
    padding: u32,
    device: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

const SIZE: u32 = 312;

// A structure of the wrong size also gives a wrong request number.
const _: () = assert!(size_of::<Request>() == SIZE as usize);

mod raw {
    nix::ioctl_readwrite!(remove, 0xfd, 4, super::Request);
    nix::ioctl_readwrite!(suspend, 0xfd, 6, super::Request);
    nix::ioctl_readwrite!(status, 0xfd, 7, super::Request);
    #[cfg(feature = "remote")]
    nix::ioctl_readwrite!(load, 0xfd, 9, super::Request);
    #[cfg(feature = "remote")]
    nix::ioctl_readwrite!(message, 0xfd, 14, super::Request);
}

/// The device that the kernel has under a name.
pub(crate) struct Status {
    /// As text. A uuid that is not UTF-8 is not ours either.
    pub(crate) uuid: String,
    pub(crate) number: DeviceNumber,
    pub(crate) is_suspended: bool,
}

impl Request {
    /// Cuts off a name that is too long; no device has the shortened name.
    fn with_name(name: &str) -> Self {
        let mut bytes = [0; 128];
        for (to, from) in bytes.iter_mut().zip(name.bytes().take(127)) {
            *to = from;
        }
        Self {
            version: [4, 0, 0],
            data_size: SIZE,
            data_start: 0,
            target_count: 0,
            open_count: 0,
            flags: 0,
            event_number: 0,
            padding: 0,
            device: 0,
            name: bytes,
            uuid: [0; 129],
            data: [0; 7],
        }
    }
}

/// A change of a mapping that is known by its uuid. A name can be given to another mapping in the meantime.
#[cfg(feature = "remote")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// `DM_DEV_REMOVE`: it fails with `EBUSY` while a process has it open.
    Remove,
    /// The message `fail_if_no_path` to a multipath map: reads and writes without a path fail, also those that
    /// wait.
    FailIfNoPath,
    /// Replaces the table by the target `error`, as `dmsetup wipe_table` does: the mapping lets go of the
    /// devices beneath, and all reads and writes fail.
    Wipe {
        /// The length of the mapping.
        sectors: u64,
    },
}

/// A request with room for what follows it: a message, or a target of a table.
#[cfg(feature = "remote")]
#[repr(C)]
struct LongRequest {
    request: Request,
    more: [u8; 64],
}

#[cfg(feature = "remote")]
impl LongRequest {
    fn new(uuid: &str, flags: u32, more: &[&[u8]]) -> Self {
        let mut long = Self { request: Request::with_name(""), more: [0; 64] };
        for (to, from) in long.request.uuid.iter_mut().zip(uuid.bytes().take(128)) {
            *to = from;
        }
        long.request.flags = flags;
        long.request.data_size = size_of::<Self>() as u32;
        long.request.data_start = SIZE;
        for (to, from) in long.more.iter_mut().zip(more.iter().copied().flatten()) {
            *to = *from;
        }
        long
    }
}

/// Makes a change. It can wait for reads and writes of the mapping, so a child process calls it: it allocates
/// nothing.
#[cfg(feature = "remote")]
pub(crate) fn change(control: BorrowedFd<'_>, uuid: &str, change: Change) -> Result<()> {
    /// Does not write the filesystem out first.
    const SKIP_LOCKFS: u32 = 1 << 10;
    /// Does not wait for a path: the new table gets the reads and writes that have none.
    const NOFLUSH: u32 = 1 << 11;
    type Call = unsafe fn(nix::libc::c_int, *mut Request) -> Result<nix::libc::c_int>;
    let make = |call: Call, mut long: LongRequest| {
        // SAFETY: the kernel reads and writes no more than the size in the header, which is that of the whole
        // structure.
        unsafe { call(control.as_raw_fd(), (&raw mut long).cast()) }.map(drop)
    };
    match change {
        Change::Remove => make(raw::remove, LongRequest::new(uuid, 0, &[])),
        // `struct dm_target_msg`: a sector, and the text.
        Change::FailIfNoPath => {
            make(raw::message, LongRequest::new(uuid, 0, &[&0_u64.to_ne_bytes(), b"fail_if_no_path\0"]))
        }
        Change::Wipe { sectors } => {
            // `struct dm_target_spec`: start, length, status, offset of the next one, type; and no parameters.
            let target: [&[u8]; 5] =
                [&[0; 8], &sectors.to_ne_bytes(), &[0; 4], &40_u32.to_ne_bytes(), b"error"];
            let mut long = LongRequest::new(uuid, 0, &target);
            long.request.target_count = 1;
            make(raw::load, long)?;
            make(raw::suspend, LongRequest::new(uuid, SKIP_LOCKFS | NOFLUSH, &[]))
        }
    }
}

/// `DM_DEV_STATUS`: the device with this name. None if no device has it.
pub(crate) fn status(control: BorrowedFd<'_>, name: &str) -> Result<Option<Status>> {
    const SUSPENDED: u32 = 1 << 1;
    let mut request = Request::with_name(name);
    // SAFETY: the kernel reads and writes one structure of the size in its header.
    match unsafe { raw::status(control.as_raw_fd(), &raw mut request) } {
        Err(nix::Error::ENXIO) => return Ok(None),
        other => other?,
    };
    let end = request.uuid.iter().position(|byte| *byte == 0).unwrap_or(request.uuid.len());
    Ok(Some(Status {
        uuid: String::from_utf8_lossy(&request.uuid[..end]).into_owned(),
        number: DeviceNumber::from_dev_t(request.device),
        is_suspended: request.flags & SUSPENDED != 0,
    }))
}

/// `DM_DEV_REMOVE`: removes a mapping that no process has open.
pub(crate) fn remove(control: BorrowedFd<'_>, name: &str) -> Result<()> {
    let mut request = Request::with_name(name);
    // SAFETY: the kernel reads and writes one structure of the size in its header.
    unsafe { raw::remove(control.as_raw_fd(), &raw mut request) }.map(drop)
}

/// `DM_DEV_SUSPEND` without its flag: resumes a suspended mapping, with the table that was loaded last.
pub(crate) fn resume(control: BorrowedFd<'_>, name: &str) -> Result<()> {
    let mut request = Request::with_name(name);
    // SAFETY: as for `remove`.
    unsafe { raw::suspend(control.as_raw_fd(), &raw mut request) }.map(drop)
}
