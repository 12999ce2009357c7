//! For the tests of the examples: a driver as a process, the test kit against a driver, a mount namespace for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use csi_conformance::Kit;
use csi_core::Endpoint;
use csi_core::client::{Client, VolumeUse};
use csi_core::proto::v1::{self, volume_capability::access_mode::Mode};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{Mount, Target};
use rustix::process::{Pid, kill_process};
use tokio::time::{sleep, timeout};

pub use rustix::process::Signal;

use crate::process::LIMIT;

/// A driver as a process. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Driver {
    program: Command,
    process: Child,
    socket: PathBuf,
}

impl Driver {
    /// Starts the program, and waits until the driver on this socket is ready.
    pub async fn start(mut program: Command, socket: impl Into<PathBuf>) -> Self {
        let process = program.stdin(Stdio::null()).spawn().unwrap();
        let mut driver = Self { program, process, socket: socket.into() };
        driver.ready().await;
        driver
    }

    /// Starts the program again, after its end.
    pub async fn start_again(&mut self) {
        self.process = self.program.spawn().unwrap();
        self.ready().await;
    }

    /// Kills the process, and starts the program again.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    async fn ready(&mut self) {
        let client = self.client();
        tokio::select! {
            ready = client.ready(LIMIT) => ready.unwrap_or_else(|error| panic!("{error}")),
            status = self.exit() => panic!("the driver ended: {status}"),
        }
    }

    /// Returns the place of its socket.
    pub fn endpoint(&self) -> Endpoint {
        endpoint(&self.socket)
    }

    /// Returns a client, with a connection of its own.
    pub fn client(&self) -> Client {
        Client::new(&self.endpoint())
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns a number of the process, such as `Threads:`, or `VmRSS:` in KiB.
    pub fn status(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(field)).expect(field);
        value.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        timeout(LIMIT, self.exit()).await.expect("the driver ends")
    }

    async fn exit(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Kills the process, and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program answers `--help`, and refuses an option that does not exist by its name. It has no endpoint, so one
/// that ignores its arguments ends too.
pub fn explains_itself(program: &str) {
    let output = |argument| Command::new(program).env_remove("CSI_ENDPOINT").arg(argument).output().unwrap();
    for argument in ["--help", "-h"] {
        let help = output(argument);
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(help.status.success() && text.contains("CSI_ENDPOINT"), "{program} {argument}: {text}");
    }
    let refused = output("--no-such-option");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{program}: {text}");
    assert!(
        text.contains("unexpected argument '--no-such-option'") && text.contains("--help"),
        "{program}: {text}"
    );
}

/// Returns the endpoint with this socket.
pub fn endpoint(socket: &Path) -> Endpoint {
    socket.to_str().unwrap().parse().unwrap()
}

/// Reads a driver's flags, as its program does.
pub fn parse<A: clap::Args>(flags: &[&str]) -> A {
    let command = A::augment_args(clap::Command::new("driver").no_binary_name(true));
    A::from_arg_matches(&command.get_matches_from(flags)).unwrap()
}

/// Returns the names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs a test in a private mount namespace.
pub fn in_private(test: impl AsyncFnOnce() + Send) {
    private_mount_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

/// The same, with a directory on a tmpfs of the namespace. Only its empty mount point is deleted, so a mistake
/// with a mount in it can't reach other files.
pub fn on_tmpfs(test: impl AsyncFnOnce(&Path) + Send) {
    let directory = tempfile::tempdir().unwrap().keep();
    in_private(async || {
        Mount::new("tmpfs", "test").at(&Target::new(&directory).unwrap()).unwrap();
        test(&directory).await;
    });
    fs::remove_dir(&directory).unwrap();
}

/// ControllerUnpublishVolume of a node that has the volume staged, as of one that is cut off: the storage takes none of its
/// writes any more. For a machine of its own: a volume without its device is known by its place below the kubelet's
/// directory.
pub async fn is_cut_off_by_its_storage(client: &Client) {
    let capability = v1::VolumeCapability::mount(Mode::SingleNodeWriter);
    let create = v1::CreateVolumeRequest {
        name: "cut-off".to_owned(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let created = client.call(create).await.unwrap().volume.unwrap();
    let node = client.call(v1::NodeGetInfoRequest {}).await.unwrap().node_id;
    let staging = PathBuf::from("/var/lib/kubelet/cut-off");
    fs::create_dir_all(&staging).unwrap();
    let mut volume = VolumeUse::new(&created.volume_id, capability).attached_to(node).staged_at(&staging);
    volume.volume_context = created.volume_context;
    volume.attach(client).await.unwrap();
    volume.stage(client).await.unwrap();
    let write = |name: &str| {
        let place = staging.join(name);
        tokio::task::spawn_blocking(move || fs::File::create(place)?.sync_all())
    };
    write("before").await.unwrap().unwrap();
    volume.detach(client).await.unwrap();
    write("after").await.unwrap().unwrap_err();
    volume.unstage(client).await.unwrap();
    volume.attach(client).await.unwrap();
    volume.stage(client).await.unwrap();
    assert!(staging.join("before").exists() && !staging.join("after").exists());
    volume.unstage(client).await.unwrap();
    volume.detach(client).await.unwrap();
    let delete = v1::DeleteVolumeRequest { volume_id: created.volume_id, ..Default::default() };
    client.call(delete).await.unwrap();
}

/// Runs the kit against the driver on the socket `csi.sock` in this directory, with these settings. At least
/// `least` of its tests must pass.
pub async fn conforms(directory: &Path, settings: impl FnOnce(Kit) -> Kit, least: usize) {
    let [staging, target] = ["kit-staging", "kit-target"].map(|name| directory.join(name));
    for place in [&staging, &target] {
        fs::create_dir(place).unwrap();
    }
    let kit = Kit::new(endpoint(&directory.join("csi.sock"))).strict().staging(staging).target(target);
    let report = settings(kit).run().await.unwrap();
    println!("{}", report.text());
    report.assert_ok();
    assert!(report.passed() >= least, "{}", report.summary());
}
