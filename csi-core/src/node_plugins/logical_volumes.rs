//! Logical volumes of this node, for a driver's [`BlockDevices`](super::BlockDevices).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use csi_mount::flow::block::StagePlan;
use csi_mount::lvm::{
    LvmEraser, LvmLayout, LvmName, LvmOptions, LvmPool, LvmRequest, LvmState, LvmVolume, VolumeGroup,
};
use csi_mount::{ErrorKind, Verdict};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::timeout;

use super::block_devices::Attachment;
use crate::blocking::blocking;
use crate::controller::Capacity;
use crate::error::{Error, Result};
use crate::identity::{Identity, Readiness};
use crate::types::{
    CapacityRange, ContentSource, Snapshot, SnapshotId, StorageHealthEntry, StorageHealthStatus, VolumeId,
};

/// The volume group of this node: [`VolumeGroup`] for asynchronous code, and the methods of
/// [`BlockDevices`](super::BlockDevices) for a driver whose volumes are logical volumes. Their names are the ids of volumes
/// and snapshots. The repository's `examples/local` is a driver with it.
///
/// The first call opens the volume group and starts the [eraser](VolumeGroup::start_eraser), so that a process that never
/// has a call needs none. A clone has the same volume group.
///
/// # Errors
/// Those of the methods of [`VolumeGroup`] with the same names. A volume that does not exist is
/// [`Error::VolumeNotFound`].
#[derive(Debug, Clone)]
pub struct LogicalVolumes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    group: String,
    options: LvmOptions,
    opened: OnceCell<(VolumeGroup, LvmEraser)>,
    /// The last call that read the group found it refused.
    is_refused: AtomicBool,
    /// Why a probe could not open it. Locked while one tries.
    refusal: Arc<Mutex<String>>,
}

/// How long a probe waits for lvm. Those who probe wait for 3 seconds.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

impl LogicalVolumes {
    /// Uses the volume group with this name, which exists on each node.
    pub fn new(group: impl Into<String>, options: LvmOptions) -> Self {
        let group = group.into();
        Self(Arc::new(Shared {
            group,
            options,
            opened: OnceCell::new(),
            is_refused: AtomicBool::new(false),
            refusal: Arc::default(),
        }))
    }

