//! Shared by the tests: a cluster, the driver with one of its clients on a socket, and short forms of the calls.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod scenarios;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use csi_core::client::{Client, VolumeUse};
use csi_core::proto::v1;
use csi_core::testing::serve;
use csi_core::{Plugin, Spec};
use test_support::ceph::outside::Outside;
use test_support::ceph::{Ceph, Cluster, IMAGE_NODE, IMAGE_PROVISIONER, IMAGES, NODE, PROVISIONER};
use test_support::driver::{on_tmpfs, parse};
use test_support::process::{fuse_daemons, kill};
pub(crate) use test_support::requests::{map, of_snapshot, of_volume};
use tonic::{Code, Status};
use v1::volume_capability::access_mode::Mode;

pub(crate) use ceph::CephClient;

pub(crate) type Answer<T> = Result<T, Status>;

pub(crate) const MIB: i64 = 1 << 20;

/// How long a step of the cluster can take, under slow emulation.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// The driver, configured by flags.
pub(crate) fn driver(monitor: &str, client: CephClient, attached: &Path) -> Plugin {
    let name = match client {
        CephClient::Fuse => "fuse",
        CephClient::Kernel => "kernel",
        CephClient::Rbd => "rbd",
    };
    let attached = attached.to_str().unwrap();
    let ceph = ["--monitors", monitor, "--client", name, "--pool", IMAGES, "--attached", attached];
    ceph::plugin(&parse(&["--node-id=node-1"]), &parse(&ceph)).spec(Spec::V1_13)
}

pub(crate) fn secrets(user: &str, key: &str) -> BTreeMap<String, String> {
    map(&[("userID", user), ("userKey", key)])
}

/// A cluster, and the driver that uses it.
pub(crate) struct Bed {
    pub(crate) ceph: Box<dyn Cluster>,
    pub(crate) client: Client,
    pub(crate) which: CephClient,
    pub(crate) directory: PathBuf,
    provisioner: BTreeMap<String, String>,
    pub(crate) node: BTreeMap<String, String>,
}

/// One cluster at a time: they share this machine's processors.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test in a mount namespace of its own, and checks that it leaves no mount and no process.
pub(crate) fn on_bed(which: CephClient, test: impl AsyncFnOnce(&Bed) + Send) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // The cluster's files are in a tree of their own, in which nothing is mounted.
    let files = tempfile::tempdir().unwrap();
    on_tmpfs(async |directory| {
        let _no_daemons = NoDaemons(directory);
        let begun = Instant::now();
        let ceph: Box<dyn Cluster> = match which {
            CephClient::Fuse => Box::new(Ceph::start(files.path())),
            CephClient::Kernel | CephClient::Rbd => Box::new(Outside::start()),
        };
        let users = match which {
            CephClient::Fuse | CephClient::Kernel => [PROVISIONER, NODE],
            CephClient::Rbd => {
                ceph.make_images();
                [IMAGE_PROVISIONER, IMAGE_NODE]
            }
        };
        println!("the cluster is ready after {:.0?}", begun.elapsed());
        let client = serve(driver(&ceph.monitor().to_string(), which, files.path()), directory).await;
        let [provisioner, node] = users.map(|user| secrets(user, &ceph.key(user)));
        let directory = directory.to_owned();
        let bed = Bed { ceph, client: client.deadline(LIMIT), which, directory, provisioner, node };
        test(&bed).await;
        bed.nothing_is_left();
    });
}

/// Kills the daemons of a failed test.
struct NoDaemons<'a>(&'a Path);

impl Drop for NoDaemons<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill(&fuse_daemons(self.0));
        }
    }
}

impl Bed {
    pub(crate) fn capability(&self) -> v1::VolumeCapability {
        v1::VolumeCapability::mount(match self.which {
            CephClient::Fuse | CephClient::Kernel => Mode::MultiNodeMultiWriter,
            CephClient::Rbd => Mode::SingleNodeWriter,
        })
    }

    /// Creates a volume, and waits until the cluster has copied its content.
    pub(crate) async fn create(
        &self,
        name: &str,
        bytes: i64,
        source: Option<v1::VolumeContentSource>,
    ) -> Answer<v1::Volume> {
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![self.capability()],
            secrets: self.provisioner.clone(),
            volume_content_source: source,
            ..Default::default()
        };
        let end = Instant::now() + LIMIT;
        loop {
            match self.client.call(request.clone()).await {
                Ok(answer) => return Ok(answer.volume.unwrap()),
                Err(status) if status.code() != Code::Aborted || Instant::now() > end => return Err(status),
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    pub(crate) async fn delete(&self, volume_id: &str) -> Answer<()> {
        let secrets = self.provisioner.clone();
        let request = v1::DeleteVolumeRequest { volume_id: volume_id.to_owned(), secrets };
        self.client.call(request).await.map(drop)
    }

    pub(crate) async fn expand(&self, volume_id: &str, bytes: i64) -> Answer<i64> {
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            secrets: self.provisioner.clone(),
            ..Default::default()
        };
        let answer = self.client.call(request).await?;
        assert_eq!(answer.node_expansion_required, self.which == CephClient::Rbd);
        Ok(answer.capacity_bytes)
    }

    pub(crate) async fn snapshot(&self, name: &str, volume_id: &str) -> Answer<v1::Snapshot> {
        let request = v1::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume_id.to_owned(),
            secrets: self.provisioner.clone(),
            ..Default::default()
        };
        Ok(self.client.call(request).await?.snapshot.unwrap())
    }

