//! Calls to a disk, or to its driver, that can wait for a target on the network.
#![allow(unsafe_code, reason = "read(2), write(2) and fsync(2) are raw system calls here")]

use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

use super::child::ChildReply;
use super::device_mapper::{self, Change};
use super::keyring::{self, Serial};
use super::nvme_command::{self, NvmeName};
use super::reservation::{self, Change as ReservationChange, Protocol};
use super::scsi_command;

/// A call that a child process makes.
#[derive(Clone, Copy)]
pub(crate) enum DeviceCall<'a> {
    /// One `write(2)`: to `/dev/nvme-fabrics`, or to an attribute in sysfs.
    Write(BorrowedFd<'a>, &'a [u8]),
    /// `fsync(2)` of a device, which also flushes the disk's own cache.
    Sync(BorrowedFd<'a>),
    /// Reads which options `/dev/nvme-fabrics` accepts. The answer's `setting` has the bits of
    /// [`options`]; its `error` is `EINVAL` on a kernel that does not list them (before Linux 5.18).
    NvmeOptions(BorrowedFd<'a>),
    /// Identify Namespace, sent through this controller (`/dev/nvmeN`). The answer's `blocks` and
    /// `block_size` have the size that the target reports.
    NvmeSize(BorrowedFd<'a>, u32),
    /// The names of the namespace with this number, asked of the target through this controller. The answer's
    /// `setting` is 1 if this name is among them.
    NvmeName(BorrowedFd<'a>, u32, NvmeName),
    /// A page with the names of a unit of SCSI, asked of the unit through `/dev/bsg`. The answer's `setting` is 1
    /// if the page is this one.
    ScsiPage(BorrowedFd<'a>, &'a [u8]),
    /// Whether a unit of SCSI takes commands to its medium now, asked through `/dev/bsg`. The answer's `setting` is
    /// a [`Readiness`](super::scsi_command::Readiness).
    ScsiReady(BorrowedFd<'a>),
    /// What a device has registered and reserved: the answer's `words`.
    Registrations(BorrowedFd<'a>, Protocol),
    /// A change of that. The answer's `setting` is the status of the device, 0 for a success.
    ChangeRegistrations(BorrowedFd<'a>, Protocol, ReservationChange),
    /// A change of the mapping with this uuid, through `/dev/mapper/control`.
    ChangeMapping(BorrowedFd<'a>, &'a str, Change),
    /// Maps an image of a Ceph cluster. The answer's `setting` is 1 if the kernel did not take the key.
    MapImage(MapImage<'a>),
}

/// A line for `/sys/bus/rbd/add`, and the key that it names.
#[derive(Clone, Copy)]
pub(crate) struct MapImage<'a> {
    pub(crate) switch: BorrowedFd<'a>,
    pub(crate) order: &'a [u8],
    pub(crate) key_name: &'a CStr,
    /// Empty: no key.
    pub(crate) key: &'a [u8],
}

/// Options of `/dev/nvme-fabrics` that not every kernel has.
pub(crate) mod options {
    pub(crate) const FAST_IO_FAIL: u64 = 1;
    pub(crate) const DHCHAP: u64 = 2;
    pub(crate) const TLS: u64 = 4;
}

impl DeviceCall<'_> {
    pub(crate) fn descriptor(&self) -> c_int {
        match self {
            Self::Write(fd, _)
            | Self::Sync(fd)
            | Self::NvmeOptions(fd)
            | Self::NvmeSize(fd, _)
            | Self::NvmeName(fd, ..)
            | Self::ScsiPage(fd, _)
            | Self::ScsiReady(fd)
            | Self::Registrations(fd, _)
            | Self::ChangeRegistrations(fd, ..)
            | Self::ChangeMapping(fd, ..)
            | Self::MapImage(MapImage { switch: fd, .. }) => fd.as_raw_fd(),
        }
    }

    /// Runs in a forked child: it allocates nothing.
    pub(crate) fn make(self) -> ChildReply {
        match self {
            Self::Write(fd, bytes) => write(fd, bytes),
            Self::MapImage(image) => map_image(image),
            Self::Sync(fd) => {
                // SAFETY: the argument is an integer.
                failed_if(unsafe { libc::fsync(fd.as_raw_fd()) } < 0)
            }
            Self::NvmeOptions(fd) => nvme_options(fd),
            Self::NvmeSize(fd, namespace) => {
                answer(nvme_command::size(fd, namespace), |(blocks, block_size)| ChildReply {
                    blocks,
                    block_size,
                    ..ChildReply::default()
                })
            }
            Self::NvmeName(fd, namespace, name) => answer(nvme_command::has(fd, namespace, name), yes_or_no),
            Self::ScsiPage(fd, page) => answer(scsi_command::has_page(fd, page), yes_or_no),
            Self::ScsiReady(fd) => answer(scsi_command::readiness(fd), |readiness| ChildReply {
                setting: readiness as u64,
                ..ChildReply::default()
            }),
            Self::Registrations(fd, protocol) => answer(reservation::read(fd, protocol), |found| {
                ChildReply { words: found.to_words(), ..ChildReply::default() }
            }),
            Self::ChangeRegistrations(fd, protocol, change) => {
                answer(reservation::change(fd, protocol, change), |status| ChildReply {
                    setting: status.cast_unsigned().into(),
                    ..ChildReply::default()
                })
            }
            Self::ChangeMapping(fd, uuid, change) => {
                answer(device_mapper::change(fd, uuid, change), |()| ChildReply::default())
            }
        }
    }
}

fn yes_or_no(setting: bool) -> ChildReply {
    ChildReply { setting: u64::from(setting), ..ChildReply::default() }
}

fn answer<T>(result: Result<T, Errno>, found: impl FnOnce(T) -> ChildReply) -> ChildReply {
    match result {
        Ok(value) => found(value),
        Err(error) => ChildReply { error: error as i32 as u64, ..ChildReply::default() },
    }
}

fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> ChildReply {
    // SAFETY: the bytes are the parent's, which keeps them.
    failed_if(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } < 0)
}

/// The key is in the keyring of this process, and ends with it: the kernel's client has a copy of its own.
fn map_image(image: MapImage<'_>) -> ChildReply {
    let MapImage { switch, order, key_name, key } = image;
    if !key.is_empty()
        && let Err(error) = keyring::add(c"ceph", key_name, key, Serial::OF_THIS_PROCESS)
    {
        return ChildReply { setting: 1, ..answer(Err::<(), _>(error), |()| ChildReply::default()) };
    }
    write(switch, order)
}

fn failed_if(has_failed: bool) -> ChildReply {
    let error = if has_failed { Errno::last_raw() as u64 } else { 0 };
    ChildReply { error, ..ChildReply::default() }
}

fn nvme_options(fd: BorrowedFd<'_>) -> ChildReply {
    let mut text = [0_u8; 4096];
    // SAFETY: the buffer is live and as long as the call is told.
    let length = unsafe { libc::read(fd.as_raw_fd(), text.as_mut_ptr().cast(), text.len()) };
    let Ok(length) = usize::try_from(length) else { return failed_if(true) };
    let has = |name: &[u8]| text[..length].windows(name.len()).any(|part| part == name);
    let bit = |name: &[u8], bit: u64| if has(name) { bit } else { 0 };
    let setting = bit(b"fast_io_fail_tmo=", options::FAST_IO_FAIL)
        | bit(b"dhchap_secret=", options::DHCHAP)
        | bit(b"tls_key=", options::TLS);
    ChildReply { setting, ..ChildReply::default() }
}
