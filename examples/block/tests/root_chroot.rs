//! The driver as a separate process in an empty root with only the system's tools and devices mounted in: a
//! volume's whole life on each filesystem, and raw. A driver built with `-C target-feature=+crt-static`
//! itself needs nothing from that root. Needs root.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use csi_core::mount::testing::private_mount_namespace;
use csi_core::mount::{Bind, Detach, LoopDevice, Mount, MountAttributes, Target, Unmount, flow};
use csi_core::proto::v1;
use tonic::transport::Channel;
use v1::controller_client::ControllerClient;
use v1::node_client::NodeClient;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};

const MIB: i64 = 1 << 20;

// spec: node-stage-volume.repeated-is-ok, node-stage-volume.usable-as-described, node-unstage-volume.undoes
// spec: node-publish-volume.creates-target, node-publish-volume.directory-at-target
// spec: node-publish-volume.usable-as-described, node-unpublish-volume.undoes
// spec: node-unpublish-volume.deletes-target
#[test]
fn ext4() {
    private_mount_namespace(|| live(Some("ext4")));
}

#[test]
fn xfs() {
    private_mount_namespace(|| live(Some("xfs")));
}

#[test]
fn btrfs() {
    private_mount_namespace(|| live(Some("btrfs")));
}

// spec: node-stage-volume.usable-as-described, node-publish-volume.device-at-target
#[test]
fn raw() {
    private_mount_namespace(|| live(None));
}

/// A root with the driver in it. At the end the driver is killed and the loop devices of its images
/// are detached.
///
/// The root is a tmpfs with bind mounts of the system's directories. So it is unmounted as a whole and only
/// its empty mount point is removed: a recursive delete would delete through the bind mounts.
struct Chroot {
    root: PathBuf,
    driver: Child,
}

impl Chroot {
    fn start() -> Self {
        let root = tempfile::tempdir().unwrap().keep();
        Mount::new("tmpfs", "root").at(&Target::new(&root).unwrap()).unwrap();
        for (what, needed) in [("dev", true), ("proc", true), ("sys", true), ("usr", true), ("etc", true)]
            .into_iter()
            .chain(["lib", "lib64", "bin", "sbin"].map(|what| (what, false)))
        {
            let source = Path::new("/").join(what);
            match source.read_link() {
                Ok(link) => std::os::unix::fs::symlink(link, root.join(what)).unwrap(),
                Err(_) if !needed && !source.exists() => {}
                Err(_) => {
                    let target = Target::new(root.join(what)).unwrap();
                    target.create_dir().unwrap();
                    Bind::new(&source).attributes(MountAttributes::RDONLY).recursive().at(&target).unwrap();
                }
            }
        }
        for own in ["pool", "pods", "staging", "tmp", "run"] {
            std::fs::create_dir(root.join(own)).unwrap();
        }
        // Bound, not copied: a copy that another thread's child still has open for writing cannot be
        // executed (ETXTBSY).
        let program = Target::new(root.join("block")).unwrap();
        program.create_file().unwrap();
        Bind::new(Path::new(env!("CARGO_BIN_EXE_block"))).at(&program).unwrap();
        let driver = Command::new("chroot")
            .args([root.as_os_str(), "/block".as_ref()])
            .env("CSI_ENDPOINT", "unix:///run/csi.sock")
            .env("BLOCK_POOL", "/pool")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut this = Self { root, driver };
        let end = Instant::now() + Duration::from_secs(20);
        while std::os::unix::net::UnixStream::connect(this.path("/run/csi.sock")).is_err() {
            assert!(this.driver.try_wait().unwrap().is_none(), "the driver ended");
            assert!(Instant::now() < end, "the driver does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        this
    }

    /// A path inside the root, as the test sees it.
    fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside.trim_start_matches('/'))
    }

