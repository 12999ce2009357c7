//! A storage system that attaches disks to a machine, from ControllerPublishVolume to ControllerUnpublishVolume, on a
//! simulated node: it needs no root. The node plugin is the example of `BlockDevices`.
#![cfg(all(feature = "mount", feature = "testing", target_os = "linux"))]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_conformance::{Kit, MountAccess};
use csi_core::client::{Client, Target, VolumeUse};
use csi_core::controller::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, PublishUnpublishVolume, Published,
};
use csi_core::mount::testing::SimulatedNode;
use csi_core::mount::{IdMap, MountAttributes, OwnedPath, Owner};
use csi_core::proto::v1;
use csi_core::proto::v1::volume_capability::access_mode::Mode;
use csi_core::testing::serve;
use csi_core::types::NodeId;
use tonic::Code;

include!("../docs/attached_disks.rs");

const STAGING: &str = "/var/lib/kubelet/staging/v";
const POD: &str = "/var/lib/kubelet/pods/1";

struct Disk {
    serial: String,
    size: u64,
    /// The device, while the disk is attached.
    device: Option<PathBuf>,
}

/// A storage system, and the one machine that uses it.
struct Storage {
    machine: SimulatedNode,
    machine_id: NodeId,
    disks: Mutex<BTreeMap<VolumeId, Disk>>,
    created: AtomicU32,
}

impl Storage {
    fn new() -> Arc<Self> {
        let machine = SimulatedNode::new();
        [STAGING, POD].iter().for_each(|path| machine.create_dir(path));
        let machine_id = NodeInfo::from_host_name().unwrap().node_id;
        Arc::new(Self { machine, machine_id, disks: Mutex::default(), created: AtomicU32::new(0) })
    }

    /// Attaches the disk, if it is not attached yet. Returns its device.
    fn attach(&self, disk: &mut Disk) -> PathBuf {
        let attach = || self.machine.attach_disk(&disk.serial, disk.size);
        disk.device.get_or_insert_with(attach).clone()
    }

    fn detach(&self, disk: &mut Disk) {
        if let Some(device) = disk.device.take() {
            self.machine.remove_disk(device);
        }
    }

    /// Does something with every disk.
    fn each(&self, change: impl Fn(&Self, &mut Disk)) {
        self.disks.lock().unwrap().values_mut().for_each(|disk| change(self, disk));
    }
}

#[async_trait]
impl Controller for Storage {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let disks = self.disks.lock().unwrap();
        Ok(disks.get(id).map(|disk| Volume::new(id.clone(), disk.size)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Storage {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        let size = request.capacity_range.choose(64 << 20, 1 << 20)?;
        let mut disks = self.disks.lock().unwrap();
        let disk = disks.entry(id.clone()).or_insert_with(|| {
            // The machine knows a disk by its serial number: a new volume does not have the content of a deleted one.
            let serial = format!("disk-{}", self.created.fetch_add(1, Ordering::Relaxed));
            Disk { serial, size, device: None }
        });
        Ok(Volume::new(id, disk.size))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let mut disks = self.disks.lock().unwrap();
        if disks.get(&request.volume_id).is_some_and(|disk| disk.device.is_some()) {
            return Err(Error::InUse("it is attached".into()));
        }
        disks.remove(&request.volume_id);
        Ok(())
    }
}

#[async_trait]
impl PublishUnpublishVolume for Storage {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        if request.node_id != self.machine_id {
            return Err(Error::NodeNotFound(request.node_id));
        }
        let mut disks = self.disks.lock().unwrap();
        let disk = disks.get_mut(&request.volume_id).ok_or(Error::VolumeNotFound(request.volume_id))?;
        let device = self.attach(disk).display().to_string();
        let serial = disk.serial.clone();
        Ok(Published::new([("device".to_owned(), device), ("serial".to_owned(), serial)].into()))
    }

    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        if let Some(disk) = self.disks.lock().unwrap().get_mut(&request.volume_id) {
            self.detach(disk);
        }
        Ok(())
    }
}

