//! The kernel's NFS server with an export in memory. A machine has only one such server, so the test must
//! have the machine to itself.

use std::fs;

use csi_mount::{Mount, Target};
use test_support::nfsd;

pub(crate) use nfsd::{EXPORT, PORT, mountd};

/// Exports a directory in memory until the machine ends; `share` inside it is for volumes. The server is
/// started only once: it begins with a grace period, in which no client can open an NFSv4 file for about ten
/// seconds.
pub(crate) fn start() {
    if nfsd::threads().is_some_and(|threads| threads > 0) {
        return;
    }
    nfsd::raise_loopback();
    Mount::new("nfsd", "nfsd").at(&Target::new(nfsd::CONTROL).unwrap()).unwrap();
    let export = Target::new(EXPORT).unwrap();
    export.create_dir().unwrap();
    Mount::new("tmpfs", "export").at(&export).unwrap();
    fs::create_dir(export.path().join("share")).unwrap();
    nfsd::start();
    nfsd::export();
}
