//! iSCSI: open-iscsi for the login and its repetition, sysfs for everything else.
//!
//! The kernel needs `iscsid` to log in, and again after each lost connection. So the node's database of
//! open-iscsi is used: a record that is written here (with mode 600, because it has the CHAP secrets), and
//! `iscsiadm`, which makes `iscsid` read it. The secrets are in no argument.
//!
//! | file | has |
//! |---|---|
//! | `target.rs` | what the driver says: target, LUN, its name, portals, secrets |
//! | `tree.rs` | what the kernel says: sessions and their logical units |
//! | `decide.rs` | which session is used, which path is usable, what is deleted and logged out |
//! | `maps.rs` | the paths to a unit, and the one disk over them |
//! | `node_record.rs` | the records of open-iscsi's database |
//! | `login.rs` | `iscsiadm`: log in, log out |
//! | `attach.rs`, `detach.rs` | the steps: log in, scan one LUN, wait; delete paths |

pub(super) mod attach;
pub(super) mod decide;
pub(super) mod detach;
pub(super) mod login;
pub(super) mod maps;
mod node_record;
pub(super) mod target;
mod tree;
