//! Commands that are sent to a unit of SCSI (SPC, "INQUIRY command", "TEST UNIT READY command" and "PERSISTENT RESERVE
//! IN command") through its node in `/dev/bsg`: an open of the disk would wait for the repair of its path.
//!
//! All of it runs in a forked child: it allocates nothing.
#![allow(unsafe_code, reason = "ioctl(2) is a raw system call here")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;

const TEST_UNIT_READY: u8 = 0;
const INQUIRY: u8 = 0x12;
const PERSISTENT_RESERVE_IN: u8 = 0x5e;
const CHECK_CONDITION: u32 = 2;
/// Sense keys.
const NOT_READY: u8 = 2;
const ILLEGAL_REQUEST: u8 = 5;
const UNIT_ATTENTION: u8 = 6;
/// The additional code LOGICAL UNIT NOT SUPPORTED.
const NO_SUCH_UNIT: u8 = 0x25;
/// How often a unit can report that something has changed before it carries a command out.
const ATTENTIONS: usize = 8;
const TIMEOUT_MS: u32 = 10_000;
/// No page with names is longer.
const MAX: usize = 4096;

/// `struct sg_io_v4` of linux/bsg.h.
#[repr(C)]
#[derive(Default)]
struct Exchange {
    guard: i32,
    protocol: [u32; 2],
    command_length: u32,
    command: u64,
    tag: u64,
    attributes: [u32; 3],
    max_sense_length: u32,
    sense: u64,
    parts_out: u32,
    length_out: u32,
    parts_in: u32,
    length_in: u32,
    data_out: u64,
    data_in: u64,
    timeout_ms: u32,
    flags: u32,
    pointer: u64,
    spare_in: u32,
    driver_status: u32,
    transport_status: u32,
    device_status: u32,
    retry_delay: u32,
    info: u32,
    duration: u32,
    sense_length: u32,
    left_in: i32,
    left_out: i32,
    generated_tag: u64,
    spare_out: [u32; 2],
}

// `SG_IO`. Its number has no type in it.
nix::ioctl_readwrite_bad!(sg_io, 0x2285, Exchange);

/// Whether a page of vital product data (VPD) is still this one, which has its number in its second byte.
pub(crate) fn has_page(unit: BorrowedFd<'_>, known: &[u8]) -> Result<bool, Errno> {
    let mut data = [0_u8; MAX];
    let [_, page, ..] = *known else { return Err(Errno::EINVAL) };
    let data = data.get_mut(..known.len()).ok_or(Errno::EMSGSIZE)?;
    let [high, low] = (data.len() as u16).to_be_bytes();
    let exchange = send(unit, &[INQUIRY, 1, page, high, low, 0], data, &mut [])?;
    match (exchange.driver_status, exchange.device_status) {
        (0, 0) => Ok(data == known),
        _ => Err(Errno::EIO),
    }
}

/// Whether a unit takes commands to its medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// One with asymmetric access (ALUA) does not on a path in standby.
    NotReady,
    Ready,
    /// The target has no such unit, or not for this node.
    Gone,
}

/// Asks the unit for it.
pub(crate) fn readiness(unit: BorrowedFd<'_>) -> Result<Readiness, Errno> {
    for _ in 0..ATTENTIONS {
        let mut sense = [0_u8; 64];
        let exchange = send(unit, &[TEST_UNIT_READY, 0, 0, 0, 0, 0], &mut [], &mut sense)?;
        match (exchange.device_status, sense_key(&sense)) {
            (CHECK_CONDITION, Some(NOT_READY)) => return Ok(Readiness::NotReady),
            (CHECK_CONDITION, Some(UNIT_ATTENTION)) => {}
            (CHECK_CONDITION, Some(ILLEGAL_REQUEST)) if additional_code(&sense) == Some(NO_SUCH_UNIT) => {
                return Ok(Readiness::Gone);
            }
            _ => return Ok(Readiness::Ready),
        }
    }
    Ok(Readiness::Ready)
}