    /// Works with the volume group, on a thread that is allowed to block.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::open`] and of `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&VolumeGroup) -> csi_mount::Result<T> + Send + 'static,
    ) -> Result<T> {
        let open = || {
            let shared = self.0.clone();
            blocking(move || {
                let group = VolumeGroup::open(&shared.group, shared.options.clone())?;
                let found = group.preflight();
                if found.verdict != Verdict::Fine {
                    tracing::warn!("self-check: {found}");
                }
                let eraser = group.start_eraser()?;
                Ok((group, eraser))
            })
        };
        let group = self.0.opened.get_or_try_init(open).await?.0.clone();
        let done = blocking(move || Ok(work(&group)?)).await;
        match &done {
            Ok(_) => self.0.is_refused.store(false, Ordering::Relaxed),
            Err(error) if is_refusal(error) => self.0.is_refused.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        done
    }

    async fn run_on<T: Send + 'static>(
        &self,
        volume: &VolumeId,
        work: impl FnOnce(&VolumeGroup, &str) -> csi_mount::Result<T> + Send + 'static,
    ) -> Result<T> {
        let id = volume.clone();
        let missing = Error::VolumeNotFound(volume.clone());
        self.run_or(volume.into(), missing, move |group| work(group, id.as_str())).await
    }

    /// As [`run`](Self::run), with this error if the group does not have this logical volume. A device that does not come
    /// has the same kind, so the group is asked again.
    async fn run_or<T: Send + 'static>(
        &self,
        name: LvmName,
        missing: Error,
        work: impl FnOnce(&VolumeGroup) -> csi_mount::Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = self.run(move |group| match work(group) {
            Err(error) if error.kind() == ErrorKind::NotFound && group.find(&name)?.is_none() => Ok(None),
            done => done.map(Some),
        });
        done.await?.ok_or(missing)
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// [`Error::SourceNotFound`] if what it is to be a copy of does not exist; otherwise those of [`VolumeGroup::create`].
    pub async fn create(&self, request: LvmRequest) -> Result<LvmVolume> {
        let Some(source) = request.source_name().cloned() else {
            return self.run(move |group| group.create(&request)).await;
        };
        let missing = Error::SourceNotFound(source.to_string().into());
        self.run_or(source, missing, move |group| group.create(&request)).await
    }

    /// Returns a volume; `None` for one that is being erased, which is deleted already. One that is not finished exists:
    /// DeleteVolume removes it.
    pub async fn find(&self, volume: &VolumeId) -> Result<Option<LvmVolume>> {
        let found = self.run_on(volume, |group, id| group.find(&LvmName::Volume(id.into()))).await?;
        Ok(found.filter(|found| found.state != LvmState::Erasing))
    }

    /// Makes a snapshot.
    pub async fn snapshot(&self, id: SnapshotId, volume: &VolumeId) -> Result<Snapshot> {
        let name = id.clone();
        let made = self.run_on(volume, move |group, volume| group.snapshot(name.as_str(), volume)).await?;
        let mut snapshot = Snapshot::new(id, volume.clone(), made.created);
        snapshot.size_bytes = made.bytes;
        Ok(snapshot)
    }

    /// Grows a volume, without its filesystem. Returns its size, without its header.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::grow`]; [`Error::OutOfRange`](crate::Error::OutOfRange) if the volume is larger than the
    /// limit.
    pub async fn grow(&self, volume: &VolumeId, range: CapacityRange) -> Result<u64> {
        let bytes = range.required_bytes.unwrap_or(0);
        let grown = self.run_on(volume, move |group, id| group.grow(id, bytes, range.limit_bytes)).await?;
        range.check_expanded(grown.bytes)?;
        Ok(grown.bytes)
    }

    /// Deletes a volume or snapshot. The eraser does the rest.
    pub async fn delete(&self, name: impl Into<LvmName>) -> Result<()> {
        let name = name.into();
        self.run(move |group| group.delete(&name).map(drop)).await
    }

    /// Returns the capacity for volumes with this layout and [header](LvmRequest::header): nothing while the volume group
    /// is refused, because after an error the scheduler goes on with the capacity that it knew before.
    pub async fn capacity(&self, layout: LvmLayout, header: u64) -> Result<Capacity> {
        let room = match or_refusal(self.run(move |group| group.capacity(&layout)).await)? {
            Ok(room) => room,
            Err(error) => {
                tracing::info!("no capacity: {error}");
                return Ok(Capacity::new(0).maximum_volume_size(0));
            }
        };
        let capacity = Capacity::new(room.available.saturating_sub(header));
        let maximum = room.maximum.saturating_sub(header);
        Ok(capacity.maximum_volume_size(maximum).minimum_volume_size(room.minimum))
    }

    /// Returns why the volume group is refused, or what is wrong with its thin pools: the answer of
    /// [`NodeGetStorageHealth`](crate::node::NodeGetStorageHealth).
    pub async fn storage_health(&self) -> Result<Vec<StorageHealthEntry>> {
        let pools = match or_refusal(self.run(VolumeGroup::pools).await)? {
            Ok(pools) => pools,
            Err(error) => {
                let status = StorageHealthStatus::Unreachable;
                return Ok(vec![StorageHealthEntry::new(status, "VolumeGroup", error.to_string())]);
            }
        };
        let broken = pools.into_iter().filter_map(|pool| Some((pool.name, pool.fault?)));
        let (names, mut faults): (Vec<_>, Vec<_>) = broken.unzip();
        // The spec allows one entry for each reason, and 128 bytes of text in it.
        faults.dedup();
        let text = format!("{}: {}", names.join(", "), faults.join("; "));
        let entry = StorageHealthEntry::new(StorageHealthStatus::Degraded, "ThinPool", text);
        Ok((!names.is_empty()).then_some(entry).into_iter().collect())
    }

    /// Writes the use of the thin pools, for `Plugin::metrics`, as the last call for the volume group found it. Before the
    /// first call there is nothing to write. A controller is asked for its capacity every minute.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_metrics(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let pools = self.0.opened.get().map(|(group, _)| group.last_pools()).unwrap_or_default();
        for (name, help, value) in METRICS {
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge")?;
            for pool in &pools {
                if let Some(value) = value(pool) {
                    writeln!(out, "{name}{{pool=\"{}\"}} {value:?}", pool.name)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the volume a block device of this node, and returns its path.
    pub async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        self.run_on(&volume.volume_id, |group, id| Ok(group.activate(id)?.path().to_owned())).await
    }

    /// Returns the volume's device. `None` while it is not active on this node.
    pub async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let device = self.run_on(&volume.volume_id, VolumeGroup::device).await?;
        Ok(device.map(|device| device.path().to_owned()))
    }

    /// Removes the volume's device.
    pub async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.run_on(&volume.volume_id, VolumeGroup::deactivate).await
    }

    /// Forbids the format if the volume was ever [staged](Self::staged).
    pub async fn plan(&self, volume: &Attachment, plan: StagePlan) -> Result<StagePlan> {
        let was_staged = self.find(&volume.volume_id).await?.is_some_and(|found| found.was_staged);
        Ok(if was_staged { plan.never_format() } else { plan })
    }

    /// Records that the volume has content.
    pub async fn staged(&self, volume: &Attachment) -> Result<()> {
        self.run_on(&volume.volume_id, VolumeGroup::set_staged).await
    }
}

