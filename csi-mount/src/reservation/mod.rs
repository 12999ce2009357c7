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
//! | stage, before anything is written | register, end all older registrations, reserve |
//! | the same, repeated | own key there: nothing. Gone, and another node has taken over: the filesystem is shut down. Gone, and nobody else is there: register again |
//! | unstage | nothing: key and reservation stay. A node of which nobody knows any more, because the storage forgot its key or because it never had one, could write otherwise |
//!
//! So there is one registration of one node at a device. It ends with the next takeover, or with the volume.
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

use self::decide::{Here, Refusal, Step, decide};
use self::device::ReservableDevice;
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::reservation::{Change, Registrations};

const RESERVE: &str = "reserve";

/// Other nodes can change what is registered meanwhile. No state needs more than seventeen steps: one to find the own key,
/// one to change it, one for each key that ends, one to reserve.
const MAX_STEPS: usize = 32;

/// Whether a volume with one writer is reserved for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fencing {
    /// It is not.
    #[default]
    Off,
    /// It is, if the device has reservations. If not, a line of the log says so.
    IfSupported,
    /// It is. A device without reservations, or whose storage forgets them when it restarts, is
    /// [`Unsupported`](ErrorKind::Unsupported).
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
    /// Another node is registered with a key of this generation, which is newer or the same: this node was fenced, or is
    /// about to be.
    Lost(u32),
    /// The device has no reservations.
    Unsupported,
}

/// The reservation that a volume is to have: the right of a node to write to it, as the driver's controller gave it.
///
/// ```
/// use csi_mount::reservation::{Fencing, Reservation, ReservationKey};
///
/// let key = ReservationKey::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301", 7);
/// let reservation = Reservation::new(key, Fencing::Required).earlier([3, 5]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    key: ReservationKey,
    fencing: Fencing,
    earlier: Option<Vec<u32>>,
}

impl Reservation {
    /// A reservation with this key.
    pub fn new(key: ReservationKey, fencing: Fencing) -> Self {
        Self { key, fencing, earlier: None }
    }

    /// The earlier generations that were given to this node. If any other one is registered from here, another machine
    /// has this machine's host identifier of NVMe or its initiator name of iSCSI, and the device is refused.
    #[must_use]
    pub fn earlier(mut self, generations: impl IntoIterator<Item = u32>) -> Self {
        self.earlier = Some(generations.into_iter().collect());
        self
    }

    fn is_required(&self) -> bool {
        self.fencing == Fencing::Required
    }

    /// What the driver chose.
    pub(crate) fn fencing(&self) -> Fencing {
        self.fencing
    }
}

/// Why a node does not hold a device.
#[derive(Debug)]
pub(crate) struct NotHeld {
    pub(crate) error: Error,
    /// Another node has taken the device over, so this one must not write any more.
    pub(crate) is_taken_over: bool,
}

impl From<Error> for NotHeld {
    fn from(error: Error) -> Self {
        Self { error, is_taken_over: false }
    }
}

/// Registers and reserves, with a node that has not written yet or that has the filesystem mounted.
fn hold(device: &BlockDevice, wanted: &Reservation, is_mounted: bool) -> Result<(), NotHeld> {
    let reservable = ReservableDevice::new(device)?;
    let mut here = Here { is_mounted, ..Here::default() };
    for _ in 0..MAX_STEPS {
        let found = reservable.read()?;
        let register = |change| {
            reservable.change(change).map_err(|error| {
                if error.kind() != ErrorKind::Unsupported {
                    return error;
                }
                // The kernel's own target has the key all the same, until it restarts.
                let _ = reservable.change(Change::Unregister);
                // Where others are registered, the device is not used without.
                if has_others(&found, wanted.key) { error.with_kind(ErrorKind::Unresponsive) } else { error }
            })
        };
        match decide(&found, wanted, &here) {
            Step::Find(candidates) => {
                for key in candidates {
                    // It changes nothing, and succeeds only if the key is registered from here.
                    if register(Change::Replace(key.number(), key.number()))? {
                        here.own = Some(key);
                        break;
                    }
                    here.not_own.push(key);
                }
            }
            Step::Register(key) => {
                if register(Change::Register(key.number()))? {
                    here.own = Some(key);
                } else {
                    // Another call has registered meanwhile.
                    here.not_own.clear();
                }
            }
            Step::Replace(own, next) => {
                if register(Change::Replace(own.number(), next.number()))? {
                    here.own = Some(next);
                    here.not_own.push(own);
                }
            }
            Step::Preempt(own, victim) => {
                let device = device.path().display();
                tracing::info!(%device, %own, %victim, "ends an older registration");
                reservable.change(Change::PreemptAbort(own.number(), victim.number()))?;
            }
            Step::Reserve(key) => {
                reservable.change(Change::Reserve(key.number()))?;
            }
            Step::Done => return Ok(()),
            Step::Refuse(refusal) => {
                // This node writes no more, and does not keep others out.
                if here.own.is_some()
                    && matches!(refusal, Refusal::Newer(_) | Refusal::Forgets)
                    && !(is_mounted && refusal == Refusal::Forgets)
                    && let Err(left) = reservable.change(Change::Unregister)
                {
                    tracing::warn!(%left, "a node that does not get a volume stays registered at its device");
                }
                let is_taken_over = matches!(refusal, Refusal::Newer(_) | Refusal::TakenOver);
                return Err(NotHeld { error: refused(refusal, wanted.key).at(device.path()), is_taken_over });
            }
        }
    }
    let reason = "other nodes change its registrations all the time, or it does not carry out a takeover";
    Err(Error::new(ErrorKind::Busy, RESERVE, reason).at(device.path()).into())
}

