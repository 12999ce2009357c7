//! The life of a volume, call by call.

use std::path::PathBuf;

use csi_proto::client::{Target, VolumeUse};
use csi_proto::{Rpc, v1};
use v1::volume_content_source::Type as Source;

use super::discovery::discover;
use super::driver::Capabilities;
use super::options::Options;
use super::report::{Report, size};
use super::steps::{Failure, OnNode, Outcome, Steps};
use super::target;
use super::undo::UndoLog;
use super::volume_spec::{Keep, Places, TargetChecks, VolumeSpec};
use crate::secrets;

/// An existing volume, and the steps that are made with it.
pub(crate) struct LifeCycle<'c, 'r> {
    pub(crate) steps: &'c mut Steps<'r>,
    pub(crate) capabilities: &'c Capabilities,
    pub(crate) spec: &'c VolumeSpec,
    pub(crate) volume: VolumeUse,
    pub(crate) places: Option<&'c Places>,
    /// The size in bytes, as the driver returned it last.
    pub(crate) capacity: i64,
    /// The snapshot, with the size of the volume when it was taken.
    pub(crate) snapshot: Option<(v1::Snapshot, i64)>,
    /// The size at a target before the expansion, if it was measured.
    pub(crate) before: u64,
}

/// Creates each volume, uses it, expands it, and deletes it, and prints a line per step. After a failure it
/// undoes all steps, and prints the commands that undo what is left.
///
/// # Errors
/// The first step that failed.
pub async fn run(options: &Options) -> Outcome<()> {
    let mut report = Report::new();
    let mut undo_log = UndoLog::default();
    let outcome = run_recorded(options, &mut report, &mut undo_log).await;
    if let Err(failure) = &outcome {
        report.failed(&failure.step, &failure.reason, &[]);
        report.undone(&undo_log.undo(&options.sockets).await);
    }
    outcome
}

/// The same without the undo. At any moment `undo_log` has what must be undone.
///
/// # Errors
/// The first step that failed. Neither the error nor the report shows the given secrets, even if the driver
/// repeats them: see [`Redactor::scrub`](csi_proto::internal::Redactor::scrub).
pub async fn run_recorded(options: &Options, report: &mut Report, undo_log: &mut UndoLog) -> Outcome<()> {
    let hidden = secrets::hidden(&options.secrets);
    report.hide(&hidden);
    undo_log.secrets = options.secrets.clone();
    let mut steps = Steps::new(options, report, undo_log);
    run_unredacted(options, &mut steps).await.map_err(|failure| failure.scrubbed(&hidden))
}

async fn run_unredacted(options: &Options, steps: &mut Steps<'_>) -> Outcome<()> {
    let capabilities = discover(steps).await?;
    for spec in &options.volumes {
        steps.report.part(&spec.title);
        steps.on_node = OnNode::new(spec.checks(&capabilities), spec.content);
        let volume = match &spec.existing {
            Some(volume) => volume.clone(),
            None if capabilities.creates => create(steps, &capabilities, spec, None).await?,
            None => {
                let hint = "nothing on this socket creates volumes: name an existing one (VolumeSpec::existing, \
                     --volume-id), or the controller's socket (Options::controller, --controller-endpoint)";
                return Err(Failure::new("CreateVolume", hint));
            }
        };
        let places = options.places.as_ref().filter(|_| capabilities.node);
        LifeCycle::new(steps, &capabilities, spec, volume, places)?.live().await?;
    }
    Ok(())
}

/// Creates the staging directory and the parents of the targets, which the orchestrator has to create.
/// Returns the staging directory and the targets.
fn make_places(
    places: &Places,
    capabilities: &Capabilities,
    spec: &VolumeSpec,
    undo_log: &mut UndoLog,
) -> std::io::Result<(PathBuf, Vec<Target>)> {
    let staging = places.staging.join(&spec.name);
    let target = places.target.join(&spec.name);
    for directory in [&staging, &staging.join("staging"), &target] {
        undo_log.make_directory(directory.clone())?;
    }
    Ok((staging.join("staging"), spec.targets(capabilities, &target)))
}

pub(crate) async fn create(
    steps: &mut Steps<'_>,
    capabilities: &Capabilities,
    spec: &VolumeSpec,
    source: Option<v1::VolumeContentSource>,
) -> Outcome<v1::Volume> {
    let name = match source.as_ref().and_then(|source| source.r#type.as_ref()) {
        None => "CreateVolume",
        Some(Source::Snapshot(_)) => "CreateVolume, restored",
        Some(Source::Volume(_)) => "CreateVolume, cloned",
    };
    let request = v1::CreateVolumeRequest {
        name: spec.name.clone(),
        capacity_range: Some(v1::CapacityRange { required_bytes: spec.size, limit_bytes: 0 }),
        volume_capabilities: vec![spec.capability(capabilities)],
        parameters: spec.parameters.of(Rpc::CreateVolume),
        volume_content_source: source,
        accessibility_requirements: capabilities
            .topology
            .clone()
            .map(|here| v1::TopologyRequirement { requisite: vec![here.clone()], preferred: vec![here] }),
        ..Default::default()
    };
    let missing = "the answer has no volume";
    let text = |answer: &v1::CreateVolumeResponse| {
        let volume = answer.volume.as_ref().ok_or(missing)?;
        // A size of 0 means that the driver does not track sizes.
        match volume.capacity_bytes {
            0 => Ok(volume.volume_id.clone()),
            bytes if bytes < spec.size => Err(format!("the volume has only {bytes} bytes")),
            bytes => Ok(format!("{}, {}", volume.volume_id, size(bytes.unsigned_abs()))),
        }
    };
    let answer = steps.make(name, request, text).await?;
    answer.volume.ok_or_else(|| Failure::new(name, missing))
}