/// Keeps the refusal of a volume group, which is an answer here, apart from other errors.
fn or_refusal<T>(result: Result<T>) -> Result<Result<T>> {
    if result.as_ref().is_err_and(is_refusal) { Ok(result) } else { result.map(Ok) }
}

fn is_refusal(error: &Error) -> bool {
    const REFUSED: [ErrorKind; 3] = [ErrorKind::Unreadable, ErrorKind::NotOwned, ErrorKind::WrongDevice];
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    cause.map(csi_mount::Error::kind).is_some_and(|kind| REFUSED.contains(&kind))
}

/// The name of a metric, what it is, and its value.
type PoolMetric = (&'static str, &'static str, fn(&LvmPool) -> Option<f64>);

const METRICS: [PoolMetric; 4] = [
    ("csi_lvm_pool_bytes", "Size of a thin pool.", |pool| Some(pool.bytes as f64)),
    ("csi_lvm_pool_promised_bytes", "Sizes of its volumes and snapshots together.", |pool| {
        Some(pool.promised as f64)
    }),
    ("csi_lvm_pool_data_ratio", "Used part of its data, 0 to 1.", |pool| {
        pool.data_percent.map(|percent| percent / 100.0)
    }),
    ("csi_lvm_pool_metadata_ratio", "Used part of its metadata, 0 to 1.", |pool| {
        pool.metadata_percent.map(|percent| percent / 100.0)
    }),
];

/// The plugin is ready as soon as the volume group was opened. While it is refused, also later, or lvm takes long, the
/// plugin is starting, and the log says why: a restart of the container would change nothing, and keep the node from unpublishing
/// volumes. Without lvm it is [`Error::Unhealthy`].
#[async_trait]
impl Identity for LogicalVolumes {
    async fn probe(&self) -> Result<Readiness> {
        if self.0.opened.initialized() && !self.0.is_refused.load(Ordering::Relaxed) {
            return Ok(Readiness::Ready);
        }
        let Ok(mut refusal) = Arc::clone(&self.0.refusal).try_lock_owned() else {
            return Ok(Readiness::Starting);
        };
        let volumes = self.clone();
        // It goes on when this probe is over: a slow lvm would be started again by each one otherwise.
        let opening = tokio::spawn(async move {
            let opened = volumes.run(VolumeGroup::pools).await.map(drop);
            if let Err(error) = &opened {
                let text = error.to_string();
                if *refusal != text {
                    tracing::info!("waits for its volume group: {text}");
                    *refusal = text;
                }
            }
            opened
        });
        match timeout(PROBE_LIMIT, opening).await {
            Ok(Ok(Ok(()))) => Ok(Readiness::Ready),
            Ok(Ok(Err(error @ Error::Unhealthy(_)))) => Err(error),
            _ => Ok(Readiness::Starting),
        }
    }
}

impl From<&VolumeId> for LvmName {
    fn from(id: &VolumeId) -> Self {
        Self::Volume(id.as_str().to_owned())
    }
}

