//! iSCSI: open-iscsi for the login and its repetition, sysfs for everything else. The logical units of a session
//! are in `scsi/`.
//!
//! The kernel needs `iscsid` to log in, and again after each lost connection. So the node's database of
//! open-iscsi is used: a record that is written here (with mode 600, because it has the CHAP secrets), and
//! `iscsiadm`, which makes `iscsid` read it. The secrets are in no argument.
//!
//! | file | has |
//! |---|---|
//! | `target.rs` | what the driver says: target, LUN, its name, portals, secrets |
//! | `tree.rs` | what the kernel says: sessions |
//! | `decide.rs` | which session is used, and which is logged out |
//! | `node_record.rs` | the records of open-iscsi's database |
//! | `login.rs` | `iscsiadm`: log in, log out |
//! | `stale_lock.rs` | the lock that a killed `iscsiadm` leaves |
//! | `attach.rs` | the step of an attach: log in |

mod attach;
pub(super) mod decide;
mod login;
mod node_record;
mod stale_lock;
pub(super) mod target;
mod tree;

/// The interface record of open-iscsi for a login that names none.
const DEFAULT_INTERFACE: &str = "default";
