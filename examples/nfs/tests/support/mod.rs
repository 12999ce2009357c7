//! Shared by the tests: the driver on a socket, and servers.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod calls;
pub(crate) mod nfsd;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_core::client::Client;
use csi_core::mount::Root;
use csi_core::{Endpoint, Mode, Plugin};
use nfs::VolumeArgs;
use nfs::try_out::driver_args;
use tokio::sync::oneshot;

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

    pub(crate) fn endpoint(&self) -> Endpoint {
        format!("unix://{}", self.of("csi.sock").display()).parse().unwrap()
    }

    /// The driver with the local directory `share` for every share. Only its controller, because nodes mount.
    pub(crate) fn controller(&self, volumes: &VolumeArgs) -> Plugin {
        let share = self.of("share");
        let open = Arc::new(move |_: &_| Ok(Root::open(&share)?));
        nfs::plugin_with(&driver_args(&self.endpoint()), volumes, open).mode(Mode::Controller)
    }

    /// The real driver.
    pub(crate) fn driver(&self, volumes: &VolumeArgs) -> Plugin {
        nfs::plugin(&driver_args(&self.endpoint()), volumes)
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

/// Serves the plugin while `work` runs.
pub(crate) async fn with_plugin<T>(
    plugin: Plugin,
    places: &Places,
    work: impl AsyncFnOnce(Client) -> T,
) -> T {
    let (stop, stopped) = oneshot::channel::<()>();
    let endpoint = places.endpoint();
    let client = Client::new(&endpoint);
    let serve = async move { plugin.serve_until(&endpoint, async { drop(stopped.await) }).await };
    let server = tokio::spawn(serve);
    client.ready(Duration::from_secs(30)).await.unwrap();
    let result = work(client).await;
    drop(stop);
    server.await.unwrap().unwrap();
    result
}
