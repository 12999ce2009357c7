//! Shared by the tests: the driver on a socket, and servers.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod calls;
pub(crate) mod nfsd;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::client::Client;
use csi_core::mount::Root;
use csi_core::testing::serve;
use csi_core::{Mode, Plugin};
use nfs::VolumeArgs;
use test_support::driver::parse;

/// Directories for a test. They are removed on drop, if nothing is mounted in them.
pub(crate) struct Places(Option<tempfile::TempDir>);

impl Places {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["staging", "target", "share"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self(Some(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }

    pub(crate) fn of(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The driver with the local directory `share` for every share. Only its controller, because nodes mount.
    pub(crate) fn controller(&self, volumes: &VolumeArgs) -> Plugin {
        let share = self.of("share");
        let open = Arc::new(move |_: &_| Ok(Root::open(&share)?));
        nfs::plugin_with(&parse(&[]), volumes, open).mode(Mode::Controller)
    }

    /// The real driver.
    pub(crate) fn driver(&self, volumes: &VolumeArgs) -> Plugin {
        nfs::plugin(&parse(&[]), volumes)
    }
}

impl Drop for Places {
    /// The directory is deleted only if nothing is mounted below it.
    fn drop(&mut self) {
        let Some(directory) = self.0.take() else { return };
        let table = csi_mount::mounts().unwrap();
        if table.iter().any(|entry| entry.mount_point.starts_with(directory.path())) {
            eprintln!("mounts are left, so {} stays", directory.keep().display());
        }
    }
}

/// Runs a test with a client of the plugin. At its end the plugin is gone.
pub(crate) fn with_plugin(plugin: Plugin, places: &Places, test: impl AsyncFnOnce(Client)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { test(serve(plugin, places.path()).await).await });
}