    fn images(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.path("/pool")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Chroot {
    fn drop(&mut self) {
        drop(self.driver.kill());
        drop(self.driver.wait());
        for inside in ["/pods/writer", "/pods/reader", "/staging"] {
            drop(Target::new(self.path(inside)).and_then(|target| flow::block::unpublish(&target)));
        }
        for image in self.images() {
            drop(LoopDevice::detach_all(image));
        }
        let whole = Target::new(&self.root).and_then(|root| Unmount::new().detach(Detach::IfBusy).at(&root));
        assert!(whole.is_ok() || std::thread::panicking(), "{whole:?}");
        drop(std::fs::remove_dir(&self.root));
    }
}

/// The drivers use the same target paths, and a read-only loop device is found again by its path. So one
/// runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn live(filesystem: Option<&str>) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let chroot = Chroot::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = format!("unix://{}", chroot.path("/run/csi.sock").display());
        let channel = tonic::transport::Endpoint::from_shared(socket).unwrap().connect_lazy();
        Orchestrator::new(channel, filesystem).live(&chroot).await;
    });
    assert!(chroot.images().is_empty());
}

struct Orchestrator {
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    capability: v1::VolumeCapability,
}

impl Orchestrator {
    fn new(channel: Channel, filesystem: Option<&str>) -> Self {
        let access = match filesystem {
            Some(fs_type) => {
                AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..Default::default() })
            }
            None => AccessType::Block(BlockVolume {}),
        };
        Self {
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel),
            capability: v1::VolumeCapability {
                access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter as i32 }),
                access_type: Some(access),
            },
        }
    }

    async fn live(&mut self, chroot: &Chroot) {
        let range = |required_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
        let create = v1::CreateVolumeRequest {
            name: "vol".into(),
            capacity_range: range(320 * MIB),
            volume_capabilities: vec![self.capability.clone()],
            ..Default::default()
        };
        let volume = self.controller.create_volume(create).await.unwrap().into_inner().volume.unwrap();
        assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("vol", 320 * MIB));

        for _ in 0..2 {
            self.stage().await;
            self.publish("writer", false).await;
            self.publish("reader", true).await;
        }
        self.use_it(chroot);
        let before = self.total().await;

        let expand = v1::ControllerExpandVolumeRequest {
            volume_id: "vol".into(),
            capacity_range: range(640 * MIB),
            ..Default::default()
        };
        let expanded = self.controller.controller_expand_volume(expand).await.unwrap().into_inner();
        assert_eq!((expanded.capacity_bytes, expanded.node_expansion_required), (640 * MIB, true));
        let grow = v1::NodeExpandVolumeRequest {
            volume_id: "vol".into(),
            volume_path: "/pods/writer".into(),
            ..Default::default()
        };
        if let Err(status) = self.node.node_expand_volume(grow).await {
            // A mounted ext4 grows only with CAP_SYS_RESOURCE. Without it, it grows at the next stage.
            assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("CAP_SYS_RESOURCE"), "{status}");
            self.take_down().await;
            self.stage().await;
            self.publish("writer", false).await;
            self.publish("reader", true).await;
        }
        assert!(self.total().await > before * 3 / 2, "it is larger");
        self.use_it(chroot);

        let delete = || v1::DeleteVolumeRequest { volume_id: "vol".into(), ..Default::default() };
        let refused = self.controller.delete_volume(delete()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
        self.take_down().await;
        self.take_down().await;
        assert_eq!(std::fs::read_dir(chroot.path("/pods")).unwrap().count(), 0);
        if let Some(AccessType::Mount(_)) = self.capability.access_type {
            self.lose_content(chroot).await;
        } else {
            self.lose_image(chroot).await;
            return;
        }
        for _ in 0..2 {
            self.controller.delete_volume(delete()).await.unwrap();
        }
    }

    /// An image that had a filesystem and now reads as blank is not formatted.
    async fn lose_content(&mut self, chroot: &Chroot) {
        let image = std::fs::File::options().write(true).open(chroot.path("/pool/vol")).unwrap();
        let size = image.metadata().unwrap().len();
        image.set_len(0).unwrap();
        image.set_len(size).unwrap();
        let refused = self.try_to_stage().await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("must already have content"), "{refused}");
    }

    /// If the image is deleted by hand, its loop device is still detached.
    async fn lose_image(&mut self, chroot: &Chroot) {
        let image = chroot.path("/pool/vol");
        let devices = || LoopDevice::find(&image).unwrap().len();
        self.stage().await;
        std::fs::remove_file(&image).unwrap();
        assert_eq!(devices(), 1);
        self.take_down().await;
        assert_eq!(devices(), 0);
        let delete = v1::DeleteVolumeRequest { volume_id: "vol".into(), ..Default::default() };
        self.controller.delete_volume(delete).await.unwrap();
    }

    /// Writes to the volume and reads it back. Checks that the read-only target refuses a write.
    fn use_it(&self, chroot: &Chroot) {
        let inside = |target: &str| match self.capability.access_type {
            Some(AccessType::Block(_)) => chroot.path(target),
            _ => chroot.path(target).join("file"),
        };
        let (writer, reader) = (inside("/pods/writer"), inside("/pods/reader"));
        let file =
            std::fs::File::options().write(true).create(writer != chroot.path("/pods/writer")).open(&writer);
        let mut file = file.unwrap();
        std::io::Write::write_all(&mut file, b"data of the workload").unwrap();
        file.sync_all().unwrap();
        assert_eq!(&self.read(&reader)[..4], b"data");
        // Linux opens a read-only device for writing, and refuses the write.
        let opened = std::fs::File::options().write(true).open(&reader);
        let refused = opened.and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 4096]));
        refused.expect_err("published read-only");
    }

    /// Reads a raw device past its page cache (O_DIRECT): a read-only publish is a separate device, whose
    /// cache can contain older data.
    fn read(&self, path: &Path) -> Vec<u8> {
        let raw = matches!(self.capability.access_type, Some(AccessType::Block(_)));
        let (flags, unit) = if raw { (nix::libc::O_DIRECT, 4096) } else { (0, 1) };
        let mut memory = vec![0; 2 * 4096];
        let start = memory.as_ptr().align_offset(unit);
        let mut file = std::fs::File::options().read(true).custom_flags(flags).open(path).unwrap();
        let length = std::io::Read::read(&mut file, &mut memory[start..start + 4096]).unwrap();
        memory[start..start + length].to_vec()
    }

    async fn stage(&mut self) {
        self.try_to_stage().await.unwrap();
    }

    async fn try_to_stage(&mut self) -> Result<(), tonic::Status> {
        let stage = v1::NodeStageVolumeRequest {
            volume_id: "vol".into(),
            staging_target_path: "/staging".into(),
            volume_capability: Some(self.capability.clone()),
            ..Default::default()
        };
        self.node.node_stage_volume(stage).await.map(drop)
    }

    async fn publish(&mut self, target: &str, readonly: bool) {
        let publish = v1::NodePublishVolumeRequest {
            volume_id: "vol".into(),
            staging_target_path: "/staging".into(),
            target_path: format!("/pods/{target}"),
            volume_capability: Some(self.capability.clone()),
            readonly,
            ..Default::default()
        };
        self.node.node_publish_volume(publish).await.unwrap();
    }

    async fn total(&mut self) -> i64 {
        let stats = v1::NodeGetVolumeStatsRequest {
            volume_id: "vol".into(),
            volume_path: "/pods/reader".into(),
            ..Default::default()
        };
        let usage = self.node.node_get_volume_stats(stats).await.unwrap().into_inner().usage;
        usage[0].total
    }

    async fn take_down(&mut self) {
        for target in ["writer", "reader"] {
            let unpublish = v1::NodeUnpublishVolumeRequest {
                volume_id: "vol".into(),
                target_path: format!("/pods/{target}"),
            };
            self.node.node_unpublish_volume(unpublish).await.unwrap();
        }
        let unstage =
            v1::NodeUnstageVolumeRequest { volume_id: "vol".into(), staging_target_path: "/staging".into() };
        self.node.node_unstage_volume(unstage).await.unwrap();
    }
}