/// Whether others than this node have registered.
fn has_others(found: &Registrations, own: ReservationKey) -> bool {
    let mut keys = found.keys.iter().take(found.count as usize);
    keys.any(|key| ReservationKey::of(*key).is_none_or(|key| key.generation() != own.generation()))
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
            (format!("{count} keys are registered there"), format!("{look}, and remove what is not used"))
        }
        Refusal::Newer(key) => (
            format!(
                "the volume was given to another node: generation {} ({key}) is registered, and this node has {}",
                key.generation(),
                own.generation()
            ),
            "unstage it here; to use it on this node again, attach it again".to_owned(),
        ),
        Refusal::TakenOver => (
            format!("this node's key {own} is not registered there: another machine took the device over"),
            "unstage it here; to use it on this node again, detach it and attach it again".to_owned(),
        ),
        Refusal::Shared(key) => (
            format!(
                "the key {key} is registered from here, and was given to another node: two machines have one host \
                 identifier of NVMe or one initiator name of iSCSI, or the driver's record was restored from a backup"
            ),
            "give each machine its own (/etc/nvme/hostid and hostnqn, /etc/iscsi/initiatorname.iscsi); if no other \
             machine has it, remove the registration (docs/fencing.md)"
                .to_owned(),
        ),
        Refusal::Forgets => {
            let reason = "its storage forgets reservations when it restarts, so that a node that is cut off could write";
            let hint = "use storage that keeps them (NVMe: Persist Through Power Loss), or Fencing::IfSupported";
            return Error::new(ErrorKind::Unsupported, RESERVE, reason).hint(hint);
        }
    };
    Error::new(ErrorKind::Reserved, RESERVE, reason).hint(hint)
}

/// Reserves the device for this node, before anything is written to it.
pub(crate) fn take(device: &BlockDevice, wanted: &Reservation) -> Result<(), NotHeld> {
    hold(device, wanted, false)
}

/// Checks that the device, whose filesystem is mounted, is reserved for this node still.
pub(crate) fn verify(device: &BlockDevice, wanted: &Reservation) -> Result<(), NotHeld> {
    hold(device, wanted, true)
}

/// What the device says about the right of this node.
pub(crate) fn write_right(device: &BlockDevice, own: ReservationKey) -> Result<WriteRight> {
    let read = ReservableDevice::new(device).and_then(|reservable| Ok((reservable.read()?, reservable)));
    let (found, reservable) = match read {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(WriteRight::Unsupported),
        read => read?,
    };
    let all = found.keys.iter().filter_map(|key| ReservationKey::of(*key));
    let keys: Vec<_> = all.filter(|key| key.is_of_cluster_of(own)).collect();
    let newest = keys.iter().map(|key| key.generation()).max().unwrap_or_default();
    if newest > own.generation() {
        return Ok(WriteRight::Lost(newest));
    }
    if newest < own.generation() || found.kind == 0 {
        return Ok(WriteRight::NotReserved);
    }
    for key in keys.into_iter().filter(|key| key.generation() == newest) {
        // It changes nothing, and succeeds only if the key is registered from here.
        if reservable.change(Change::Replace(key.number(), key.number()))? {
            return Ok(WriteRight::Reserved);
        }
    }
    Ok(WriteRight::Lost(newest))
}
