//! A single writer, proven by the storage: what the storage has refused to a node, the node cannot write.
//!
//! A node registers a key at the device and reserves it for those that are registered (SCSI: "Write Exclusive,
//! Registrants Only"; NVMe: "Write Exclusive, All Registrants"). Others can read. Another node takes the device over by
//! ending the registration: from then on no write of the first node arrives, also none that was on its way. The storage
//! enforces this, so the first node can be frozen or cut off.
//!
//! Registering alone gives the right to write, so a node registers only if it is entitled: by a
//! [generation](ReservationKey) that the driver's controller raises each time that it gives the volume to a node. A node
//! takes over from older generations only, and gives way to newer ones. The driver stores the generation with the
//! volume before it attaches it.
//!
//! | step | at the device |
//! |---|---|
//! | stage, before anything is written | register, take over from older generations, reserve |
//! | the same, repeated | own key there: nothing. Gone: the node was fenced, and its filesystem is shut down |
//! | unstage | unregister. After a takeover the key stays: without a reservation the other node could write again |
//!
//! It works on disks of SCSI (iSCSI, Fibre Channel) and on namespaces of NVMe, also with NVMe's own multipath. It works
//! neither on a partition nor on dm-multipath. Needed: `CAP_SYS_ADMIN`, for SCSI `/dev/bsg`. Sources: SPC-4, "Reservations";
//! NVM Express Base Specification, "Reservations"; linux/pr.h (Linux 4.4).
//!
//! | part | has |
//! |---|---|
//! | `key.rs` | the key |
//! | `decide.rs` | the next step, from what is registered |
//! | `device.rs` | the device, asked by a child process with a time limit |
//!
//! Imports from `remote` and the layers above it.

mod decide;
pub(crate) mod device;
mod key;

pub use self::key::ReservationKey;

use self::decide::{Progress, Refusal, Step, decide};
use self::device::ReservableDevice;
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::reservation::{Change, Registrations};

const RESERVE: &str = "reserve";

/// Other nodes can change what is registered meanwhile. No state needs more than six steps.
const MAX_STEPS: usize = 24;

/// Whether a volume with one writer is reserved for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fencing {
    /// It is not.
    #[default]
    Off,
    /// It is, if the device has reservations. If not, a line of the log says so.
    IfSupported,
    /// It is. A device without reservations is [`Unsupported`](ErrorKind::Unsupported).
    Required,
}

/// What a device says about the right of this node to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteRight {
    /// The device is reserved, and this key is registered.
    Reserved,
    /// The device is not reserved with this key, and no newer one is registered.
    NotReserved,
    /// A newer key is registered, which has this generation: the node was fenced, or is about to be.
    Lost(u32),
    /// The device has no reservations.
    Unsupported,
}

/// Registers and reserves, with a node that has not written yet or that has it mounted.
fn hold(device: &BlockDevice, own: ReservationKey, mut progress: Progress) -> Result<()> {
    let reservable = ReservableDevice::new(device)?;
    let mut not_own = Vec::new();
    for _ in 0..MAX_STEPS {
        let found = reservable.read()?;
        match decide(&found, own, progress, &not_own) {
            Step::Register(key) => {
                if reservable.change(Change::Register(key.number()))? {
                    progress = Progress::Registered;
                }
            }
            Step::Replace(candidates, next) => {
                for candidate in candidates {
                    if reservable.change(Change::Replace(candidate.number(), next.number()))? {
                        if progress == Progress::Unused {
                            progress = Progress::Registered;
                        }
                        break;
                    }
                    not_own.push(candidate);
                }
            }
            Step::Preempt(key, victim) => {
                let device = device.path().display();
                tracing::info!(%device, %key, %victim, "takes the device over from an older generation");
                reservable.change(Change::PreemptAbort(key.number(), victim.number()))?;
            }
            Step::Reserve(key) => {
                reservable.change(Change::Reserve(key.number()))?;
            }
            Step::Done => return Ok(()),
            Step::Refuse(refusal) => {
                let is_own =
                    |key: ReservationKey| key.is_of_cluster_of(own) && key.generation() == own.generation();
                let is_registered =
                    || found.keys.iter().filter_map(|key| ReservationKey::of(*key)).any(is_own);
                if matches!(refusal, Refusal::Newer(_))
                    && (progress == Progress::Registered || is_registered())
                    && let Err(left) = reservable.change(Change::Unregister)
                {
                    tracing::warn!(%left, "a node that lost a volume stays registered at its device");
                }
                return Err(refused(refusal, own).at(device.path()));
            }
        }
    }
    let reason = "other nodes change its registrations all the time, or it does not carry out a takeover";
    Err(Error::new(ErrorKind::Busy, RESERVE, reason).at(device.path()))
}

