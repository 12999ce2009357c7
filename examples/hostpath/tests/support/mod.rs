//! The driver as a separate process with its own directories, and checks of what it leaves.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod life;

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_conformance::{Kit, Pairs};
use csi_core::Endpoint;
use csi_core::client::Client;
use csi_mount::{LoopDevice, Mount, MountOptions, Target, mounts, unmount};
use csi_proto::v1;
use tokio::process::{Child, Command};

pub(crate) const MIB: u64 = 1 << 20;

/// Runs a test in a private mount namespace.
pub(crate) fn in_private(test: impl AsyncFnOnce() + Send) {
    csi_mount::testing::private_mount_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

/// The number of rounds, or the size, of a test: `CSI_TEST_ROUNDS`, which selects the full size, or
/// this default.
pub(crate) fn rounds(otherwise: u32) -> u32 {
    std::env::var("CSI_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The driver's directories.
pub(crate) struct Run {
    directory: Option<tempfile::TempDir>,
    /// The separate filesystem of the data directory, unmounted last.
    disk: Option<(Target, Option<LoopDevice>)>,
}

impl Run {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["staging", "target", "data"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory: Some(directory), disk: None }
    }

    /// With the data on a tmpfs of this size.
    pub(crate) fn on_tmpfs(size: u64) -> Self {
        let mut run = Self::new();
        let options = MountOptions::parse([format!("size={size}")]).unwrap();
        let place = Target::new(run.of("data")).unwrap();
        Mount::new("tmpfs", "data").options(&options).at(&place).unwrap();
        run.disk = Some((place, None));
        run
    }

    /// With the data on an XFS, which can share blocks between files.
    pub(crate) fn on_xfs(size: u64) -> Self {
        let mut run = Self::new();
        let disk = run.of("disk");
        std::fs::File::create(&disk).unwrap().set_len(size).unwrap();
        let device = LoopDevice::attach(&disk, &csi_mount::LoopOptions::new()).unwrap();
        let made = std::process::Command::new("mkfs.xfs").arg("-q").arg(device.path()).status().unwrap();
        assert!(made.success());
        let place = Target::new(run.of("data")).unwrap();
        Mount::new("xfs", device.path()).at(&place).unwrap();
        run.disk = Some((place, Some(device)));
        run
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.as_ref().unwrap().path()
    }

    pub(crate) fn of(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        format!("unix://{}", self.of("csi.sock").display()).parse().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.endpoint())
    }

    /// Starts the driver and waits until it serves.
    pub(crate) async fn start(&self, flags: &[&str]) -> Child {
        self.start_at(&self.endpoint(), "node-1", flags).await
    }

    /// Another node with the same data.
    pub(crate) async fn start_node(&self, id: &str, flags: &[&str]) -> (Child, Endpoint) {
        let endpoint = format!("unix://{}", self.of(&format!("{id}.sock")).display()).parse().unwrap();
        let flags: Vec<&str> = flags.iter().copied().chain(["--mode=node"]).collect();
        (self.start_at(&endpoint, id, &flags).await, endpoint)
    }

    async fn start_at(&self, endpoint: &Endpoint, id: &str, flags: &[&str]) -> Child {
        self.start_as(Command::new(env!("CARGO_BIN_EXE_hostpath")), endpoint, id, flags).await
    }

    /// A node in its own mount namespace: no other process sees its mounts.
    pub(crate) async fn start_node_apart(&self, id: &str) -> (Child, Endpoint) {
        let endpoint = format!("unix://{}", self.of(&format!("{id}.sock")).display()).parse().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", env!("CARGO_BIN_EXE_hostpath")]);
        (self.start_as(command, &endpoint, id, &["--mode=node"]).await, endpoint)
    }

    /// Starts the driver with this command.
    pub(crate) async fn start_as(
        &self,
        mut command: Command,
        endpoint: &Endpoint,
        id: &str,
        flags: &[&str],
    ) -> Child {
        let child = command
            .args(["--volume-roots", &std::env::temp_dir().display().to_string()])
            .args(["--endpoint", &endpoint.to_string(), "--node-id", id, "--data"])
            .arg(self.of("data"))
            .args(["--log-level", "warn", "--spec", "v1.13"])
            .args(flags)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Client::new(endpoint).ready(Duration::from_secs(60)).await.unwrap();
        child
    }

    pub(crate) fn kit(&self) -> Kit {
        // A mounted XFS grows without CAP_SYS_RESOURCE.
        self.kit_without_filesystem().fs_type("xfs").size(320 << 20)
    }

    /// The same for directories, which have no filesystem type.
    pub(crate) fn kit_without_filesystem(&self) -> Kit {
        let mutable = Pairs::parse("[ControllerModifyVolume]\ndescription=by the kit\n").unwrap();
        let kit = Kit::new(self.endpoint()).strict().size(16 << 20).deadline(Duration::from_secs(60));
        kit.staging(self.of("staging"))
            .target(self.of("target"))
            .journal(self.of("journal"))
            .mutable_parameters(mutable)
    }

    /// Checks that no mount and no loop device is left, and that the kit's directories are empty.
    pub(crate) fn assert_clean(&self) {
        let left = self.mounts_left();
        assert!(left.is_empty(), "mounts are left: {left:?}");
        let loops = loops_below(&self.of("data"));
        assert!(loops.is_empty(), "loop devices are left: {loops:?}");
        for name in ["staging", "target"] {
            let left: Vec<_> = std::fs::read_dir(self.of(name)).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }

    fn mounts_left(&self) -> Vec<PathBuf> {
        let below = mounts().unwrap().into_iter().map(|entry| entry.mount_point);
        let data = self.disk.as_ref().map(|_| self.of("data"));
        below.filter(|point| point.starts_with(self.root()) && Some(point) != data.as_ref()).collect()
    }
}

impl Drop for Run {
    /// The directory is deleted only if nothing is mounted below it.
    fn drop(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        if let Some((place, device)) = self.disk.take() {
            let gone = unmount(&place).map(drop).and_then(|()| device.map_or(Ok(()), LoopDevice::detach));
            if let Err(error) = gone {
                eprintln!("{error}");
            }
        }
        let is_mounted =
            mounts().unwrap().iter().any(|entry| entry.mount_point.starts_with(directory.path()));
        if is_mounted {
            eprintln!("mounts are left, so {} stays", directory.keep().display());
        }
    }
}

/// The backing files of loop devices that lie below a directory, as the kernel reports them.
pub(crate) fn loops_below(root: &Path) -> Vec<String> {
    let blocks = std::fs::read_dir("/sys/block").unwrap().flatten();
    let files =
        blocks.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    files.filter(|file| Path::new(file.trim()).starts_with(root)).collect()
}

/// A capability. An empty filesystem name leaves the choice to the driver; None is a raw device.
pub(crate) fn capability(filesystem: Option<&str>, mode: i32) -> v1::VolumeCapability {
    use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
    let access_type = match filesystem {
        Some(name) => AccessType::Mount(MountVolume { fs_type: name.to_owned(), ..Default::default() }),
        None => AccessType::Block(BlockVolume {}),
    };
    v1::VolumeCapability { access_mode: Some(AccessMode { mode }), access_type: Some(access_type) }
}

/// A volume of this name and size, for one writer on one node.
pub(crate) fn wanted(name: &str, filesystem: Option<&str>, bytes: u64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 }),
        volume_capabilities: vec![capability(filesystem, 1)],
        ..Default::default()
    }
}

/// The ids of all snapshots.
pub(crate) async fn snapshots(client: &Client) -> Vec<String> {
    let list =
        client.controller().list_snapshots(v1::ListSnapshotsRequest::default()).await.unwrap().into_inner();
    list.entries.into_iter().filter_map(|entry| Some(entry.snapshot?.snapshot_id)).collect()
}