/// Reads what the unit has registered or reserved: its keys (action 0), or its reservation (1). `EOPNOTSUPP` if it has
/// no reservations.
pub(crate) fn persistent_reserve_in(unit: BorrowedFd<'_>, action: u8, data: &mut [u8]) -> Result<(), Errno> {
    let [high, low] = (data.len() as u16).to_be_bytes();
    let command = [PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, high, low, 0];
    for _ in 0..ATTENTIONS {
        let mut sense = [0_u8; 64];
        let exchange = send(unit, &command, data, &mut sense)?;
        match (exchange.device_status, sense_key(&sense)) {
            (0, _) => return Ok(()),
            (CHECK_CONDITION, Some(UNIT_ATTENTION)) => {}
            (CHECK_CONDITION, Some(ILLEGAL_REQUEST)) => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EIO),
        }
    }
    Err(Errno::EIO)
}

/// The kind of the condition in sense data, which has two formats: descriptor and fixed.
fn sense_key(sense: &[u8]) -> Option<u8> {
    let byte = match sense.first()? & 0x7f {
        0x70 | 0x71 => sense.get(2)?,
        0x72 | 0x73 => sense.get(1)?,
        _ => return None,
    };
    Some(byte & 0xf)
}

/// What the condition is in detail (ASC).
fn additional_code(sense: &[u8]) -> Option<u8> {
    match sense.first()? & 0x7f {
        0x70 | 0x71 => sense.get(12).copied(),
        0x72 | 0x73 => sense.get(2).copied(),
        _ => None,
    }
}

/// Sends a command that returns data, or none. Fails if the unit is not reached.
fn send(unit: BorrowedFd<'_>, command: &[u8], data: &mut [u8], sense: &mut [u8]) -> Result<Exchange, Errno> {
    let mut exchange = Exchange {
        guard: i32::from(b'Q'),
        command_length: command.len() as u32,
        command: command.as_ptr() as u64,
        max_sense_length: sense.len() as u32,
        sense: sense.as_mut_ptr() as u64,
        length_in: data.len() as u32,
        data_in: data.as_mut_ptr() as u64,
        timeout_ms: TIMEOUT_MS,
        ..Exchange::default()
    };
    // SAFETY: the exchange is live and of the call's type; its addresses are those of live buffers of the lengths
    // that it gives.
    unsafe { sg_io(unit.as_raw_fd(), &raw mut exchange) }?;
    if exchange.transport_status == 0 { Ok(exchange) } else { Err(Errno::EIO) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn the_exchange_has_the_kernels_layout_and_a_page_its_number() {
        assert_eq!(std::mem::size_of::<Exchange>(), 160);
        assert_eq!(std::mem::offset_of!(Exchange, data_in), 80);
        assert_eq!(std::mem::offset_of!(Exchange, device_status), 116);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(has_page(file.as_fd(), &[0]), Err(Errno::EINVAL));
        assert_eq!(has_page(file.as_fd(), &[0; MAX + 1]), Err(Errno::EMSGSIZE));
        assert!(has_page(file.as_fd(), &[0, 0x83, 0, 0]).is_err(), "it is no unit");
        assert!(readiness(file.as_fd()).is_err());
    }

    #[test]
    fn the_condition_is_read_in_both_formats() {
        assert_eq!(sense_key(&[0x70, 0, NOT_READY, 0]), Some(NOT_READY));
        assert_eq!(sense_key(&[0xf0, 0, 0x20 | UNIT_ATTENTION]), Some(UNIT_ATTENTION));
        assert_eq!(sense_key(&[0x72, UNIT_ATTENTION, 0x2a, 6]), Some(UNIT_ATTENTION));
        for none in [&[0; 8][..], &[], &[0x70, 0], &[0x72]] {
            assert_eq!(sense_key(none), None);
            assert_eq!(additional_code(none), None);
        }
        let fixed = [0x70, 0, ILLEGAL_REQUEST, 0, 0, 0, 0, 10, 0, 0, 0, 0, NO_SUCH_UNIT, 0];
        assert_eq!(additional_code(&fixed), Some(NO_SUCH_UNIT));
        assert_eq!(additional_code(&[0x72, ILLEGAL_REQUEST, NO_SUCH_UNIT, 0]), Some(NO_SUCH_UNIT));
    }
}
