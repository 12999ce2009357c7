//! The kernel's NFS server with an export in memory, for a test of the driver.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use csi_mount::{Mount, Target, unmount};
use test_support::nfsd;
use test_support::tcp_gate::Gate;

/// The settings for new volumes and for mounting their share.
pub(crate) struct Class {
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) mount_options: Vec<String>,
}

/// Serves a directory in memory until it is dropped. Only one can run on a machine.
pub(crate) struct Nfsd {
    /// The exported directory, as the server sees it.
    pub(crate) export: PathBuf,
    mount_port: u16,
}

impl Nfsd {
    pub(crate) fn start() -> Self {
        nfsd::raise_loopback();
        let control = Target::new(nfsd::CONTROL).unwrap();
        Mount::new("nfsd", "nfsd").at(&control).unwrap();
        let export = PathBuf::from(nfsd::EXPORT);
        let target = Target::new(&export).unwrap();
        target.create_dir().unwrap();
        Mount::new("tmpfs", "export").at(&target).unwrap();
        fs::create_dir_all(export.join("share")).unwrap();

        // A server that a failed test left running refuses new versions.
        nfsd::stop();
        nfsd::start();
        nfsd::end_grace();
        nfsd::export();
        Self { export, mount_port: nfsd::mountd() }
    }

    /// Version 4.2: the path is relative to the server's root, which is the export.
    pub(crate) fn version_4(&self) -> Class {
        class("/share", &["nfsvers=4.2", "proto=tcp"])
    }

    /// Version 3, which has no root of its own: the client mounts a full path of the server.
    pub(crate) fn version_3(&self) -> Class {
        self.version_3_at(nfsd::PORT, self.mount_port)
    }

    /// Version 3, through this gate.
    pub(crate) fn behind(&self, gate: &Gate) -> Class {
        self.version_3_at(gate.lead_to(nfsd::PORT), gate.lead_to(self.mount_port))
    }

    fn version_3_at(&self, port: u16, mount_port: u16) -> Class {
        let port = format!("port={port}");
        let mount_port = format!("mountport={mount_port}");
        let options = ["nfsvers=3", "mountproto=tcp", "nolock", &port, &mount_port];
        class(&format!("{}/share", nfsd::EXPORT), &options)
    }
}

fn class(share: &str, options: &[&str]) -> Class {
    let parameters = [("server", "127.0.0.1"), ("share", share)];
    Class {
        parameters: parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        mount_options: options.iter().map(|&option| option.to_owned()).collect(),
    }
}

impl Drop for Nfsd {
    fn drop(&mut self) {
        // After a panic, mounts of the export can be left; they end with the machine.
        if std::thread::panicking() {
            return;
        }
        nfsd::stop();
        nfsd::forget_exports();
        unmount(&Target::new(&self.export).unwrap()).unwrap();
        fs::remove_dir(&self.export).unwrap();
        // csi-mount refuses to unmount in a directory of the system.
        nix::mount::umount(nfsd::CONTROL).unwrap();
    }
}
