//! Volumes that an earlier driver of the same name has mounted, as mount-utils of Go does and beside the kubelet's files,
//! are taken over. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::mount::flow::shared::SharedSource;
use csi_core::mount::mounts;
use csi_core::node::LeftMount;
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::{Served, block_capability, map, mount_capability, mount_with, refused, stats};
use crate::private::{Disk, on_tmpfs};

const DRIVER: &str = "old.csi.example.org";

/// The kubelet's directory.
struct Kubelet<'p>(&'p Path);

impl Kubelet<'_> {
    fn record(&self, directory: &Path, driver: &str, volume_id: &str) {
        let name = "pvc-1";
        let text = format!(
            r#"{{"attachmentID":"csi-1","driverName":"{driver}","nodeName":"n","specVolID":"{name}","volumeHandle":"{volume_id}","volumeLifecycleMode":"Persistent"}}"#
        );
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("vol_data.json"), text).unwrap();
    }

    /// A staging path, as the kubelet makes it.
    fn staging(&self, volume_id: &str) -> PathBuf {
        let directory = self.0.join("plugins/kubernetes.io/csi").join(DRIVER).join("1a2b");
        self.record(&directory, DRIVER, volume_id);
        directory.join("globalmount")
    }

    fn target(&self, pod: &str, driver: &str, volume_id: &str) -> PathBuf {
        let directory = self.0.join("pods").join(pod).join("volumes/kubernetes.io~csi/pvc-1");
        self.record(&directory, driver, volume_id);
        directory.join("mount")
    }

    /// A target of a raw volume.
    fn device_target(&self, volume_id: &str) -> PathBuf {
        let devices = self.0.join("plugins/kubernetes.io/csi/volumeDevices");
        self.record(&devices.join("pvc-1/data"), DRIVER, volume_id);
        let directory = devices.join("publish/pvc-1");
        fs::create_dir_all(&directory).unwrap();
        directory.join("pod-1")
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Mounts as mount-utils does.
fn mount(fs_type: &str, source: &Path, at: &Path) {
    fs::create_dir_all(at).unwrap();
    run("mount", &["-t", fs_type, "-o", "defaults", source.to_str().unwrap(), at.to_str().unwrap()]);
}

fn bind(source: &Path, at: &Path) {
    run("mount", &["-o", "bind", source.to_str().unwrap(), at.to_str().unwrap()]);
}

fn bind_directory(source: &Path, at: &Path) {
    fs::create_dir_all(at).unwrap();
    bind(source, at);
}

fn mounted(at: &Path) -> usize {
    mounts().unwrap().iter().filter(|entry| entry.mount_point == at).count()
}

/// A disk that the driver finds only by what it has stored about a stage.
struct Disks {
    place: PathBuf,
    device: PathBuf,
}

#[async_trait]
impl BlockDevices for Disks {
    fn attachments_directory(&self) -> Option<PathBuf> {
        Some(self.place.join("attachments"))
    }
    async fn attach(&self, _: &Attachment) -> Result<PathBuf> {
        Ok(self.device.clone())
    }
    async fn device(&self, _: &Attachment) -> Result<Option<PathBuf>> {
        Ok(Some(self.device.clone()))
    }
    async fn detach(&self, volume: &Attachment) -> Result<()> {
        fs::write(self.place.join("detach"), "asked").unwrap();
        volume.publish_context.require("lun").map(drop)
    }
}

async fn serve_disks(place: &Path, device: &Path, adopts: bool) -> Served {
    let disks = Disks { place: place.to_owned(), device: device.to_owned() };
    let service = BlockNode::service(Arc::new(disks));
    let service = if adopts { service.adopt(|_| Ok(())) } else { service };
    Served::start(Plugin::new(DRIVER, "2").volume_roots([place]).node(service)).await
}

#[test]
fn a_block_volume_lives_on_and_ends() {
    for filesystem in ["ext4", "xfs"] {
        on_tmpfs(async |place| {
            let disk = Disk::with_size(&place.join("image"), 400 << 20);
            run(&format!("mkfs.{filesystem}"), &["-q", disk.path().to_str().unwrap()]);
            let kubelet = Kubelet(place);
            let staging = kubelet.staging("v");
            let target = kubelet.target("pod-1", DRIVER, "v");
            mount(filesystem, disk.path(), &staging);
            bind_directory(&staging, &target);
            fs::write(target.join("data"), "precious").unwrap();
            let as_filesystem = MountVolume { fs_type: filesystem.into(), ..Default::default() };
            let mut volume = VolumeUse::new("v", mount_with(1, as_filesystem)).staged_at(&staging);
            volume.publish_context = map(&[("lun", "3")]);

            let served = serve_disks(place, disk.path(), false).await;
            refused(served.call(volume.node_unpublish_volume(&target)).await, Code::FailedPrecondition);
            drop(served);

            let served = serve_disks(place, disk.path(), true).await;
            let usage = served.call(stats("v", target.to_str().unwrap())).await.unwrap().usage;
            assert!(usage[0].total > 300 << 20, "{usage:?}");
            let expand = volume.node_expand_volume(&target, 1);
            assert_eq!(served.call(expand).await.unwrap().capacity_bytes, 400 << 20);
            // A second pod, and the kubelet's repeat of everything after its restart.
            let second = place.join("pods/pod-2/volumes/kubernetes.io~csi/pvc-1/mount");
            fs::create_dir_all(second.parent().unwrap()).unwrap();
            served.call(volume.node_publish_volume(&second)).await.unwrap();
            served.call(volume.node_stage_volume()).await.unwrap();
            served.call(volume.node_publish_volume(&target)).await.unwrap();
            assert_eq!(fs::read_to_string(second.join("data")).unwrap(), "precious");
            assert_eq!([&staging, &target, &second].map(|path| mounted(path)), [1; 3]);
            drop(served);

            let served = serve_disks(place, disk.path(), true).await;
            for path in [&target, &second] {
                served.call(volume.node_unpublish_volume(path)).await.unwrap();
                assert!(!path.exists(), "{}", path.display());
            }
            served.call(volume.node_unstage_volume()).await.unwrap();
            assert_eq!(mounted(&staging), 0);
        });
    }
}

#[test]
fn a_raw_volume_ends() {
    on_tmpfs(async |place| {
        let disk = Disk::new(&place.join("image"));
        let target = Kubelet(place).device_target("v");
        fs::write(&target, "").unwrap();
        bind(disk.path(), &target);
        let volume = VolumeUse::new("v", block_capability(1)).staged_at(place.join("staging"));
        let served = serve_disks(place, disk.path(), false).await;
        refused(served.call(volume.node_unpublish_volume(&target)).await, Code::FailedPrecondition);
        drop(served);
        let served = serve_disks(place, disk.path(), true).await;
        served.call(volume.node_unpublish_volume(&target)).await.unwrap();
        assert!(!target.exists());
    });
}

/// A tmpfs stands for a server's share.
struct Shares;

#[async_trait]
impl SharedFilesystems for Shares {
    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        Ok(SharedSource::new("tmpfs", volume.volume_id.as_str()))
    }
}

