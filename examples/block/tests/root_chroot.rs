//! The driver as a separate process in an empty root with only the system's tools and devices mounted in: a
//! volume's whole life on each filesystem, and raw. A driver built with `-C target-feature=+crt-static`
//! itself needs nothing from that root. Needs root.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use csi_core::client::{self, Client, VolumeUse};
use csi_core::mount::internal::LoopDevice;
use csi_core::mount::{Bind, MountAttributes, Target, internal};
use csi_core::proto::v1;
use test_support::driver::{Driver, on_tmpfs};
use tonic::{Code, Status};
use v1::volume_capability::{AccessType, MountVolume, access_mode::Mode};

const MIB: i64 = 1 << 20;

// spec: node-stage-volume.repeated-is-ok, node-stage-volume.usable-as-described, node-unstage-volume.undoes
// spec: node-publish-volume.creates-target, node-publish-volume.directory-at-target
// spec: node-publish-volume.usable-as-described, node-unpublish-volume.undoes
// spec: node-unpublish-volume.deletes-target
#[test]
fn ext4() {
    live(Some("ext4"));
}

#[test]
fn xfs() {
    live(Some("xfs"));
}

#[test]
fn btrfs() {
    live(Some("btrfs"));
}

// spec: node-stage-volume.usable-as-described, node-publish-volume.device-at-target
#[test]
fn raw() {
    live(None);
}

/// A root with the driver in it. At the end the driver is killed and the loop devices of its images
/// are detached.
struct Chroot<'a> {
    root: &'a Path,
    driver: Driver,
}

impl<'a> Chroot<'a> {
    async fn start(root: &'a Path) -> Self {
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
        let mut command = Command::new("chroot");
        command.args([root.as_os_str(), "/block".as_ref()]);
        command.env("CSI_ENDPOINT", "unix:///run/csi.sock").env("BLOCK_POOL", "/pool");
        Self { root, driver: Driver::start(command, root.join("run/csi.sock")).await }
    }

    /// A path inside the root, as the test sees it.
    fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside.trim_start_matches('/'))
    }

    fn images(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.path("/pool")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Chroot<'_> {
    fn drop(&mut self) {
        self.driver.kill();
        for inside in [WRITER, READER, STAGING] {
            drop(Target::new(self.path(inside)).and_then(|target| internal::flow::block::unpublish(&target)));
        }
        for image in self.images() {
            drop(LoopDevice::detach_all(image));
        }
    }
}

/// The drivers use the same target paths, and a read-only loop device is found again by its path. So one
/// runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// As the driver sees them.
const STAGING: &str = "/staging";
const WRITER: &str = "/pods/writer";
const READER: &str = "/pods/reader";

fn live(filesystem: Option<&str>) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let capability = match filesystem {
        Some(fs_type) => v1::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: fs_type.to_owned(),
                ..Default::default()
            })),
            ..v1::VolumeCapability::mount(Mode::SingleNodeMultiWriter)
        },
        None => v1::VolumeCapability::block(Mode::SingleNodeMultiWriter),
    };
    on_tmpfs(async |root| {
        let chroot = Chroot::start(root).await;
        let life = Life {
            client: chroot.driver.client(),
            volume: VolumeUse::new("vol", capability).staged_at(STAGING),
            targets: [client::Target::new(WRITER), client::Target::new(READER).read_only()],
            is_raw: filesystem.is_none(),
            chroot,
        };
        life.live().await;
        assert!(life.chroot.images().is_empty());
    });
}

struct Life<'a> {
    chroot: Chroot<'a>,
    client: Client,
    volume: VolumeUse,
    targets: [client::Target; 2],
    is_raw: bool,
}