impl From<&SnapshotId> for LvmName {
    fn from(id: &SnapshotId) -> Self {
        Self::Snapshot(id.as_str().to_owned())
    }
}

impl From<&ContentSource> for LvmName {
    fn from(source: &ContentSource) -> Self {
        match source {
            ContentSource::Volume(id) => id.into(),
            ContentSource::Snapshot(id) => id.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    /// A volume group in which a program in place of lvm finds a thick volume `a` with this state, and writes down what
    /// it is asked for.
    fn with_volume(directory: &tempfile::TempDir, state: &str) -> LogicalVolumes {
        let report = json!({"report": [{
            "vg": [{
                "vg_uuid": "vg", "vg_extent_size": "4194304", "vg_free_count": "0",
                "vg_shared": "", "vg_clustered": "", "vg_partial": "", "vg_exported": "", "vg_mda_free": "520192", "vg_seqno": "1",
            }],
            "lv": [{
                "lv_name": "csi_a", "lv_uuid": "lv", "lv_size": "4194304", "lv_layout": "linear", "pool_lv": "",
                "lv_tags": format!("csi.driver=d,csi.volume=a,csi.state={state}"), "lv_active": "",
                "origin": "", "lv_device_open": "", "lv_time": "0",
            }],
        }]});
        fs::write(directory.path().join("report"), report.to_string()).expect("a file");
        let mut empty = report;
        empty["report"][0]["lv"] = json!([]);
        fs::write(directory.path().join("empty"), empty.to_string()).expect("a file");
        let script = "echo $2 >> \"$0/commands\"; [ $2 != lvremove ] || cp \"$0/empty\" \"$0/report\"; cat \"$0/report\"";
        let directory = directory.path().to_str().expect("UTF-8");
        LogicalVolumes::new("group", LvmOptions::new("d").launcher(["sh", "-c", script, directory]))
    }

    /// What a probe returns after the start.
    async fn probed(volumes: &LogicalVolumes) -> Result<Readiness> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match volumes.probe().await {
                Ok(Readiness::Starting) if Instant::now() < end => tokio::task::yield_now().await,
                done => return done,
            }
        }
    }

    /// A restart of the container would change nothing, and keep the node from unpublishing volumes.
    #[tokio::test]
    async fn a_volume_group_that_is_refused_is_waited_for() {
        let refused = ["sh", "-c", "echo Volume group not found >&2; exit 5"];
        let volumes = LogicalVolumes::new("group", LvmOptions::new("d").launcher(refused));
        assert_eq!(volumes.probe().await.expect("no failure"), Readiness::Starting);
        let wrong = volumes.storage_health().await.expect("an answer");
        assert!(wrong[0].message.contains("Volume group not found"), "{wrong:?}");
        let capacity = volumes.capacity(LvmLayout::Thick, 0).await.expect("an answer");
        assert_eq!(capacity.available_capacity, 0);
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(probed(&with_volume(&directory, "ready")).await.expect("a report"), Readiness::Ready);
        let no_lvm = LogicalVolumes::new("group", LvmOptions::new("d").launcher(["no-such-launcher"]));
        assert!(matches!(probed(&no_lvm).await, Err(Error::Unhealthy(_))));
    }

    #[tokio::test]
    async fn probes_wait_for_a_slow_lvm_together() {
        let directory = tempfile::tempdir().expect("a directory");
        drop(with_volume(&directory, "ready"));
        // It ends with the directory, so that a failed test leaves no process.
        let script = "echo run >> \"$0/runs\"; until test -e \"$0/go\"; do test -d \"$0\" && sleep 0.01 || exit; done; \
                      cat \"$0/report\"";
        let place = directory.path().to_str().expect("UTF-8");
        let slow = LogicalVolumes::new("group", LvmOptions::new("d").launcher(["sh", "-c", script, place]));
        let runs = || fs::read_to_string(directory.path().join("runs")).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(60);
        while runs().is_empty() && Instant::now() < end {
            assert_eq!(slow.probe().await.expect("no failure"), Readiness::Starting);
        }
        assert_eq!(slow.probe().await.expect("no failure"), Readiness::Starting);
        assert_eq!(runs(), "run\n");
        fs::write(directory.path().join("go"), "").expect("a file");
        assert_eq!(probed(&slow).await.expect("no failure"), Readiness::Ready);
    }

