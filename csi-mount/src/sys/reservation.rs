//! Persistent reservations: the calls of linux/pr.h that change them, and the commands that list them (SPC, "PERSISTENT
//! RESERVE IN command"; NVM Express, "Reservation Report command"). The kernel lists them only from Linux 6.19 on.
//!
//! All of it runs in a forked child: it allocates nothing.
#![allow(unsafe_code, reason = "ioctl(2) is a raw system call here")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;

use super::{nvme_command, scsi_command};

/// `PR_WRITE_EXCLUSIVE_REG_ONLY`: all can read, those that are registered can write. One of them is the holder.
pub(crate) const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u32 = 3;
/// `PR_WRITE_EXCLUSIVE_ALL_REGS`: the same, and all that are registered are holders.
pub(crate) const WRITE_EXCLUSIVE_ALL_REGISTRANTS: u32 = 5;

/// How many keys are returned.
pub(crate) const MAX_KEYS: usize = 11;
/// How many registrations are read. A session of SCSI that ended stays registered.
const MAX_REGISTRATIONS: usize = 512;
/// The same for NVMe, where a host is registered once.
const MAX_HOSTS: usize = 63;

/// How often a unit can report that something has changed before it carries a command out.
const ATTENTIONS: usize = 8;

/// `SAM_STAT_CHECK_CONDITION`, `SAM_STAT_RESERVATION_CONFLICT`; the status word of NVMe for the latter.
pub(crate) const CHECK_CONDITION: i32 = 2;
const CONFLICT: i32 = 0x18;
const NVME_CONFLICT: i32 = 0x83;

/// What a device has registered and reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registrations {
    /// How many keys there are, also beyond those in `keys`. One that is registered several times counts twice.
    pub count: u64,
    /// The type of the reservation, as linux/pr.h numbers it; 0: none.
    pub kind: u64,
    /// The key of the reservation's holder.
    pub holder: u64,
    /// Whether the storage keeps all of this when it loses power. A unit of SCSI accepts no registration otherwise.
    pub persists: bool,
    /// The first keys.
    pub keys: [u64; MAX_KEYS],
}

impl Registrations {
    pub(crate) fn to_words(self) -> [u64; 4 + MAX_KEYS] {
        let mut words = [0; 4 + MAX_KEYS];
        words[..4].copy_from_slice(&[self.count, self.kind, self.holder, self.persists.into()]);
        words[4..].copy_from_slice(&self.keys);
        words
    }

    pub(crate) fn from_words([count, kind, holder, persists, keys @ ..]: [u64; 4 + MAX_KEYS]) -> Self {
        Self { count, kind, holder, persists: persists == 1, keys }
    }

    pub(crate) fn add(&mut self, key: u64) {
        let known = &self.keys[..MAX_KEYS.min(self.count as usize)];
        if known.iter().filter(|found| **found == key).count() > 1 {
            return;
        }
        if let Some(place) = self.keys.get_mut(self.count as usize) {
            *place = key;
        }
        self.count += 1;
    }
}

/// How a device is asked for its registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Through the unit's node in `/dev/bsg`.
    Scsi,
    /// Through the namespace's block device.
    Nvme,
}

impl Protocol {
    /// The type of a reservation. The kernel's target for NVMe does not end registrations for a node that is the only
    /// holder; a unit of SCSI need not have the other type.
    fn kind(self) -> u32 {
        match self {
            Self::Scsi => WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
            Self::Nvme => WRITE_EXCLUSIVE_ALL_REGISTRANTS,
        }
    }
}

/// A change of the registrations, through the block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Registers this key, if nothing is registered from here.
    Register(u64),
    /// Replaces the first key, which must be the one that is registered from here, by the second one, which can be equal.
    Replace(u64, u64),
    /// Ends the registration from here, whatever its key is.
    Unregister,
    /// Reserves the device for those that are registered, with the key that is registered from here.
    Reserve(u64),
    /// Ends the registrations with the second key, and takes their reservation over.
    Preempt(u64, u64),
    /// The same, and ends the commands that these have sent.
    PreemptAbort(u64, u64),
}

/// `struct pr_registration`.
#[repr(C)]
struct Registration {
    old_key: u64,
    new_key: u64,
    flags: u32,
    padding: u32,
}

/// `struct pr_reservation`.
#[repr(C)]
struct Reservation {
    key: u64,
    kind: u32,
    flags: u32,
}

/// `struct pr_preempt`. The first key is the one that is registered from here, the second one is ended: the drivers of
/// SCSI and NVMe send them in this order, whatever Documentation/block/pr.rst says.
#[repr(C)]
struct Preemption {
    old_key: u64,
    new_key: u64,
    kind: u32,
    flags: u32,
}