    pub(crate) async fn delete_snapshot(&self, snapshot_id: &str) -> Answer<()> {
        let secrets = self.provisioner.clone();
        let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot_id.to_owned(), secrets };
        self.client.call(request).await.map(drop)
    }

    /// A volume on the node, with a staging directory.
    pub(crate) fn used(&self, volume: &v1::Volume) -> Use<'_> {
        self.used_as(volume, self.capability())
    }

    pub(crate) fn used_as(&self, volume: &v1::Volume, capability: v1::VolumeCapability) -> Use<'_> {
        let staging = self.directory.join(format!("staging-{}", volume.volume_id));
        fs::create_dir(&staging).unwrap();
        let mut on_node = VolumeUse::new(&volume.volume_id, capability).staged_at(&staging);
        on_node.volume_context = volume.volume_context.clone();
        let target = self.directory.join(format!("target-{}", volume.volume_id));
        Use { bed: self, volume: on_node, staging, target, secrets: self.node.clone() }
    }

    fn nothing_is_left(&self) {
        let table = csi_mount::mounts().unwrap();
        let is_below = |one: &Path| one.starts_with(&self.directory) && one != self.directory;
        let left: Vec<_> = table.iter().filter(|one| is_below(&one.mount_point)).collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(fuse_daemons(&self.directory), [0; 0], "no daemon is left");
    }

    /// The keys of both users are in no argument and no environment of a process, and not in the mount table.
    pub(crate) fn keys_are_nowhere(&self) {
        let keys = [&self.provisioner, &self.node].map(|secrets| secrets["userKey"].clone());
        let mut seen = vec![fs::read("/proc/thread-self/mountinfo").unwrap()];
        let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        for process in all.filter(|path| path.join("cmdline").exists()) {
            // A process can have ended meanwhile.
            seen.extend(["cmdline", "environ"].map(|file| fs::read(process.join(file)).unwrap_or_default()));
        }
        for (text, key) in seen.iter().flat_map(|text| keys.iter().map(move |key| (text, key))) {
            assert!(!String::from_utf8_lossy(text).contains(key), "{}", String::from_utf8_lossy(text));
        }
    }
}

/// A volume, its places, and its user.
pub(crate) struct Use<'a> {
    bed: &'a Bed,
    pub(crate) volume: VolumeUse,
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) secrets: BTreeMap<String, String>,
}

impl Use<'_> {
    pub(crate) async fn stage(&self) -> Answer<()> {
        let mut request = self.volume.node_stage_volume();
        request.secrets = self.secrets.clone();
        self.bed.client.call(request).await.map(drop)
    }

    pub(crate) async fn publish_at(&self, target: &Path) -> Answer<()> {
        let mut request = self.volume.node_publish_volume(target);
        request.secrets = self.secrets.clone();
        self.bed.client.call(request).await.map(drop)
    }

    pub(crate) async fn bring(&self) {
        self.stage().await.unwrap();
        self.publish_at(&self.target).await.unwrap();
    }

    /// The node's part of an expansion.
    pub(crate) async fn expand(&self, bytes: i64) -> Answer<()> {
        self.bed.client.call(self.volume.node_expand_volume(&self.target, bytes)).await.map(drop)
    }

    /// The size in bytes.
    pub(crate) async fn stats(&self) -> Answer<i64> {
        let request = self.volume.node_get_volume_stats(&self.target);
        Ok(self.bed.client.call(request).await?.usage[0].total)
    }

    /// The reasons why the volume is not healthy.
    pub(crate) async fn health(&self) -> Answer<Vec<String>> {
        let request = v1::NodeGetVolumeHealthRequest {
            volume_id: self.volume.volume_id.clone(),
            volume_publish_path: self.target.display().to_string(),
            staging_target_path: self.staging.display().to_string(),
        };
        let answer = self.bed.client.call(request).await?;
        let entries = answer.volume_health.unwrap().health_statuses;
        Ok(entries.into_iter().map(|entry| entry.reason).collect())
    }

    pub(crate) async fn unpublish_at(&self, target: &Path) -> Answer<()> {
        self.volume.unpublish(&self.bed.client, &[target]).await
    }

    pub(crate) async fn unstage(&self) -> Answer<()> {
        self.volume.unstage(&self.bed.client).await
    }

    pub(crate) async fn take_away(&self) {
        self.unpublish_at(&self.target).await.unwrap();
        self.unstage().await.unwrap();
        fs::remove_dir(&self.staging).unwrap();
    }
}