    #[tokio::test]
    async fn all_that_is_wrong_is_in_one_answer() {
        let directory = tempfile::tempdir().expect("a directory");
        let volumes = with_volume(&directory, "ready");
        let wrong = async || {
            let entries = volumes.storage_health().await.expect("a report");
            let wire = crate::types::health::storage_health(entries).expect("an answer");
            wire.into_iter().map(|entry| format!("{} {}", entry.reason, entry.message)).collect::<Vec<_>>()
        };
        assert!(wrong().await.is_empty());
        let report = directory.path().join("report");
        let text = fs::read_to_string(&report).expect("text");
        let mut broken: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let pool = |name: &str| {
            json!({
                "lv_name": name, "lv_uuid": name, "lv_size": "4194304", "lv_layout": "thin,pool", "pool_lv": "",
                "lv_tags": "", "lv_active": "", "origin": "", "lv_device_open": "", "lv_time": "0", "data_percent": "",
                "metadata_percent": "", "lv_when_full": "", "lv_check_needed": "", "lv_health_status": "failed",
            })
        };
        broken["report"][0]["lv"] = json!([pool("one"), pool("two")]);
        let segment = |of: &str| json!({"lv_uuid": of, "zero": "", "seg_pe_ranges": "", "transaction_id": "0", "thin_id": ""});
        broken["report"][0]["seg"] = json!([segment("one"), segment("two")]);
        fs::write(&report, broken.to_string()).expect("a file");
        let [wrong_pools] = &wrong().await[..] else { panic!("one entry") };
        assert!(wrong_pools.starts_with("ThinPool one, two: it shows old data"), "{wrong_pools}");
        fs::write(&report, text.replace("\"vg_partial\":\"\"", "\"vg_partial\":\"partial\""))
            .expect("a file");
        let [wrong_group] = &wrong().await[..] else { panic!("one entry") };
        assert!(
            wrong_group.starts_with("VolumeGroup ") && wrong_group.contains("disks are missing"),
            "{wrong_group}"
        );
    }

    /// After an error the scheduler would go on with the capacity that it knew before.
    #[tokio::test]
    async fn a_volume_group_that_loses_a_disk_has_no_capacity() {
        let directory = tempfile::tempdir().expect("a directory");
        let volumes = with_volume(&directory, "ready");
        volumes.run(|_| Ok(())).await.expect("a report");
        let report = directory.path().join("report");
        let text = fs::read_to_string(&report).expect("text");
        for (whole, refused) in [
            ("\"vg_partial\":\"\"", "\"vg_partial\":\"partial\""),
            ("csi.driver=d", "csi.driver=another"),
            ("\"vg_uuid\":\"vg\"", "\"vg_uuid\":\"another\""),
        ] {
            assert!(text.contains(whole), "{whole} in {text}");
            fs::write(&report, text.replace(whole, refused)).expect("a file");
            let capacity = volumes.capacity(LvmLayout::Thick, 0).await.expect(refused);
            assert_eq!(capacity, Capacity::new(0).maximum_volume_size(0));
            assert_eq!(volumes.probe().await.expect("no failure"), Readiness::Starting);
        }
        fs::write(&report, text).expect("a file");
        assert_eq!(probed(&volumes).await.expect("a report"), Readiness::Ready);
    }

    /// The framework deletes what a lookup finds: a volume whose creation was given up would stay for ever.
    #[tokio::test]
    async fn a_volume_that_is_not_finished_is_found_and_can_be_deleted() {
        let directory = tempfile::tempdir().expect("a directory");
        let id = VolumeId::new("a").expect("an id");
        let volumes = with_volume(&directory, "creating");
        assert_eq!(
            volumes.find(&id).await.expect("a report").map(|found| found.state),
            Some(LvmState::Creating)
        );
        volumes.delete(&id).await.expect("lvm");
        let commands = fs::read_to_string(directory.path().join("commands")).expect("text");
        assert!(commands.contains("lvremove\n"), "{commands}");
        let volumes = with_volume(&directory, "erasing");
        assert_eq!(volumes.find(&id).await.expect("a report"), None);
    }
}