impl<'c, 'r> LifeCycle<'c, 'r> {
    /// An existing volume, and the directories for it.
    pub(crate) fn new(
        steps: &'c mut Steps<'r>,
        capabilities: &'c Capabilities,
        spec: &'c VolumeSpec,
        volume: v1::Volume,
        places: Option<&'c Places>,
    ) -> Outcome<Self> {
        let mut used = VolumeUse::new(volume.volume_id, spec.capability(capabilities));
        used.volume_context = volume.volume_context;
        used.node_id = capabilities.attaches.then(|| capabilities.node_id.clone());
        if let Some(places) = places {
            let made = make_places(places, capabilities, spec, steps.undo_log);
            let (staging, targets) =
                made.map_err(|error| Failure::new("create the staging directory", error.to_string()))?;
            used.staging_path = capabilities.stages.then_some(staging);
            steps.on_node.targets = targets;
        }
        let capacity = volume.capacity_bytes.max(spec.size);
        Ok(Self { steps, capabilities, spec, volume: used, places, capacity, snapshot: None, before: 0 })
    }
}

impl LifeCycle<'_, '_> {
    /// Runs all steps from after the creation up to the deletion.
    async fn live(&mut self) -> Outcome<()> {
        let on_node = self.places.is_some();
        self.validate().await?;
        if on_node {
            self.attach_stage_publish().await?;
            self.write_and_read().await?;
            self.stats().await?;
        }
        self.snapshot().await?;
        self.expand().await?;
        if self.spec.keep == Keep::Everything {
            return Ok(());
        }
        if on_node {
            self.unpublish_unstage_detach().await?;
        }
        self.expand_unused().await?;
        self.copy().await?;
        self.delete_snapshot().await?;
        self.delete().await?;
        self.steps.undo_log.remove_directories();
        Ok(())
    }

    pub(crate) async fn attach_stage_publish(&mut self) -> Outcome<()> {
        let targets = self.steps.on_node.targets.clone();
        self.volume.attach_stage_publish(&mut *self.steps, &targets).await
    }

    pub(crate) async fn unpublish_unstage_detach(&mut self) -> Outcome<()> {
        let targets = self.steps.on_node.targets.clone();
        self.volume.unpublish_unstage_detach(&mut *self.steps, &targets).await
    }

    async fn write_and_read(&mut self) -> Outcome<()> {
        let content = self.spec.content;
        if self.steps.on_node.checks != TargetChecks::Content {
            self.steps.report.left_out("  write and read", "writing is not allowed for this volume");
            return Ok(());
        }
        let writable = self.steps.on_node.targets[0].path.clone();
        let read_only = self.steps.on_node.targets.get(1).map(|target| target.path.clone());
        let read = read_only.clone().unwrap_or_else(|| writable.clone());
        let work = move || target::write_and_read(&writable, &read, content);
        self.steps.check("  write and read", work).await?;
        let Some(read_only) = read_only else {
            self.steps.report.left_out("  write, read-only", "the access mode allows only one target");
            return Ok(());
        };
        let work = move || target::refused_write(&read_only, content).map(|why| format!("refused: {why}"));
        self.steps.check("  write, read-only", work).await
    }

    async fn stats(&mut self) -> Outcome<()> {
        if !self.capabilities.stats {
            return Ok(());
        }
        let request = self.volume.node_get_volume_stats(&self.steps.on_node.targets[0].path);
        self.steps.make("NodeGetVolumeStats", request, usage).await.map(drop)
    }

    async fn validate(&mut self) -> Outcome<()> {
        if !self.capabilities.has_controller {
            return Ok(());
        }
        let request = v1::ValidateVolumeCapabilitiesRequest {
            parameters: self.spec.parameters.of(Rpc::ValidateVolumeCapabilities),
            ..self.volume.validate_volume_capabilities()
        };
        let text = |answer: &v1::ValidateVolumeCapabilitiesResponse| match &answer.confirmed {
            Some(_) => Ok("confirmed".to_owned()),
            None => Err(format!("not confirmed: {}", answer.message)),
        };
        self.steps.make("ValidateVolumeCapabilities", request, text).await.map(drop)
    }

    pub(crate) async fn delete(&mut self) -> Outcome<()> {
        if self.spec.existing.is_some() {
            return Ok(());
        }
        let request = self.volume.delete_volume();
        let id = self.volume.volume_id.clone();
        self.steps.make("DeleteVolume", request, |_| Ok(id)).await.map(drop)
    }
}

fn usage(answer: &v1::NodeGetVolumeStatsResponse) -> Result<String, String> {
    let bytes = answer.usage.iter().find(|usage| usage.unit() == v1::volume_usage::Unit::Bytes);
    let bytes = bytes.ok_or("the answer has no bytes")?;
    if bytes.total <= 0 {
        return Err(format!("the total is {} bytes", bytes.total));
    }
    let total = size(bytes.total.unsigned_abs());
    match (bytes.available, bytes.used) {
        (0, 0) => Ok(total),
        _ => Ok(format!("{total}, {} free", size(bytes.available.unsigned_abs()))),
    }
}
