//! Directories with a size: created, measured and grown by the ready-made node plugin, on a simulated node. Needs no
//! root.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::sync::Arc;

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::ErrorKind;
use csi_core::mount::testing::SimulatedNode;
use csi_core::node_plugins::grow_directory;
use csi_core::testing::serve;
use csi_core::{Plugin, Result, prelude::*};
use csi_proto::v1::{self, VolumeCapability as Wire, volume_capability::access_mode::Mode};
use tonic::Code;

const MIB: i64 = 1 << 20;

struct Dirs(PathBuf);

#[async_trait]
impl Directories for Dirs {
    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join(id.as_file_name()?))
    }
}

#[async_trait]
impl Controller for Dirs {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.directory(id).await?.exists().then(|| Volume::new(id.clone(), 0)))
    }
    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount()
    }
}

#[async_trait]
impl CreateDeleteVolume for Dirs {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        let size = request.capacity_range.choose(1 << 30, 1 << 20)?;
        Ok(Volume::new(id.clone(), create_directory(request.host(), self.directory(&id).await?, size).await?))
    }
    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        remove_tree(request.host(), self.directory(&request.volume_id).await?).await
    }
}

#[async_trait]
impl ControllerExpandVolume for Dirs {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let size = request.capacity_range.choose(0, 1 << 20)?;
        let path = self.directory(&request.volume_id).await?;
        grow_directory(request.host(), path, size).await.map(Expanded::complete)
    }
}

fn create(name: &str, required_bytes: i64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes: 2 * required_bytes }),
        volume_capabilities: vec![Wire::mount(Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

#[tokio::test]
async fn a_size_is_enforced_measured_and_grown() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    let pods = directory.path().canonicalize().unwrap().join("pods");
    std::fs::create_dir_all(pods.join("1")).unwrap();
    node.create_dir(pods.join("1"));
    let target = pods.join("1/mount");
    let dirs = Arc::new(Dirs(directory.path().canonicalize().unwrap().join("volumes")));
    let plugin = Plugin::new("dirs.csi.example.org", "1")
        .volume_expansion(Expansion::Online)
        .controller(ControllerService::new(dirs.clone()).create_delete_volume())
        .node(DirectoryNode::service(dirs).expand_volume())
        .host(node.clone());
    let client = serve(plugin, &directory).await;

    let made = client.call(create("v", 4 * MIB)).await.unwrap().volume.unwrap();
    assert_eq!(made.capacity_bytes, 4 * MIB);
    assert_eq!(client.call(create("v", 3 * MIB)).await.unwrap().volume.unwrap().capacity_bytes, 4 * MIB);
    let smaller = client.call(create("v", MIB)).await.unwrap_err();
    assert_eq!(smaller.code(), Code::AlreadyExists, "{smaller}");

    let mut volume = VolumeUse::new(made.volume_id, Wire::mount(Mode::SingleNodeWriter));
    let targets = [Target::new(&target)];
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    let write = |mebibytes: usize| node.write(target.join("file"), vec![1; mebibytes << 20]);
    write(2).unwrap();
    let full = write(5).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::QuotaExceeded, "{full}");
    let stats = client.call(volume.node_get_volume_stats(&target)).await.unwrap().usage;
    let [bytes, inodes] = stats.as_slice() else { panic!("{stats:?}") };
    assert_eq!((bytes.total, bytes.used, bytes.available), (4 * MIB, 2 * MIB + 4096, 2 * MIB - 4096));
    assert_eq!((inodes.total, inodes.used, inodes.available), (1024, 2, 1022));

    // The kubelet's directory can be a symbolic link.
    std::os::unix::fs::symlink(&pods, directory.path().join("link")).unwrap();
    let linked = directory.path().join("link/1/mount");
    let grow = |size: i64| volume.node_expand_volume(&linked, size);
    assert_eq!(client.call(grow(8 * MIB - 1)).await.unwrap().capacity_bytes, 8 * MIB);
    assert_eq!(client.call(grow(MIB)).await.unwrap().capacity_bytes, 8 * MIB, "it never shrinks");
    write(5).unwrap();
    let elsewhere = client.call(volume.node_expand_volume("/pods/2".as_ref(), MIB)).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::NotFound, "{elsewhere}");

    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    client.call(volume.delete_volume()).await.unwrap();
    assert_eq!(client.call(create("v", MIB)).await.unwrap().volume.unwrap().capacity_bytes, MIB, "a new one");
}

#[tokio::test]
async fn the_controller_grows_a_volume_that_exists() {
    let directory = tempfile::tempdir().unwrap();
    let dirs = Arc::new(Dirs(directory.path().canonicalize().unwrap().join("volumes")));
    let controller = ControllerService::new(dirs).create_delete_volume().expand_volume(Expansion::Online);
    let plugin = Plugin::new("dirs.csi.example.org", "1").controller(controller);
    let client = serve(plugin.host(SimulatedNode::new()), &directory).await;
    let grow = v1::ControllerExpandVolumeRequest {
        volume_id: "v".to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 8 * MIB, limit_bytes: 0 }),
        ..Default::default()
    };
    let missing = client.call(grow.clone()).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound, "{missing}");
    client.call(create("v", 4 * MIB)).await.unwrap();
    assert_eq!(client.call(grow).await.unwrap().capacity_bytes, 8 * MIB);
}

#[tokio::test]
async fn a_size_that_cannot_be_enforced_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    let host = node.host();
    let path = directory.path().join("volumes/v");
    node.fail_next(ErrorKind::Unsupported);
    assert_eq!(create_directory(&host, &path, 1 << 20).await.unwrap(), 0);
    assert!(path.is_dir());
    assert_eq!(grow_directory(&host, &path, 2 << 20).await.unwrap(), 2 << 20, "nothing limits it");
    node.fail_next(ErrorKind::Io);
    create_directory(&host, directory.path().join("volumes/w"), 1 << 20).await.unwrap_err();
    assert!(!directory.path().join("volumes/w").exists());
}
