//! What the tests of several crates share: the kernel's NFS server without nfs-utils, a Ceph cluster, Samba's SMB
//! server, a connection that can be stopped, and (feature `drivers`) a driver as a process.
//!
//! This crate is never published. A published crate has it as a dev-dependency without a version, which cargo
//! leaves out of the archive, and its `exclude` leaves out the tests that use it (`xtask/tests/archives.rs`).

pub mod ceph;
#[cfg(feature = "drivers")]
pub mod driver;
pub mod nfsd;
pub mod process;
#[cfg(feature = "drivers")]
pub mod requests;
mod rpc;
pub mod smbd;
pub mod tcp_gate;
