//! A plugin on a socket in a private mount namespace, and the kit that tests it.

#![allow(dead_code, reason = "not every test needs each")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_conformance::{Kit, Report};
use csi_core::{Endpoint, Plugin};
use tokio::sync::oneshot;

/// Directories for a run. They are removed at its end, if nothing is mounted in them.
pub(crate) struct Places {
    directory: Option<tempfile::TempDir>,
}

impl Places {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["staging", "target", "volumes"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory: Some(directory) }
    }

    pub(crate) fn of(&self, name: &str) -> PathBuf {
        self.directory.as_ref().unwrap().path().join(name)
    }

    pub(crate) fn endpoint(&self, name: &str) -> Endpoint {
        format!("unix://{}", self.of(name).display()).parse().unwrap()
    }

    pub(crate) fn kit(&self) -> Kit {
        let kit = Kit::new(self.endpoint("csi.sock"))
            .strict()
            .deadline(Duration::from_secs(30))
            .journal(self.of("journal"));
        kit.staging(self.of("staging")).target(self.of("target"))
    }

    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let entries = |name| std::fs::read_dir(self.of(name)).unwrap().map(|entry| entry.unwrap().path());
        ["staging", "target", "volumes"].into_iter().flat_map(entries).collect()
    }
}

impl Drop for Places {
    /// The directory is deleted only if nothing is mounted below it.
    fn drop(&mut self) {
        if let Some(directory) = self.directory.take()
            && mounts_below(directory.path()) > 0
        {
            eprintln!("mounts are left, so {} stays", directory.keep().display());
        }
    }
}

pub(crate) async fn with_plugin<T>(plugin: Plugin, endpoint: &Endpoint, work: impl Future<Output = T>) -> T {
    let (stop, stopped) = oneshot::channel::<()>();
    let served = endpoint.clone();
    let server =
        tokio::spawn(async move { plugin.serve_until(&served, async { drop(stopped.await) }).await });
    let result = work.await;
    drop(stop);
    server.await.unwrap().unwrap();
    result
}

/// Runs on a thread with a private mount namespace; the runtime's threads are in it too.
pub(crate) fn in_private<T: Send>(test: impl AsyncFnOnce() -> T + Send) -> T {
    csi_mount::testing::private_mount_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test())
    })
}

pub(crate) fn mounts_below(path: &Path) -> usize {
    csi_mount::mounts().unwrap().iter().filter(|entry| entry.mount_point.starts_with(path)).count()
}

/// Runs a kit whose tests this plugin passes.
pub(crate) async fn conforms(plugin: Plugin, places: &Places, kit: Kit) -> Report {
    let report = with_plugin(plugin, &places.endpoint("csi.sock"), kit.run()).await.unwrap();
    print(&report);
    report.assert_ok();
    report
}

pub(crate) fn print(report: &Report) {
    println!("{}", report.text());
}