/// `PR_FL_IGNORE_KEY`.
const IGNORE_KEY: u32 = 1;

nix::ioctl_write_ptr!(pr_register, b'p', 200, Registration); // IOC_PR_REGISTER
nix::ioctl_write_ptr!(pr_reserve, b'p', 201, Reservation); // IOC_PR_RESERVE
nix::ioctl_write_ptr!(pr_preempt, b'p', 203, Preemption); // IOC_PR_PREEMPT
nix::ioctl_write_ptr!(pr_preempt_abort, b'p', 204, Preemption); // IOC_PR_PREEMPT_ABORT

/// How a device answered a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// Somebody else holds the device, or what the change expects is not registered.
    Conflict,
    /// Any other status of the device or of the path to it.
    Failed(i32),
}

impl Answer {
    pub(crate) fn of_status(status: i32) -> Self {
        // Older kernels return the result of SCSI with the bytes of the host and the driver, and the status of NVMe
        // with its flags.
        match status {
            0 => Self::Done,
            _ if status & 0xff == CONFLICT || status & 0x7ff == NVME_CONFLICT => Self::Conflict,
            _ => Self::Failed(status),
        }
    }
}

/// Makes a change. Returns the status of the device, 0 for a success.
pub(crate) fn change(device: BorrowedFd<'_>, protocol: Protocol, change: Change) -> Result<i32, Errno> {
    let mut status = 0;
    for _ in 0..ATTENTIONS {
        status = change_once(device, protocol, change)?;
        if status & 0xff != CHECK_CONDITION {
            break;
        }
    }
    Ok(status)
}

fn change_once(device: BorrowedFd<'_>, protocol: Protocol, change: Change) -> Result<i32, Errno> {
    let kind = protocol.kind();
    match change {
        Change::Register(key) => register(device, 0, key, 0),
        Change::Replace(old, new) => register(device, old, new, 0),
        Change::Unregister => match protocol {
            Protocol::Scsi => register(device, 0, 0, IGNORE_KEY),
            // The kernel's call would replace the key by 0.
            Protocol::Nvme => nvme_command::unregister(device),
        },
        Change::Reserve(key) => {
            let reservation = Reservation { key, kind, flags: 0 };
            // SAFETY: the kernel reads one struct, which is live.
            unsafe { pr_reserve(device.as_raw_fd(), &raw const reservation) }
        }
        Change::Preempt(own, victim) => {
            let preemption = Preemption { old_key: own, new_key: victim, kind, flags: 0 };
            // SAFETY: as above.
            unsafe { pr_preempt(device.as_raw_fd(), &raw const preemption) }
        }
        Change::PreemptAbort(own, victim) => {
            let preemption = Preemption { old_key: own, new_key: victim, kind, flags: 0 };
            // SAFETY: as above.
            unsafe { pr_preempt_abort(device.as_raw_fd(), &raw const preemption) }
        }
    }
}

fn register(device: BorrowedFd<'_>, old_key: u64, new_key: u64, flags: u32) -> Result<i32, Errno> {
    let registration = Registration { old_key, new_key, flags, padding: 0 };
    // SAFETY: the kernel reads one struct, which is live.
    unsafe { pr_register(device.as_raw_fd(), &raw const registration) }
}

/// What is registered and reserved. `EOPNOTSUPP` if the device has no reservations.
pub(crate) fn read(device: BorrowedFd<'_>, protocol: Protocol) -> Result<Registrations, Errno> {
    match protocol {
        Protocol::Scsi => read_scsi(device),
        Protocol::Nvme => read_nvme(device),
    }
}

const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;

fn read_scsi(unit: BorrowedFd<'_>) -> Result<Registrations, Errno> {
    for _ in 0..ATTENTIONS {
        let mut keys = [0_u8; 8 + 8 * MAX_REGISTRATIONS];
        scsi_command::persistent_reserve_in(unit, READ_KEYS, &mut keys)?;
        let mut reservation = [0_u8; 24];
        scsi_command::persistent_reserve_in(unit, READ_RESERVATION, &mut reservation)?;
        // A registration between the two has changed the number in front.
        if keys[..4] == reservation[..4] {
            return Ok(parse_scsi(&keys, &reservation));
        }
    }
    Err(Errno::EBUSY)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut number = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        number.copy_from_slice(found);
    }
    number
}

fn parse_scsi(keys: &[u8], reservation: &[u8]) -> Registrations {
    let mut found = Registrations { persists: true, ..Registrations::default() };
    let count = u32::from_be_bytes(number(keys, 4)) as usize / 8;
    for index in 0..count.min(MAX_REGISTRATIONS) {
        found.add(u64::from_be_bytes(number(keys, 8 + 8 * index)));
    }
    if count > MAX_REGISTRATIONS {
        found.count = count as u64;
    }
    if u32::from_be_bytes(number(reservation, 4)) > 0 {
        found.holder = u64::from_be_bytes(number(reservation, 8));
        let [kind] = number(reservation, 21);
        // linux/pr.h counts without the gaps.
        found.kind = match kind & 0xf {
            1 => 1,
            3 => 2,
            kind => u64::from(kind).saturating_sub(2),
        };
    }
    found
}

