//! A driver with real mounts, in a namespace of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use csi_core::client::Client;
use csi_core::{Endpoint, Plugin, Rpc};
use tokio::runtime::Runtime;
use tonic::Status;

use super::{Answers, Fake, csi, forward, ok, stdout};

/// A running driver with its volumes, and directories for the life of one volume.
pub(crate) struct Driver {
    folder: Option<tempfile::TempDir>,
    pub(crate) runtime: Runtime,
}

impl Driver {
    pub(crate) fn new(plugin: fn(PathBuf) -> Plugin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["volumes", "places"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let builder = &mut tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let endpoint = endpoint(&folder.path().join("csi.sock"));
        let plugin = plugin(folder.path().join("volumes"));
        runtime.spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
        let driver = Self { folder: Some(folder), runtime };
        let client = driver.client();
        driver.runtime.block_on(client.ready(std::time::Duration::from_secs(120))).unwrap();
        driver
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().unwrap().path().join(name)
    }

    pub(crate) fn client(&self) -> Client {
        let _entered = self.runtime.enter();
        Client::new(&endpoint(&self.path("csi.sock")))
    }

    /// The driver behind a proxy. The function answers each call, and gets a client of the driver.
    pub(crate) fn behind<F: Future<Output = Result<Answers, Status>> + Send + 'static>(
        &self,
        function: impl Fn(Client, Rpc, Vec<u8>) -> F + Send + Sync + 'static,
    ) -> Fake {
        let client = self.client();
        Fake::new(move |rpc, bytes| function(client.clone(), rpc, bytes))
    }

    /// The driver behind a proxy that refuses some calls.
    pub(crate) fn refusing(&self, refuses: impl Fn(Rpc) -> Option<Status> + Send + Sync + 'static) -> Fake {
        self.behind(move |client, rpc, bytes| {
            let refused = refuses(rpc);
            async move {
                match refused {
                    Some(status) => Err(status),
                    None => forward(client, rpc, bytes).await,
                }
            }
        })
    }

    pub(crate) fn lifecycle(&self, socket: &Path, words: &[&str]) -> Output {
        self.lifecycle_command(socket, words).output().unwrap()
    }

    /// The command, with its temporary directory inside the test's directory.
    pub(crate) fn lifecycle_command(&self, socket: &Path, words: &[&str]) -> Command {
        let mut command = csi(socket);
        command.arg("lifecycle").args(words).env("TMPDIR", self.path("places"));
        command
    }

    /// Runs commands exactly as they were printed.
    pub(crate) fn run_all<'c>(&self, commands: impl IntoIterator<Item = &'c str>) {
        let program = Path::new(env!("CARGO_BIN_EXE_csi")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        for command in commands {
            let mut shell = Command::new("sh");
            shell.args(["-ec", command]).env("PATH", &path);
            shell.env("CSI_ENDPOINT", endpoint(&self.path("csi.sock")).to_string());
            ok(&shell.output().unwrap());
        }
    }

    pub(crate) fn assert_clean(&self, text: &str) {
        let left: Vec<_> = ["volumes", "places"]
            .iter()
            .flat_map(|name| std::fs::read_dir(self.path(name)).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(left.is_empty() && self.mounts() == 0, "left: {left:?}\n{text}");
        assert!(!losetup().contains(self.path("volumes").to_str().unwrap()), "{text}");
    }

    pub(crate) fn mounts(&self) -> usize {
        let here = self.path("");
        csi_mount::mounts().unwrap().iter().filter(|entry| entry.mount_point.starts_with(&here)).count()
    }
}

impl Drop for Driver {
    /// The directory is deleted only if nothing is mounted below it.
    fn drop(&mut self) {
        if self.mounts() > 0 {
            eprintln!("mounts are left, so {} stays", self.folder.take().unwrap().keep().display());
        }
    }
}

fn endpoint(socket: &Path) -> Endpoint {
    format!("unix://{}", socket.display()).parse().unwrap()
}

pub(crate) fn losetup() -> String {
    let output = Command::new("losetup").args(["--all", "--output", "BACK-FILE"]).output().unwrap();
    stdout(&output)
}

/// Runs a test on a driver, in a mount namespace of its own.
pub(crate) fn with_driver(plugin: fn(PathBuf) -> Plugin, test: impl FnOnce(&Driver) + Send) {
    csi_mount::testing::private_mount_namespace(|| test(&Driver::new(plugin)));
}
