//! Commands of NVMe: Identify, sent through a controller (NVMe Base Specification, "Identify command"), and those of
//! reservations, sent through a namespace ("Reservation Register command", "Reservation Report command").
//!
//! All of it runs in a forked child: it allocates nothing.
#![allow(unsafe_code, reason = "ioctl(2) is a raw system call here")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;

const IDENTIFY: u8 = 6;
const RESERVATION_REGISTER: u8 = 0xd;
const RESERVATION_REPORT: u8 = 0xe;
const TIMEOUT_MS: u32 = 10_000;
/// What is asked for (CNS): the data of a namespace, and the list of its names.
const NAMESPACE: u32 = 0;
const NAMES: u32 = 3;

type Data = [u8; 4096];

/// The name of a namespace, in the order of its digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NvmeName {
    Eui64([u8; 8]),
    Nguid([u8; 16]),
    Uuid([u8; 16]),
}

impl NvmeName {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Eui64(bytes) => bytes,
            Self::Nguid(bytes) | Self::Uuid(bytes) => bytes,
        }
    }

    /// The type of its descriptor in the list of names.
    fn kind(&self) -> u8 {
        match self {
            Self::Eui64(_) => 1,
            Self::Nguid(_) => 2,
            Self::Uuid(_) => 3,
        }
    }
}

/// The number of blocks of a namespace and the bytes in a block, as the target reports them.
pub(crate) fn size(controller: BorrowedFd<'_>, namespace: u32) -> Result<(u64, u64), Errno> {
    Ok(size_of_namespace(&identify(controller, NAMESPACE, namespace)?))
}

/// Whether the target gives the namespace with this number this name. The list of names counts; a name that is
/// not in it counts where the namespace's own data has it, as for the kernel.
pub(crate) fn has(controller: BorrowedFd<'_>, namespace: u32, name: NvmeName) -> Result<bool, Errno> {
    let listed = identify(controller, NAMES, namespace);
    match listed.map(|list| named(&list, name.kind()).map(|found| found == name.bytes())) {
        Ok(Some(is_same)) => return Ok(is_same),
        Err(error) if matches!(name, NvmeName::Uuid(_)) => return Err(error),
        _ => {}
    }
    let data = identify(controller, NAMESPACE, namespace)?;
    Ok(match name {
        NvmeName::Nguid(bytes) => data[104..120] == bytes,
        NvmeName::Eui64(bytes) => data[120..128] == bytes,
        NvmeName::Uuid(_) => false,
    })
}

/// The name of this type in a list of names.
fn named(list: &Data, kind: u8) -> Option<&[u8]> {
    let mut rest = &list[..];
    while let [found, length, _, _, after @ ..] = rest {
        let (value, next) = after.split_at_checked(usize::from(*length)).filter(|_| *length > 0)?;
        if *found == kind {
            return Some(value);
        }
        rest = next;
    }
    None
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

nix::ioctl_readwrite!(
    /// `NVME_IOCTL_IO_CMD`
    nvme_io_command,
    b'N',
    0x43,
    NvmeCommand
);
nix::ioctl_none!(nvme_id, b'N', 0x40); // NVME_IOCTL_ID

fn identify(controller: BorrowedFd<'_>, what: u32, namespace: u32) -> Result<Data, Errno> {
    let mut data = [0_u8; 4096];
    let mut command = NvmeCommand {
        opcode: IDENTIFY,
        namespace,
        address: data.as_mut_ptr() as u64,
        data_length: data.len() as u32,
        words_10_to_15: [what, 0, 0, 0, 0, 0],
        timeout_ms: TIMEOUT_MS,
        ..NvmeCommand::default()
    };
    // SAFETY: the command is live and of the call's type; its address is that of a live buffer of the length
    // that it gives.
    match unsafe { nvme_admin_command(controller.as_raw_fd(), &raw mut command) }? {
        0 => Ok(data),
        // A status of the NVMe protocol.
        _ => Err(Errno::EIO),
    }
}

/// Ends the registration of this host with the namespace, whatever its key is. Returns the status.
pub(crate) fn unregister(namespace: BorrowedFd<'_>) -> Result<i32, Errno> {
    const UNREGISTER: u32 = 1;
    const IGNORE_KEY: u32 = 1 << 3;
    let mut keys = [0_u8; 16];
    reservation_command(namespace, RESERVATION_REGISTER, [UNREGISTER | IGNORE_KEY, 0], &mut keys)
}

/// Reads the registrations, with the long identifiers of hosts or the short ones. Returns the status.
pub(crate) fn reservation_report(
    namespace: BorrowedFd<'_>,
    is_extended: bool,
    report: &mut [u8],
) -> Result<i32, Errno> {
    let words = (report.len() / 4 - 1) as u32;
    reservation_command(namespace, RESERVATION_REPORT, [words, is_extended.into()], report)
}

fn reservation_command(
    namespace: BorrowedFd<'_>,
    opcode: u8,
    [word_10, word_11]: [u32; 2],
    data: &mut [u8],
) -> Result<i32, Errno> {
    // SAFETY: takes no argument.
    let id = unsafe { nvme_id(namespace.as_raw_fd()) }?;
    let mut command = NvmeCommand {
        opcode,
        namespace: id.cast_unsigned(),
        address: data.as_mut_ptr() as u64,
        data_length: data.len() as u32,
        words_10_to_15: [word_10, word_11, 0, 0, 0, 0],
        timeout_ms: TIMEOUT_MS,
        ..NvmeCommand::default()
    };
    // SAFETY: the command is live and of the call's type; its address is that of a live buffer of the length that it
    // gives.
    unsafe { nvme_io_command(namespace.as_raw_fd(), &raw mut command) }
}

/// The number of blocks and the bytes in a block, from the answer to Identify Namespace.
fn size_of_namespace(data: &Data) -> (u64, u64) {
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

    #[test]
    fn a_name_is_found_in_the_list_by_its_type() {
        let mut list = [0; 4096];
        list[..4].copy_from_slice(&[1, 8, 0, 0]);
        list[4..12].copy_from_slice(&[7; 8]);
        list[12..16].copy_from_slice(&[3, 16, 0, 0]);
        list[16..32].copy_from_slice(&[9; 16]);
        let find = |list: &Data, name: NvmeName| named(list, name.kind()).map(|found| found == name.bytes());
        assert_eq!(find(&list, NvmeName::Eui64([7; 8])), Some(true));
        assert_eq!(find(&list, NvmeName::Uuid([9; 16])), Some(true));
        assert_eq!(find(&list, NvmeName::Uuid([7; 16])), Some(false));
        assert_eq!(find(&list, NvmeName::Nguid([9; 16])), None, "the list ends");
        // A list without an end, and one whose last name is cut off.
        for length in [1, 255] {
            let mut endless = [0; 4096];
            endless.as_chunks_mut::<2>().0.fill([1, length]);
            assert_eq!(find(&endless, NvmeName::Nguid([9; 16])), None);
        }
    }
}
