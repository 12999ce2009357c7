//! What the tests of several crates share: the kernel's NFS server without nfs-utils, a Ceph cluster, Samba's SMB
//! server, a connection that can be stopped, (feature `drivers`) a driver as a process, and (feature `kube`) an API
//! server of Kubernetes.
//!
//! This crate is never published. A published crate has it as a dev-dependency without a version, which cargo
//! leaves out of the archive, and its `exclude` leaves out the tests that use it (`xtask/tests/it/archives.rs`).

pub mod ceph;
#[cfg(feature = "drivers")]
pub mod driver;
#[cfg(feature = "kube")]
pub mod kube_api;
pub mod nfsd;
pub mod process;
#[cfg(feature = "drivers")]
pub mod requests;
pub mod smbd;
pub mod tcp_gate;
