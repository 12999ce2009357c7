//! The life of a volume, call by call.

use std::path::PathBuf;

use csi_proto::client::{Target, VolumeUse};
use csi_proto::v1;
use v1::volume_content_source::Type as Source;

use super::call::{Caller, Failure, Outcome, Repeat};
use super::discovery::Offers;
use super::report::size;
use super::steps::Steps;
use super::undo::UndoLog;
use super::volume_spec::{Keep, Places, VolumeSpec};

/// An existing volume, and the steps that are made with it.
pub(crate) struct LifeCycle<'c, 'r> {
    pub(crate) steps: Steps<'c, 'r>,
    pub(crate) offers: &'c Offers,
    pub(crate) spec: &'c VolumeSpec,
    pub(crate) volume: VolumeUse,
    /// None if the volume is put on no node.
    pub(crate) targets: Vec<Target>,
    pub(crate) places: Option<&'c Places>,
    /// The size in bytes, as the driver returned it last.
    pub(crate) capacity: i64,
    /// The snapshot, with the size of the volume when it was taken.
    pub(crate) snapshot: Option<(v1::Snapshot, i64)>,
    /// The size at a target before the expansion, if it was measured.
    pub(crate) before: u64,
}

/// Creates a volume, uses it, expands it, and deletes it. The volume is put into `places` on this node, if
/// they are given and the driver has a node service. At any moment `undo_log` has what must be undone.
///
/// # Errors
/// The first step that failed. Neither the error nor the report shows the given secrets, even if the driver
/// repeats them: see [`Hidden::scrub`](super::Hidden::scrub).
pub async fn run_life_cycle(
    caller: &mut Caller<'_>,
    offers: &Offers,
    spec: &VolumeSpec,
    places: Option<&Places>,
    undo_log: &mut UndoLog,
) -> Outcome<()> {
    let hidden = spec.secrets.hidden();
    caller.report.hide(&hidden);
    undo_log.secrets = spec.secrets.clone();
    run_unredacted(caller, offers, spec, places, undo_log).await.map_err(|failure| failure.scrubbed(&hidden))
}

async fn run_unredacted(
    caller: &mut Caller<'_>,
    offers: &Offers,
    spec: &VolumeSpec,
    places: Option<&Places>,
    undo_log: &mut UndoLog,
) -> Outcome<()> {
    caller.report.part(&spec.title);
    let (secrets, checks) = (&spec.secrets, spec.checks(offers));
    let mut steps = Steps { caller, undo_log, secrets, checks, is_mounted_at_staging: false };
    let volume = match &spec.existing {
        Some(volume) => v1::Volume {
            volume_id: volume.id.clone(),
            volume_context: volume.context.clone(),
            ..Default::default()
        },
        None if offers.creates => create(&mut steps, offers, spec, None).await?,
        None => {
            let hint = "this driver does not create volumes: name an existing one (VolumeSpec::existing, \
                 --volume-id)";
            return Err(Failure::new("CreateVolume", hint));
        }
    };
    let places = places.filter(|_| offers.node);
    LifeCycle::new(steps, offers, spec, volume, places)?.live().await
}

/// Creates the staging directory and the parents of the targets, which the orchestrator has to create.
/// Returns the staging directory and the targets.
fn make_places(
    places: &Places,
    offers: &Offers,
    spec: &VolumeSpec,
    undo_log: &mut UndoLog,
) -> std::io::Result<(PathBuf, Vec<Target>)> {
    let (staging, target) = (places.staging.join(&spec.name), places.target.join(&spec.name));
    for directory in [&staging, &staging.join("staging"), &target] {
        undo_log.make_directory(directory.clone())?;
    }
    Ok((staging.join("staging"), spec.targets(offers, &target)))
}

/// Creates the volume, from a source if one is given.
pub(crate) async fn create(
    steps: &mut Steps<'_, '_>,
    offers: &Offers,
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
        volume_capabilities: vec![spec.capability(offers)],
        parameters: spec.parameters.clone(),
        volume_content_source: source,
        accessibility_requirements: offers
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
    let answer = steps.make(name, request, Repeat::Equal, text).await?;
    answer.volume.ok_or_else(|| Failure::new(name, missing))
}

impl<'c, 'r> LifeCycle<'c, 'r> {
    /// An existing volume, and the directories for it.
    pub(crate) fn new(
        steps: Steps<'c, 'r>,
        offers: &'c Offers,
        spec: &'c VolumeSpec,
        volume: v1::Volume,
        places: Option<&'c Places>,
    ) -> Outcome<Self> {
        let mut used = VolumeUse::new(volume.volume_id, spec.capability(offers));
        used.volume_context = volume.volume_context;
        used.node_id = offers.attaches.then(|| offers.node_id.clone());
        let mut targets = Vec::new();
        if let Some(places) = places {
            let made = make_places(places, offers, spec, steps.undo_log);
            let (staging, all) =
                made.map_err(|error| Failure::new("create the staging directory", error.to_string()))?;
            (used.staging_path, targets) = (offers.stages.then_some(staging), all);
        }
        let capacity = volume.capacity_bytes.max(spec.size);
        Ok(Self { steps, offers, spec, volume: used, targets, places, capacity, snapshot: None, before: 0 })
    }
}

impl LifeCycle<'_, '_> {
    /// Runs all steps from after the creation up to the deletion.
    async fn live(&mut self) -> Outcome<()> {
        let on_node = self.places.is_some();
        self.validate().await?;
        if on_node {
            self.put_on_node().await?;
            self.write_and_read().await?;
            self.stats().await?;
        }
        self.snapshot().await?;
        self.expand().await?;
        if self.spec.keep == Keep::Everything {
            return Ok(());
        }
        if on_node {
            self.take_off_node().await?;
        }
        self.expand_unused().await?;
        self.copy().await?;
        self.delete_snapshot().await?;
        self.delete().await?;
        self.steps.undo_log.remove_directories();
        Ok(())
    }

    pub(crate) async fn put_on_node(&mut self) -> Outcome<()> {
        self.volume.put_on_node(&mut self.steps, &self.targets).await
    }

    pub(crate) async fn take_off_node(&mut self) -> Outcome<()> {
        self.volume.take_off_node(&mut self.steps, &self.targets).await
    }

    async fn validate(&mut self) -> Outcome<()> {
        if !self.offers.has_controller {
            return Ok(());
        }
        let request = v1::ValidateVolumeCapabilitiesRequest {
            parameters: self.spec.parameters.clone(),
            ..self.volume.validate_volume_capabilities()
        };
        let text = |answer: &v1::ValidateVolumeCapabilitiesResponse| match &answer.confirmed {
            Some(_) => Ok("confirmed".to_owned()),
            None => Err(format!("not confirmed: {}", answer.message)),
        };
        self.steps.make("ValidateVolumeCapabilities", request, Repeat::Equal, text).await.map(drop)
    }

    pub(crate) async fn delete(&mut self) -> Outcome<()> {
        if self.spec.existing.is_some() {
            return Ok(());
        }
        let (request, id) = (self.volume.delete_volume(), self.volume.volume_id.clone());
        self.steps.make("DeleteVolume", request, Repeat::Equal, |_| Ok(id)).await.map(drop)
    }
}
