//! What the tests of several crates share: the kernel's NFS server without nfs-utils, a Ceph cluster, and
//! Samba's SMB server.
//!
//! This crate is never published. A published crate has it as a dev-dependency without a version, which cargo
//! leaves out of the archive, and its `exclude` leaves out the tests that use it (`xtask/tests/archives.rs`).

pub mod ceph;
pub mod nfsd;
mod rpc;
pub mod smbd;
