//! Fibre Channel: the kernel logs in at the ports of targets by itself, and sysfs shows them. What is left is one
//! LUN to scan, and paths to delete: `scsi/` does that.
//!
//! By default the kernel also scans all LUNs of a port that comes. So units of other volumes, and of volumes that
//! were here before, are expected: they are never used, and never touched.
//!
//! | file | has |
//! |---|---|
//! | `target.rs` | what the driver says: target ports, LUN, its name |
//! | `tree.rs` | what the kernel says: ports of this node, and of targets |
//! | `decide.rs` | which ports an attachment uses |
//! | `attach.rs` | what the node needs, and why no port is reached |

mod attach;
mod decide;
pub(super) mod target;
mod tree;
