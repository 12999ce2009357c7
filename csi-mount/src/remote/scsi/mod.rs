//! Disks of SCSI, whatever connects their target: which unit is the volume, which paths are usable, what is
//! scanned and deleted.
//!
//! A transport says which connections reach the target of an attachment ([`LogicalUnit`]). The rest is common.
//!
//! | file | has |
//! |---|---|
//! | `lun_id.rs` | the name of a unit, which the driver says |
//! | `unit.rs` | what the kernel says about connections and their units |
//! | `decide.rs` | which path is usable, what is scanned and deleted |
//! | `maps.rs` | the paths to a unit, and the one disk over them |
//! | `confirm.rs` | the unit itself is asked for its name |
//! | `rescan.rs` | the kernel asks it for its names and its size |
//! | `attach.rs`, `detach.rs` | the steps: scan one LUN, wait, read a new size; delete paths |

pub(super) mod attach;
mod confirm;
pub(super) mod decide;
pub(super) mod detach;
mod lun_id;
pub(super) mod maps;
mod rescan;
pub(super) mod unit;

use std::path::Path;

pub use self::lun_id::LunId;
use self::unit::Nexus;
use crate::Result;

/// The logical unit of an attachment.
pub(super) trait LogicalUnit {
    /// Its number, at each connection.
    fn lun(&self) -> u64;

    fn id(&self) -> &LunId;

    /// The name of its target, for messages.
    fn target(&self) -> String;

    /// The connections that can show the unit, as the kernel shows them now. The first ones are preferred.
    fn connections(&self, sys: &Path) -> Result<Vec<Nexus>>;

    /// What happens to a unit of another volume with this number.
    fn foreign(&self) -> Foreign;
}

/// What happens to a unit with the number of an attachment, and the name of another volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    /// If nothing uses it, it is deleted, and the number scanned again: only attachments bring units here.
    Go,
    /// It is asked again who it is. It stays if it is still another volume's: the kernel has found it by itself.
    Stay,
}