/// As for a server's share: the source must be the volume's.
fn source_is_the_volumes(left: &LeftMount) -> Result<(), String> {
    if left.mount.source == left.volume_id.as_str() {
        Ok(())
    } else {
        Err(format!("its source is {}", left.mount.source.display()))
    }
}

async fn serve_shares(place: &Path) -> Served {
    let service = SharedNode::unstaged_service(Arc::new(Shares));
    let plugin = Plugin::new(DRIVER, "2").volume_roots([place]);
    Served::start(plugin.node(service.adopt(source_is_the_volumes))).await
}

#[test]
fn a_share_without_staging_ends() {
    on_tmpfs(async |place| {
        let kubelet = place.join("kubelet");
        fs::create_dir(place.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &kubelet).unwrap();
        let target = Kubelet(&kubelet).target("pod-1", DRIVER, "server:/v");
        mount("tmpfs", Path::new("server:/v"), &target);
        let volume = VolumeUse::new("server:/v", mount_capability(5));
        let served = serve_shares(&kubelet).await;
        served.call(stats("server:/v", target.to_str().unwrap())).await.unwrap();
        served.call(volume.node_unpublish_volume(&target)).await.unwrap();
        assert!(!target.exists());
    });
}

#[test]
fn what_is_not_known_to_be_the_volumes_stays() {
    on_tmpfs(async |place| {
        let kubelet = Kubelet(place);
        let another_drivers = kubelet.target("pod-1", "other.csi.example.org", "server:/v");
        let another_source = kubelet.target("pod-2", DRIVER, "server:/v");
        let covered = kubelet.target("pod-3", DRIVER, "server:/v");
        let marked = kubelet.target("pod-4", DRIVER, "server:/v");
        let without_record = place.join("pods/pod-5/volumes/kubernetes.io~csi/pvc-1/mount");
        mount("tmpfs", Path::new("server:/v"), &another_drivers);
        mount("tmpfs", Path::new("server:/w"), &another_source);
        mount("tmpfs", Path::new("server:/u"), &covered);
        mount("tmpfs", Path::new("server:/v"), &covered);
        mount("tmpfs", Path::new("server:/v"), &without_record);
        let served = serve_shares(place).await;
        served
            .call(VolumeUse::new("server:/w", mount_capability(5)).node_publish_volume(&marked))
            .await
            .unwrap();
        mount("tmpfs", Path::new("server:/v"), &marked);
        drop(served);

        let served = serve_shares(place).await;
        let volume = VolumeUse::new("server:/v", mount_capability(5));
        for path in [&another_drivers, &another_source, &covered, &marked, &without_record] {
            let before = mounted(path);
            refused(served.call(volume.node_unpublish_volume(path)).await, Code::FailedPrecondition);
            assert_eq!(mounted(path), before, "{}", path.display());
        }
    });
}

#[test]
fn a_target_that_shows_something_else_stays_and_the_rest_ends_without_a_record() {
    on_tmpfs(async |place| {
        let disk = Disk::new(&place.join("image"));
        run("mkfs.ext4", &["-q", disk.path().to_str().unwrap()]);
        let kubelet = Kubelet(place);
        let staging = kubelet.staging("v");
        let target = kubelet.target("pod-1", DRIVER, "v");
        mount("ext4", disk.path(), &staging);
        mount("tmpfs", Path::new("v"), &target);
        let volume = VolumeUse::new("v", mount_capability(1)).staged_at(&staging);
        let served = serve_disks(place, disk.path(), true).await;
        refused(served.call(volume.node_unpublish_volume(&target)).await, Code::FailedPrecondition);
        assert_eq!(mounted(&target), 1);
        served.call(volume.node_unstage_volume()).await.unwrap();
        assert!(place.join("detach").exists());
    });
}