/// The same node plugin, with what a test changes.
struct Changed {
    disks: Disks,
    /// Whether it waits for a disk that the machine does not see yet.
    waits: bool,
    /// Whether it can't name a disk any more: its volume group is incomplete, or its target is silent.
    is_unnamed: Arc<AtomicBool>,
    /// The choice for reservations. A simulated disk has none.
    #[cfg(feature = "remote")]
    fencing: csi_core::mount::reservation::Fencing,
}

impl Changed {
    fn new(directory: &Path) -> Self {
        Self {
            disks: disks(directory),
            waits: false,
            is_unnamed: Arc::default(),
            #[cfg(feature = "remote")]
            fencing: csi_core::mount::reservation::Fencing::Off,
        }
    }
}

fn expected(volume: &Attachment) -> Result<ExpectedDevice> {
    let serial = volume.publish_context.require("serial")?;
    Ok(ExpectedDevice::new().serial(serial).wait_limit(Duration::from_secs(60)))
}

#[async_trait]
impl BlockDevices for Changed {
    #[cfg(feature = "remote")]
    fn fencing(&self) -> csi_core::mount::reservation::Fencing {
        self.fencing
    }

    fn attachments_directory(&self) -> Option<PathBuf> {
        self.disks.attachments_directory()
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        if !self.waits {
            return self.disks.attach(volume).await;
        }
        let expected = expected(volume)?;
        let host = volume.host().clone();
        blocking(move || Ok(host.devices().wait(&expected)?)).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        if self.is_unnamed.load(Ordering::Relaxed) {
            return Err(Error::Internal("a disk of the group is missing".into()));
        }
        if !self.waits {
            return self.disks.device(volume).await;
        }
        let expected = expected(volume)?;
        let host = volume.host().clone();
        blocking(move || Ok(host.devices().find(&expected)?)).await
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.disks.detach(volume).await
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        self.disks.plan(volume, capability).await
    }
}

fn disks(directory: &Path) -> Disks {
    Disks { attachments: directory.join("attachments") }
}

/// The storage system with a node plugin.
fn plugin(storage: &Arc<Storage>, node: impl BlockDevices) -> Plugin {
    let node = BlockNode::service(Arc::new(node));
    let controller =
        ControllerService::new(Arc::clone(storage)).create_delete_volume().publish_unpublish_volume();
    let plugin = Plugin::new("disks.csi.example.org", "1").controller(controller).node(node);
    plugin.host(storage.machine.clone())
}

async fn served(storage: &Arc<Storage>, node: impl BlockDevices, directory: &Path) -> Client {
    serve(plugin(storage, node), directory).await
}