/// With identifiers of hosts of 16 bytes (extended), which fabrics have, or of 8.
fn read_nvme(namespace: BorrowedFd<'_>) -> Result<Registrations, Errno> {
    let mut report = [0_u8; 64 * (1 + MAX_HOSTS)];
    let is_extended = match nvme_command::reservation_report(namespace, true, &mut report)? {
        0 => true,
        _ => match nvme_command::reservation_report(namespace, false, &mut report)? & 0x7ff {
            0 => false,
            // Invalid Command Opcode, Invalid Field in Command, Invalid Namespace or Format.
            1 | 2 | 0xb => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EIO),
        },
    };
    Ok(parse_nvme(&report, is_extended))
}

fn parse_nvme(report: &[u8], is_extended: bool) -> Registrations {
    let (first, length, key_at) = if is_extended { (64, 64, 8) } else { (24, 24, 16) };
    // PTPLS
    let [persists] = number(report, 9);
    let mut found = Registrations { persists: persists & 1 == 1, ..Registrations::default() };
    let [kind] = number(report, 4);
    let count = usize::from(u16::from_le_bytes(number(report, 5)));
    for index in 0..count.min(MAX_HOSTS) {
        let at = first + length * index;
        let key = u64::from_le_bytes(number(report, at + key_at));
        found.add(key);
        let [status] = number(report, at + 2);
        if status & 1 == 1 {
            found.holder = key;
            found.kind = kind.into();
        }
    }
    if count > MAX_HOSTS {
        found.count = count as u64;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_from_an_error() {
        assert_eq!(Answer::of_status(0), Answer::Done);
        for conflict in [0x18, 0x4083, 0x83, 0x0800_0018] {
            assert_eq!(Answer::of_status(conflict), Answer::Conflict, "{conflict:#x}");
        }
        for failed in [2, 0xe0000, 0x10000, 0x4002] {
            assert_eq!(Answer::of_status(failed), Answer::Failed(failed), "{failed:#x}");
        }
    }

    #[test]
    fn the_answers_of_scsi_are_read() {
        let mut keys = [0; 8 + 8 * 2];
        keys[7] = 16;
        keys[8..24].copy_from_slice(&[0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 9]);
        let none = parse_scsi(&keys, &[0; 24]);
        assert_eq!((none.count, none.keys[0], none.keys[1], none.kind), (2, 0x102, 9, 0));
        let mut reservation = [0; 24];
        reservation[7] = 16;
        reservation[15] = 9;
        for (kind, expected) in [(0x05, 3), (1, 1), (3, 2), (6, 4), (7, 5), (8, 6)] {
            reservation[21] = kind;
            let found = parse_scsi(&keys, &reservation);
            assert_eq!((found.holder, found.kind), (9, expected));
            assert_eq!(Registrations::from_words(found.to_words()), found);
        }
        // A node that logged in again and again.
        let mut keys = [7; 8 + 8 * 40];
        keys[4..8].copy_from_slice(&(8_u32 * 40).to_be_bytes());
        keys[8 + 8 * 39] = 8;
        let found = parse_scsi(&keys, &reservation);
        assert_eq!((found.count, found.keys[0], found.keys[1]), (3, found.keys[1], found.keys[0]));
        // More than is read.
        keys[4] = 1;
        assert_eq!(parse_scsi(&keys, &reservation).count, ((1 << 24) + 8 * 40) / 8);
    }

    #[test]
    fn the_report_of_nvme_is_read() {
        let mut report = [0; 64 * 3];
        report[4] = 3;
        report[5] = 2;
        report[64 + 8] = 7;
        report[128 + 8] = 9;
        report[128 + 2] = 1;
        let found = parse_nvme(&report, true);
        assert_eq!((found.count, found.keys[0], found.keys[1], found.holder, found.kind), (2, 7, 9, 9, 3));
        assert!(!found.persists);
        report[9] = 1;
        assert!(parse_nvme(&report, true).persists);
        let mut report = [0; 24 * 3];
        report[5] = 1;
        report[24 + 16] = 7;
        let found = parse_nvme(&report, false);
        assert_eq!((found.count, found.keys[0], found.holder, found.kind), (1, 7, 0, 0));
        report[6] = 0xff;
        assert_eq!(parse_nvme(&report, false).count, 0xff01, "a report that is cut off");
    }
}
