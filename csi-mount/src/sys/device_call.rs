//! Calls to a disk, or to its driver, that can wait for a target on the network.
#![allow(unsafe_code, reason = "read(2), write(2), fsync(2) and ioctl(2) are raw system calls here")]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

use super::child::Answer;
use super::device_mapper::{self, Change};

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
    /// A change of the mapping with this uuid, through `/dev/mapper/control`.
    ChangeMapping(BorrowedFd<'a>, &'a str, Change),
}

/// Options of `/dev/nvme-fabrics` that not every kernel has.
pub(crate) mod options {
    pub(crate) const FAST_IO_FAIL: u64 = 1;
    pub(crate) const DHCHAP: u64 = 2;
}

impl DeviceCall<'_> {
    pub(crate) fn descriptor(&self) -> c_int {
        match self {
            Self::Write(fd, _)
            | Self::Sync(fd)
            | Self::NvmeOptions(fd)
            | Self::NvmeSize(fd, _)
            | Self::ChangeMapping(fd, ..) => fd.as_raw_fd(),
        }
    }

    /// Runs in a forked child: it allocates nothing.
    pub(crate) fn make(self) -> Answer {
        match self {
            Self::Write(fd, bytes) => {
                // SAFETY: the bytes are the parent's, which keeps them.
                let written = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
                failed_if(written < 0)
            }
            Self::Sync(fd) => {
                // SAFETY: the argument is an integer.
                failed_if(unsafe { libc::fsync(fd.as_raw_fd()) } < 0)
            }
            Self::NvmeOptions(fd) => nvme_options(fd),
            Self::NvmeSize(fd, namespace) => nvme_size(fd, namespace),
            Self::ChangeMapping(fd, uuid, change) => {
                let error = device_mapper::change(fd, uuid, change).err().map_or(0, |error| error as i32);
                Answer { error: error as u64, ..Answer::default() }
            }
        }
    }
}

fn failed_if(has_failed: bool) -> Answer {
    let error = if has_failed { Errno::last_raw() as u64 } else { 0 };
    Answer { error, ..Answer::default() }
}

fn nvme_options(fd: BorrowedFd<'_>) -> Answer {
    let mut text = [0_u8; 4096];
    // SAFETY: the buffer is live and as long as the call is told.
    let length = unsafe { libc::read(fd.as_raw_fd(), text.as_mut_ptr().cast(), text.len()) };
    let Ok(length) = usize::try_from(length) else { return failed_if(true) };
    let has = |name: &[u8]| text[..length].windows(name.len()).any(|part| part == name);
    let bit = |name: &[u8], bit: u64| if has(name) { bit } else { 0 };
    let setting = bit(b"fast_io_fail_tmo=", options::FAST_IO_FAIL) | bit(b"dhchap_secret=", options::DHCHAP);
    Answer { setting, ..Answer::default() }
}

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct NvmeCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_and_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    words_10_to_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

nix::ioctl_readwrite!(
    /// `NVME_IOCTL_ADMIN_CMD`
    nvme_admin_command,
    b'N',
    0x41,
    NvmeCommand
);

fn nvme_size(fd: BorrowedFd<'_>, namespace: u32) -> Answer {
    const IDENTIFY: u8 = 6;
    const TIMEOUT_MS: u32 = 10_000;
    let mut data = [0_u8; 4096];
    let mut command = NvmeCommand {
        opcode: IDENTIFY,
        namespace,
        address: data.as_mut_ptr() as u64,
        data_length: data.len() as u32,
        timeout_ms: TIMEOUT_MS,
        ..NvmeCommand::default()
    };
    // SAFETY: the command is live and of the call's type; its address is that of a live buffer of the length
    // that it gives.
    match unsafe { nvme_admin_command(fd.as_raw_fd(), &raw mut command) } {
        Ok(0) => {}
        // A status of the NVMe protocol.
        Ok(_) => return Answer { error: libc::EIO as u64, ..Answer::default() },
        Err(error) => return Answer { error: error as i32 as u64, ..Answer::default() },
    }
    let (blocks, block_size) = size_of_namespace(&data);
    Answer { blocks, block_size, ..Answer::default() }
}

/// The number of blocks and the bytes in a block, from the answer to Identify Namespace.
fn size_of_namespace(data: &[u8; 4096]) -> (u64, u64) {
    // All indices are below 128 + 4 * 63 + 3.
    let mut blocks = [0; 8];
    blocks.copy_from_slice(&data[..8]);
    // FLBAS: the format's index, bits 0 to 3 and 5 to 6.
    let format = usize::from(data[26] & 0xf | (data[26] >> 5 & 3) << 4);
    let shift = u32::from(data[128 + 4 * format + 2]);
    (u64::from_le_bytes(blocks), 1_u64.checked_shl(shift).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_that_of_the_format_in_use() {
        let mut data = [0; 4096];
        data[..8].copy_from_slice(&1000_u64.to_le_bytes());
        data[130] = 9;
        data[128 + 4 * 17 + 2] = 12;
        assert_eq!(size_of_namespace(&data), (1000, 512));
        data[26] = 1 | 1 << 5;
        assert_eq!(size_of_namespace(&data), (1000, 4096));
        assert_eq!(std::mem::size_of::<NvmeCommand>(), 72);
    }
}