async fn created(storage: &Storage, client: &Client) -> VolumeUse {
    let capability = v1::VolumeCapability::mount(Mode::SingleNodeWriter);
    let create = v1::CreateVolumeRequest {
        name: "v".to_owned(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let volume_id = client.call(create).await.unwrap().volume.unwrap().volume_id;
    VolumeUse::new(volume_id, capability).attached_to(storage.machine_id.to_string()).staged_at(STAGING)
}

#[tokio::test]
async fn the_example_passes_the_kit() {
    let directory = tempfile::tempdir().unwrap();
    let [staging, target] = ["staging", "target"].map(|name| directory.path().join(name));
    std::fs::create_dir(&staging).unwrap();
    std::fs::create_dir(&target).unwrap();
    served(&Storage::new(), disks(directory.path()), directory.path()).await;
    let endpoint = directory.path().join("csi.sock").to_str().unwrap().parse().unwrap();
    let report = Kit::new(endpoint)
        .staging(staging)
        .target(target)
        .mount_access(MountAccess::Elsewhere)
        .journal(directory.path().join("journal"))
        .run()
        .await
        .unwrap();
    println!("{}", report.text());
    report.assert_ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_comes_back_and_is_waited_for() {
    for appears_late in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let storage = Storage::new();
        let client =
            served(&storage, Changed { waits: true, ..Changed::new(directory.path()) }, directory.path())
                .await;
        let mut volume = created(&storage, &client).await;
        let targets = [Target::new(format!("{POD}/mount"))];
        let file = format!("{POD}/mount/file");
        for round in 0..2 {
            volume.attach(&client).await.unwrap();
            if appears_late {
                storage.each(Storage::detach);
            }
            let appear = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                storage.each(|storage, disk| drop(storage.attach(disk)));
            };
            let (staged, ()) = tokio::join!(volume.stage(&client), appear);
            staged.unwrap();
            volume.publish(&client, &targets).await.unwrap();
            match round {
                0 => storage.machine.write(&file, "data").unwrap(),
                _ => assert_eq!(storage.machine.read(&file).unwrap(), b"data", "the disk came back"),
            }
            volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
            storage.each(|_, disk| assert_eq!(disk.device, None));
        }
    }
}

/// A raw device next to its own mounted filesystem would have two writers that do not know of each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_mounted_is_not_published_raw_for_writing() {
    let directory = tempfile::tempdir().unwrap();
    let storage = Storage::new();
    let client = served(&storage, disks(directory.path()), directory.path()).await;
    let mut volume = created(&storage, &client).await;
    volume.attach_stage_publish(&client, &[]).await.unwrap();
    let mut raw = volume.clone();
    raw.capability = v1::VolumeCapability::block(Mode::SingleNodeWriter);
    let staged = client.call(raw.node_stage_volume()).await.unwrap_err();
    assert_eq!(staged.code(), Code::AlreadyExists, "{staged}");

    let elsewhere = "/var/lib/kubelet/staging/raw";
    storage.machine.create_dir(elsewhere);
    raw = raw.staged_at(elsewhere);
    client.call(raw.node_stage_volume()).await.unwrap();
    let publish = raw.node_publish_volume(format!("{POD}/raw").as_ref());
    let published = client.call(publish.clone()).await.unwrap_err();
    assert_eq!(published.code(), Code::FailedPrecondition, "{published}");
    assert!(published.message().contains(STAGING), "{published}");
    let read = v1::NodePublishVolumeRequest { readonly: true, ..publish.clone() };
    client.call(read).await.expect("a reader harms nothing");
    client.call(raw.node_unpublish_volume(format!("{POD}/raw").as_ref())).await.unwrap();

    client.call(volume.node_unstage_volume()).await.unwrap();
    client.call(raw.node_stage_volume()).await.unwrap();
    client.call(publish).await.unwrap();
}

/// The filesystem is mounted, and answers.
#[tokio::test(flavor = "multi_thread")]
async fn usage_and_health_of_a_volume_need_no_name_of_its_disk() {
    let directory = tempfile::tempdir().unwrap();
    let storage = Storage::new();
    let node = Changed::new(directory.path());
    let is_unnamed = Arc::clone(&node.is_unnamed);
    let client = serve(plugin(&storage, node).spec(csi_core::Spec::V1_13), directory.path()).await;
    let mut volume = created(&storage, &client).await;
    volume.attach_stage_publish(&client, &[Target::new(format!("{POD}/mount"))]).await.unwrap();
    let usage = |path: &str| v1::NodeGetVolumeStatsRequest {
        volume_id: "v".to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    };
    let before = client.call(usage(&format!("{POD}/mount"))).await.unwrap();
    is_unnamed.store(true, Ordering::Relaxed);
    assert_eq!(client.call(usage(&format!("{POD}/mount"))).await.unwrap().usage, before.usage);
    let health = v1::NodeGetVolumeHealthRequest {
        volume_id: "v".to_owned(),
        staging_target_path: STAGING.to_owned(),
        ..Default::default()
    };
    let health = client.call(health).await.unwrap().volume_health.unwrap().health_statuses;
    let reasons: Vec<_> = health.iter().map(|entry| (&*entry.reason, &*entry.message)).collect();
    assert_eq!(reasons, [("DeviceUnknown", "a disk of the group is missing")]);
    // Not "not found": whose another mount is, the name of the disk could say.
    let other = OwnedPath::new(format!("{POD}/other"), Owner::new("another.example.org", "w"));
    let host = csi_core::Host::from(storage.machine.clone());
    host.directories().publish(POD.as_ref(), &other, MountAttributes::empty(), IdMap::default()).unwrap();
    let unknown = client.call(usage(&format!("{POD}/other"))).await.unwrap_err();
    assert!(unknown.to_string().contains("a disk of the group is missing"), "{unknown}");
}

