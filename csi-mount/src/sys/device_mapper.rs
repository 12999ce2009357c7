//! Devices of the device mapper, by name. A device that a killed program left half made is not in sysfs, so
//! `cryptsetup` does not find and close it.
#![allow(unsafe_code, reason = "ioctl(2) is a raw system call")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::Result;

use crate::DeviceNumber;

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