fn refused(refusal: Refusal, own: ReservationKey) -> Error {
    let look = "look with `sg_persist --in --read-full-status` or `nvme resv-report`";
    let (reason, hint) = match refusal {
        Refusal::Foreign(key) => (
            format!("another program or cluster has registered the key {key:#018x} there"),
            format!("{look}; if nobody uses the device, remove its reservations (docs/fencing.md)"),
        ),
        Refusal::OtherType(key) => (
            format!("it is reserved by the key {key:#018x} in a way that this program does not use"),
            format!("{look}; if nobody uses the device, remove its reservations (docs/fencing.md)"),
        ),
        Refusal::TooMany(count) => {
            (format!("{count} nodes are registered there"), format!("{look}, and remove what is not used"))
        }
        Refusal::Newer(key) => (
            format!(
                "the volume was given to another node: generation {} ({key}) is registered, and this node has {}",
                key.generation(),
                own.generation()
            ),
            "unstage it here; to use it on this node again, attach it again".to_owned(),
        ),
        Refusal::Fenced => (
            format!(
                "this node's key {own} is not registered any more: the node was fenced, or the storage lost its state"
            ),
            "unstage it here, and stage it again: that works if no other node has it".to_owned(),
        ),
    };
    Error::new(ErrorKind::Reserved, RESERVE, reason).hint(hint)
}

/// Reserves the device for this node, before anything is written to it.
pub(crate) fn take(device: &BlockDevice, own: ReservationKey) -> Result<()> {
    hold(device, own, Progress::Unused)
}

/// Checks that the device, whose filesystem is mounted, is reserved for this node still.
/// [`Reserved`](ErrorKind::Reserved): it is not, and the filesystem must not write any more.
pub(crate) fn verify(device: &BlockDevice, own: ReservationKey) -> Result<()> {
    hold(device, own, Progress::Mounted)
}

/// Ends the registration of this node. After a takeover it stays.
pub(crate) fn release(device: &BlockDevice) -> Result<()> {
    let reservable = match ReservableDevice::new(device) {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        reservable => reservable?,
    };
    let found = match reservable.read() {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        found => found?,
    };
    let keys = || found.keys.iter().filter_map(|key| ReservationKey::of(*key));
    if keys().next().is_none() {
        return Ok(());
    }
    if let Some(key) = keys().find(|key| key.took_over()) {
        let device = device.path().display();
        tracing::info!(%device, %key, "the reservation stays: the node from which it was taken can still run");
        return Ok(());
    }
    reservable.change(Change::Unregister).map(drop)
}

/// What the device says about the right of this node.
pub(crate) fn write_right(device: &BlockDevice, own: ReservationKey) -> Result<WriteRight> {
    let read = ReservableDevice::new(device).and_then(|reservable| reservable.read());
    match read {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(WriteRight::Unsupported),
        read => Ok(right_in(&read?, own)),
    }
}

fn right_in(found: &Registrations, own: ReservationKey) -> WriteRight {
    let keys = || {
        found.keys.iter().filter_map(|key| ReservationKey::of(*key).filter(|key| key.is_of_cluster_of(own)))
    };
    match keys().map(ReservationKey::generation).max() {
        Some(newest) if newest > own.generation() => WriteRight::Lost(newest),
        Some(newest) if newest == own.generation() && found.kind != 0 => WriteRight::Reserved,
        _ => WriteRight::NotReserved,
    }
}