/// A disk without reservations is used only if the driver allows that, and its health says so. So is a volume whose
/// controller gave no key.
#[cfg(feature = "remote")]
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_reservations_is_used_if_the_driver_allows_it() {
    use csi_core::mount::reservation::Fencing::{IfSupported, Off, Required};
    use csi_core::node_plugins::PublishRecord;
    for (fencing, has_key, refusal) in [
        (Off, false, None),
        (Off, true, None),
        (IfSupported, false, None),
        (IfSupported, true, None),
        (Required, false, Some("publish_context[reservationKey]")),
        (Required, true, Some("no reservations")),
    ] {
        for capability in [
            v1::VolumeCapability::mount(Mode::SingleNodeWriter),
            v1::VolumeCapability::block(Mode::SingleNodeWriter),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let storage = Storage::new();
            let plugin = plugin(&storage, Changed { fencing, ..Changed::new(directory.path()) })
                .spec(csi_core::Spec::V1_13);
            let client = serve(plugin, directory.path()).await;
            let mut volume = created(&storage, &client).await;
            volume.capability = capability;
            volume.attach(&client).await.unwrap();
            if has_key {
                let mut record = PublishRecord::default();
                record.publish(&storage.machine_id).unwrap();
                volume.publish_context.extend(record.context("cluster"));
            }
            let staged = volume.stage(&client).await;
            if let Some(refusal) = refusal {
                let error = staged.unwrap_err();
                assert!(error.to_string().contains(refusal), "{error}");
                continue;
            }
            staged.unwrap();
            let health = v1::NodeGetVolumeHealthRequest {
                volume_id: volume.volume_id.clone(),
                staging_target_path: STAGING.to_owned(),
                ..Default::default()
            };
            let health = format!("{:?}", client.call(health).await.unwrap());
            assert_eq!(health.contains("NotFenced"), fencing == IfSupported, "{health}");
        }
    }
}

/// A driver that requires reservations from now on has volumes that were staged without one.
#[cfg(feature = "remote")]
#[tokio::test(flavor = "multi_thread")]
async fn the_health_of_a_volume_that_was_staged_before_fencing_says_so() {
    use csi_core::mount::reservation::Fencing::{Off, Required};
    let directory = tempfile::tempdir().unwrap();
    let storage = Storage::new();
    for fencing in [Off, Required] {
        let node = Changed { fencing, ..Changed::new(directory.path()) };
        let sockets = tempfile::tempdir().unwrap();
        let client = serve(plugin(&storage, node).spec(csi_core::Spec::V1_13), sockets.path()).await;
        if fencing == Off {
            let mut volume = created(&storage, &client).await;
            volume.attach(&client).await.unwrap();
            volume.stage(&client).await.unwrap();
        }
        let health = v1::NodeGetVolumeHealthRequest {
            volume_id: "v".to_owned(),
            staging_target_path: STAGING.to_owned(),
            ..Default::default()
        };
        let health = format!("{:?}", client.call(health).await.unwrap());
        assert_eq!(health.contains("NotFenced"), fencing == Required, "{health}");
    }
}

/// Whatever the killed call had done, its repetition ends well.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_plugin_that_is_killed_at_any_step_finds_the_disk_again() {
    let directory = tempfile::tempdir().unwrap();
    let storage = Storage::new();
    let client = served(&storage, disks(directory.path()), directory.path()).await;
    let mut volume = created(&storage, &client).await;
    let targets = [Target::new(format!("{POD}/mount"))];
    for steps in 0..6 {
        storage.machine.crash_after(steps);
        let _ = volume.attach_stage_publish(&client, &targets).await;
        storage.machine.restart();
        volume.attach_stage_publish(&client, &targets).await.unwrap();
        volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    }
}
