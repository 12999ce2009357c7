//! The driver as a separate process with its own directories, and checks of what it leaves.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod life;
pub(crate) mod requests;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use csi_conformance::{Kit, Pairs};
use csi_core::Endpoint;
use csi_core::client::Client;
use csi_mount::internal::LoopDevice;
use csi_mount::{Mount, MountOptions, Target, mounts, unmount};
use csi_proto::RpcRequest;
pub(crate) use test_support::driver::in_private;
use test_support::driver::{Driver, endpoint};
use tonic::{Code, Status};

pub(crate) const MIB: u64 = 1 << 20;

/// Runs a test on a driver with its data in memory, and checks that the test leaves nothing on the node.
pub(crate) fn with_driver(flags: &[&str], test: impl AsyncFnOnce(&Run, Driver) + Send) {
    with_driver_on(|| Run::on_tmpfs(64 << 30), flags, test);
}

/// The same, with the directories that `run` makes.
pub(crate) fn with_driver_on(
    run: impl FnOnce() -> Run + Send,
    flags: &[&str],
    test: impl AsyncFnOnce(&Run, Driver) + Send,
) {
    in_private(async || {
        let run = run();
        let driver = run.start(flags).await;
        test(&run, driver).await;
        run.assert_clean();
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

    /// A file of a volume or snapshot in its store: `image`, `record.json`.
    pub(crate) fn stored(&self, store: &str, id: &str, file: &str) -> PathBuf {
        self.of("data").join(store).join(id).join(file)
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        endpoint(&self.of("csi.sock"))
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.endpoint())
    }

    /// Makes a call on a connection of its own.
    pub(crate) async fn call<R: RpcRequest>(&self, request: R) -> Result<R::Answer, Status> {
        self.client().call(request).await
    }

    /// Starts the driver and waits until it serves.
    pub(crate) async fn start(&self, flags: &[&str]) -> Driver {
        self.start_as(program(), "csi.sock", "node-1", flags).await
    }

    /// Another node with the same data. Its socket is named after it.
    pub(crate) async fn start_node(&self, id: &str, flags: &[&str]) -> Driver {
        self.start_as(program(), &format!("{id}.sock"), id, &[flags, &["--mode=node"]].concat()).await
    }

    /// A node in its own mount namespace: no other process sees its mounts.
    pub(crate) async fn start_node_apart(&self, id: &str) -> Driver {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private"]).arg(program().get_program());
        self.start_as(command, &format!("{id}.sock"), id, &["--mode=node"]).await
    }

    /// Starts the driver with this command.
    pub(crate) async fn start_as(
        &self,
        mut command: Command,
        socket: &str,
        id: &str,
        flags: &[&str],
    ) -> Driver {
        let socket = self.of(socket);
        command.arg("--volume-roots").arg(std::env::temp_dir()).arg("--endpoint").arg(&socket);
        command.args(["--node-id", id, "--log-level", "warn", "--spec", "v1.13", "--data"]);
        command.arg(self.of("data")).args(flags);
        Driver::start(command, socket).await
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

/// The driver's program.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hostpath"))
}

impl Drop for Run {
    /// The directory is deleted only if nothing is mounted below it. A loop device that a failed test leaves would stay
    /// with its file when nothing else shows that any more. One that is mounted ends with the mount.
    fn drop(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        for (device, file) in loop_devices_below(directory.path()) {
            eprintln!("{} is left over {file}", device.display());
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
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
    loop_devices_below(root).into_iter().map(|(_, file)| file).collect()
}

fn loop_devices_below(root: &Path) -> Vec<(PathBuf, String)> {
    let blocks = std::fs::read_dir("/sys/block").unwrap().flatten();
    let of_block = |entry: std::fs::DirEntry| {
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        Some((Path::new("/dev").join(entry.file_name()), file))
    };
    blocks.filter_map(of_block).filter(|(_, file)| Path::new(file.trim()).starts_with(root)).collect()
}

/// Waits until a write to the volume at this target has ended: its filesystem is not frozen.
pub(crate) async fn takes_writes(target: &Path) {
    let file = target.join("written");
    let write = tokio::task::spawn_blocking(move || std::fs::write(file, "x"));
    tokio::time::timeout(Duration::from_secs(120), write).await.expect("it is thawed").unwrap().unwrap();
}

/// The code of an answer.
pub(crate) fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|refused| refused.code(), |_| Code::Ok)
}