impl Life<'_> {
    async fn live(&self) {
        let create = v1::CreateVolumeRequest {
            name: "vol".into(),
            capacity_range: Some(v1::CapacityRange { required_bytes: 320 * MIB, limit_bytes: 0 }),
            volume_capabilities: vec![self.volume.capability.clone()],
            ..Default::default()
        };
        let volume = self.client.call(create).await.unwrap().volume.unwrap();
        assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("vol", 320 * MIB));

        for _ in 0..2 {
            self.bring_up().await;
        }
        self.use_it();
        let before = self.total().await;

        let expand = self.volume.controller_expand_volume(640 * MIB);
        let expanded = self.client.call(expand).await.unwrap();
        assert_eq!((expanded.capacity_bytes, expanded.node_expansion_required), (640 * MIB, true));
        let grow = self.volume.node_expand_volume(Path::new(WRITER), 640 * MIB);
        if let Err(status) = self.client.call(grow).await {
            // A mounted ext4 grows only with CAP_SYS_RESOURCE. Without it, it grows at the next stage.
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("CAP_SYS_RESOURCE"), "{status}");
            self.take_down().await;
            self.bring_up().await;
        }
        assert!(self.total().await > before * 3 / 2, "it is larger");
        self.use_it();

        let refused = self.delete().await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        self.take_down().await;
        self.take_down().await;
        assert_eq!(std::fs::read_dir(self.chroot.path("/pods")).unwrap().count(), 0);
        if self.is_raw {
            self.lose_image().await;
        } else {
            self.lose_content().await;
        }
        for _ in 0..2 {
            self.delete().await.unwrap();
        }
    }

    /// An image that had a filesystem and now reads as blank is not formatted.
    async fn lose_content(&self) {
        let image = File::options().write(true).open(self.chroot.path("/pool/vol")).unwrap();
        let size = image.metadata().unwrap().len();
        image.set_len(0).unwrap();
        image.set_len(size).unwrap();
        let refused = self.volume.stage(&self.client).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("must already have content"), "{refused}");
    }

    /// If the image is deleted by hand, its loop device is still detached.
    async fn lose_image(&self) {
        let image = self.chroot.path("/pool/vol");
        let devices = || LoopDevice::find(&image).unwrap().len();
        self.volume.stage(&self.client).await.unwrap();
        std::fs::remove_file(&image).unwrap();
        assert_eq!(devices(), 1);
        self.take_down().await;
        assert_eq!(devices(), 0);
    }

    /// Writes to the volume and reads it back. Checks that the read-only target refuses a write.
    fn use_it(&self) {
        let inside = |target: &str| {
            let path = self.chroot.path(target);
            if self.is_raw { path } else { path.join("file") }
        };
        let reader = inside(READER);
        let mut file = File::options().write(true).create(!self.is_raw).open(inside(WRITER)).unwrap();
        file.write_all(b"data of the workload").unwrap();
        file.sync_all().unwrap();
        assert_eq!(&self.read(&reader)[..4], b"data");
        // Linux opens a read-only device for writing, and refuses the write.
        let opened = File::options().write(true).open(&reader);
        let refused = opened.and_then(|mut file| file.write_all(&[0; 4096]));
        refused.expect_err("published read-only");
    }

    /// Reads a raw device past its page cache (O_DIRECT): a read-only publish is a separate device, whose
    /// cache can contain older data.
    fn read(&self, path: &Path) -> Vec<u8> {
        let (flags, unit) = if self.is_raw { (nix::libc::O_DIRECT, 4096) } else { (0, 1) };
        let mut memory = vec![0; 2 * 4096];
        let start = memory.as_ptr().align_offset(unit);
        let mut file = File::options().read(true).custom_flags(flags).open(path).unwrap();
        let length = file.read(&mut memory[start..start + 4096]).unwrap();
        memory[start..start + length].to_vec()
    }

    async fn bring_up(&self) {
        self.volume.stage(&self.client).await.unwrap();
        self.volume.publish(&self.client, &self.targets).await.unwrap();
    }

    async fn take_down(&self) {
        self.volume.unpublish(&self.client, &self.targets).await.unwrap();
        self.volume.unstage(&self.client).await.unwrap();
    }

    async fn total(&self) -> i64 {
        let stats = self.volume.node_get_volume_stats(Path::new(READER));
        self.client.call(stats).await.unwrap().usage[0].total
    }

    async fn delete(&self) -> Result<(), Status> {
        self.client.call(self.volume.delete_volume()).await.map(drop)
    }
}
