//! Logical volumes of this node, for a driver's [`BlockDevices`](super::BlockDevices).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::flow::block::StagePlan;
use csi_mount::lvm::{
    LvmEraser, LvmLayout, LvmName, LvmOptions, LvmPool, LvmRequest, LvmState, LvmVolume, VolumeGroup,
};
use tokio::sync::OnceCell;

use super::block_devices::Attachment;
use crate::blocking::blocking;
use crate::controller::Capacity;
use crate::error::Result;
use crate::identity::{Identity, Readiness};
use crate::types::{
    CapacityRange, ContentSource, Snapshot, SnapshotId, StorageHealthEntry, StorageHealthStatus, VolumeId,
};

/// The volume group of this node: [`VolumeGroup`] for asynchronous code, and the methods of
/// [`BlockDevices`](super::BlockDevices) for a driver whose volumes are logical volumes. Their names are the ids of volumes
/// and snapshots.
///
/// The first call opens the volume group and starts the [eraser](VolumeGroup::start_eraser), so that a process that never
/// has a call needs none. A clone has the same volume group.
///
/// ```
/// # use std::path::PathBuf;
/// # use csi_core::mount::flow::block::StagePlan;
/// # use csi_core::mount::lvm::{HOST_LAUNCHER, LvmOptions};
/// # use csi_core::node_plugins::LogicalVolumes;
/// # use csi_core::{Result, VolumeCapability, prelude::*};
/// struct Local(LogicalVolumes);
///
/// #[async_trait]
/// impl BlockDevices for Local {
///     async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
///         self.0.attach(volume).await
///     }
///     async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
///         self.0.device(volume).await
///     }
///     async fn detach(&self, volume: &Attachment) -> Result<()> {
///         self.0.detach(volume).await
///     }
///     async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
///         self.0.plan(volume, stage_plan(capability)?).await
///     }
///     async fn staged(&self, volume: &Attachment) -> Result<()> {
///         self.0.staged(volume).await
///     }
/// }
///
/// let options = LvmOptions::new("local.example.org").launcher(HOST_LAUNCHER);
/// drop(BlockNode::service(std::sync::Arc::new(Local(LogicalVolumes::new("data", options)))));
/// ```
#[derive(Debug, Clone)]
pub struct LogicalVolumes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    group: String,
    options: LvmOptions,
    opened: OnceCell<(VolumeGroup, LvmEraser)>,
}

impl LogicalVolumes {
    /// Uses the volume group with this name, which exists on each node.
    pub fn new(group: impl Into<String>, options: LvmOptions) -> Self {
        Self(Arc::new(Shared { group: group.into(), options, opened: OnceCell::new() }))
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
                let eraser = group.start_eraser()?;
                Ok((group, eraser))
            })
        };
        let group = self.0.opened.get_or_try_init(open).await?.0.clone();
        blocking(move || Ok(work(&group)?)).await
    }

    async fn run_on<T: Send + 'static>(
        &self,
        volume: &VolumeId,
        work: impl FnOnce(&VolumeGroup, &str) -> csi_mount::Result<T> + Send + 'static,
    ) -> Result<T> {
        let id = volume.clone();
        self.run(move |group| work(group, id.as_str())).await
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::create`].
    pub async fn create(&self, request: LvmRequest) -> Result<LvmVolume> {
        self.run(move |group| group.create(&request)).await
    }

    /// Returns a volume that can be used; `None` for one that is being created or erased.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::find`].
    pub async fn find(&self, volume: &VolumeId) -> Result<Option<LvmVolume>> {
        let found = self.run_on(volume, |group, id| group.find(&LvmName::volume(id))).await?;
        Ok(found.filter(|found| found.state == LvmState::Ready))
    }

    /// Makes a snapshot.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::snapshot`].
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
        let grown = self.run_on(volume, move |group, id| group.grow(id, bytes)).await?;
        range.check_expanded(grown.bytes)?;
        Ok(grown.bytes)
    }

    /// Deletes a volume or snapshot. The eraser does the rest.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::delete`].
    pub async fn delete(&self, name: impl Into<LvmName>) -> Result<()> {
        let name = name.into();
        self.run(move |group| group.delete(&name).map(drop)).await
    }

    /// Returns the capacity for volumes with this layout and [header](LvmRequest::header).
    ///
    /// # Errors
    /// Those of [`VolumeGroup::capacity`].
    pub async fn capacity(&self, layout: LvmLayout, header: u64) -> Result<Capacity> {
        let room = self.run(move |group| group.capacity(&layout)).await?;
        let capacity = Capacity::new(room.available.saturating_sub(header));
        let maximum = room.maximum.saturating_sub(header);
        Ok(capacity.maximum_volume_size(maximum).minimum_volume_size(room.minimum))
    }

    /// Returns what is wrong with the thin pools: the answer of
    /// [`NodeGetStorageHealth`](crate::node::NodeGetStorageHealth).
    ///
    /// # Errors
    /// Those of [`VolumeGroup::pools`].
    pub async fn storage_health(&self) -> Result<Vec<StorageHealthEntry>> {
        let pools = self.run(VolumeGroup::pools).await?;
        let faults = pools.into_iter().filter_map(|pool| Some(format!("{}: {}", pool.name, pool.fault?)));
        let entry = |fault| StorageHealthEntry::new(StorageHealthStatus::Degraded, "ThinPool", fault);
        Ok(faults.map(entry).collect())
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
    ///
    /// # Errors
    /// Those of [`VolumeGroup::activate`].
    pub async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        self.run_on(&volume.volume_id, |group, id| Ok(group.activate(id)?.path().to_owned())).await
    }

    /// Returns the volume's device. `None` while it is not active on this node.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::device`].
    pub async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let device = self.run_on(&volume.volume_id, VolumeGroup::device).await?;
        Ok(device.map(|device| device.path().to_owned()))
    }

    /// Removes the volume's device.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::deactivate`].
    pub async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.run_on(&volume.volume_id, VolumeGroup::deactivate).await
    }

    /// Forbids the format if the volume was ever [staged](Self::staged).
    ///
    /// # Errors
    /// Those of [`VolumeGroup::find`].
    pub async fn plan(&self, volume: &Attachment, plan: StagePlan) -> Result<StagePlan> {
        let was_staged = self.find(&volume.volume_id).await?.is_some_and(|found| found.was_staged);
        Ok(if was_staged { plan.never_format() } else { plan })
    }

    /// Records that the volume has content.
    ///
    /// # Errors
    /// Those of [`VolumeGroup::set_staged`].
    pub async fn staged(&self, volume: &Attachment) -> Result<()> {
        self.run_on(&volume.volume_id, VolumeGroup::set_staged).await
    }
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

/// The plugin is ready while the volume group can be opened.
#[async_trait]
impl Identity for LogicalVolumes {
    async fn probe(&self) -> Result<Readiness> {
        self.run(|_| Ok(Readiness::Ready)).await
    }
}

impl From<&VolumeId> for LvmName {
    fn from(id: &VolumeId) -> Self {
        Self::volume(id.as_str())
    }
}

impl From<&SnapshotId> for LvmName {
    fn from(id: &SnapshotId) -> Self {
        Self::snapshot(id.as_str())
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
