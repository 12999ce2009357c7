//! The life of a volume, call by call.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use csi_proto::Rpc;
use csi_proto::v1;
use v1::volume_content_source::Type as Source;

use super::call::{Caller, Failure, Outcome};
use super::discovery::Offers;
use super::report::size;
use super::undo::{Step, UndoLog};
use super::volume_spec::{Access, Keep, Places, TargetChecks, VolumeSpec};

/// An existing volume, and its caller.
pub(crate) struct LifeCycle<'c, 'r> {
    pub(crate) caller: &'c mut Caller<'r>,
    pub(crate) undo_log: &'c mut UndoLog,
    pub(crate) offers: &'c Offers,
    pub(crate) spec: &'c VolumeSpec,
    pub(crate) checks: TargetChecks,
    pub(crate) id: String,
    pub(crate) context: BTreeMap<String, String>,
    pub(crate) publish_context: BTreeMap<String, String>,
    pub(crate) staging: PathBuf,
    /// The target paths; none if the volume is put on no node.
    pub(crate) targets: Vec<(PathBuf, Access)>,
    pub(crate) places: Option<&'c Places>,
    /// The size in bytes, as the driver returned it last.
    pub(crate) capacity: i64,
    /// The snapshot, with the size of the volume when it was taken.
    pub(crate) snapshot: Option<(v1::Snapshot, i64)>,
    /// Whether the driver mounted the volume at the staging path. It is free to stage in another way.
    pub(crate) is_mounted_at_staging: bool,
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
    let volume = match &spec.existing {
        Some(volume) => v1::Volume {
            volume_id: volume.id.clone(),
            volume_context: volume.context.clone(),
            ..Default::default()
        },
        None if offers.creates => create(caller, offers, spec, None, undo_log).await?,
        None => {
            let hint = "this driver does not create volumes: name an existing one (VolumeSpec::existing, \
                 --volume-id)";
            return Err(Failure::new("CreateVolume", hint));
        }
    };
    let places = places.filter(|_| offers.node);
    let mut life = LifeCycle::new(caller, undo_log, offers, spec, volume, places)?;
    life.live().await
}

/// Creates the staging directory and the parents of the targets, which the orchestrator has to create.
/// Returns the staging directory and the targets.
fn make_places(
    places: &Places,
    offers: &Offers,
    spec: &VolumeSpec,
    undo_log: &mut UndoLog,
) -> std::io::Result<(PathBuf, Vec<(PathBuf, Access)>)> {
    let (staging, target) = (places.staging.join(&spec.name), places.target.join(&spec.name));
    for directory in [&staging, &staging.join("staging"), &target] {
        undo_log.make_directory(directory.clone())?;
    }
    let targets = spec.targets(offers).iter().map(|(name, access)| (target.join(name), *access));
    Ok((staging.join("staging"), targets.collect()))
}

/// Creates the volume, from a source if one is given.
pub(crate) async fn create(
    caller: &mut Caller<'_>,
    offers: &Offers,
    spec: &VolumeSpec,
    source: Option<v1::VolumeContentSource>,
    undo_log: &mut UndoLog,
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
        secrets: spec.secrets.of(Rpc::CreateVolume),
        volume_content_source: source,
        accessibility_requirements: offers
            .topology
            .clone()
            .map(|here| v1::TopologyRequirement { requisite: vec![here.clone()], preferred: vec![here] }),
        ..Default::default()
    };
    undo_log.record(Step::MaybeVolume(request.clone()));
    let answer = caller
        .step(
            name,
            &request,
            async |sockets, request| {
                let answer = sockets.controller().create_volume(request).await?;
                if let Some(volume) = &answer.get_ref().volume {
                    undo_log.set_volume_id(&volume.volume_id);
                }
                Ok(answer)
            },
            |answer| {
                let volume = answer.volume.as_ref().ok_or("the answer has no volume")?;
                // A size of 0 means that the driver does not track sizes.
                match volume.capacity_bytes {
                    0 => Ok(volume.volume_id.clone()),
                    bytes if bytes < spec.size => Err(format!("the volume has only {bytes} bytes")),
                    bytes => Ok(format!("{}, {}", volume.volume_id, size(bytes.unsigned_abs()))),
                }
            },
        )
        .await?;
    answer.volume.ok_or_else(|| Failure::new(name, "the answer has no volume"))
}

impl<'c, 'r> LifeCycle<'c, 'r> {
    /// An existing volume, and the directories for it.
    pub(crate) fn new(
        caller: &'c mut Caller<'r>,
        undo_log: &'c mut UndoLog,
        offers: &'c Offers,
        spec: &'c VolumeSpec,
        volume: v1::Volume,
        places: Option<&'c Places>,
    ) -> Outcome<Self> {
        let (staging, targets) = match places {
            Some(places) => make_places(places, offers, spec, undo_log)
                .map_err(|error| Failure::new("create the staging directory", error.to_string()))?,
            None => (PathBuf::new(), Vec::new()),
        };
        Ok(Self {
            caller,
            undo_log,
            offers,
            spec,
            checks: spec.checks(offers),
            id: volume.volume_id,
            context: volume.volume_context,
            publish_context: BTreeMap::new(),
            staging,
            targets,
            places,
            capacity: volume.capacity_bytes.max(spec.size),
            snapshot: None,
            is_mounted_at_staging: false,
            before: 0,
        })
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
        self.undo_log.remove_directories();
        Ok(())
    }

    pub(crate) async fn put_on_node(&mut self) -> Outcome<()> {
        self.attach().await?;
        self.stage().await?;
        self.publish().await
    }

    pub(crate) async fn take_off_node(&mut self) -> Outcome<()> {
        self.unpublish().await?;
        self.unstage().await?;
        self.detach().await
    }

    /// The staging path for requests.
    pub(crate) fn staging_path(&self) -> String {
        if self.offers.stages { text(&self.staging) } else { String::new() }
    }

    async fn validate(&mut self) -> Outcome<()> {
        if !self.offers.has_controller {
            return Ok(());
        }
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: self.id.clone(),
            volume_context: self.context.clone(),
            volume_capabilities: vec![self.spec.capability(self.offers)],
            parameters: self.spec.parameters.clone(),
            secrets: self.spec.secrets.of(Rpc::ValidateVolumeCapabilities),
            ..Default::default()
        };
        self.caller
            .step(
                "ValidateVolumeCapabilities",
                &request,
                async |sockets, request| sockets.controller().validate_volume_capabilities(request).await,
                |answer| match &answer.confirmed {
                    Some(_) => Ok("confirmed".to_owned()),
                    None => Err(format!("not confirmed: {}", answer.message)),
                },
            )
            .await
            .map(drop)
    }

    fn detach_request(&self) -> v1::ControllerUnpublishVolumeRequest {
        v1::ControllerUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: self.offers.node_id.clone(),
            secrets: self.spec.secrets.of(Rpc::ControllerUnpublishVolume),
        }
    }

    async fn attach(&mut self) -> Outcome<()> {
        if !self.offers.attaches {
            return Ok(());
        }
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: self.offers.node_id.clone(),
            volume_capability: Some(self.spec.capability(self.offers)),
            volume_context: self.context.clone(),
            secrets: self.spec.secrets.of(Rpc::ControllerPublishVolume),
            readonly: false,
        };
        self.undo_log.record(Step::Attached(self.detach_request()));
        let node = self.offers.node_id.clone();
        let answer = self
            .caller
            .step(
                "ControllerPublishVolume",
                &request,
                async |sockets, request| sockets.controller().controller_publish_volume(request).await,
                |_| Ok(format!("attached to {node}")),
            )
            .await?;
        self.publish_context = answer.publish_context;
        Ok(())
    }

    async fn detach(&mut self) -> Outcome<()> {
        if !self.offers.attaches {
            return Ok(());
        }
        let request = self.detach_request();
        self.caller
            .step(
                "ControllerUnpublishVolume",
                &request,
                async |sockets, request| sockets.controller().controller_unpublish_volume(request).await,
                |_| Ok("detached".to_owned()),
            )
            .await?;
        self.undo_log.forget(&Step::Attached(request));
        Ok(())
    }

    pub(crate) async fn delete(&mut self) -> Outcome<()> {
        if self.spec.existing.is_some() {
            return Ok(());
        }
        let secrets = self.spec.secrets.of(Rpc::DeleteVolume);
        let request = v1::DeleteVolumeRequest { volume_id: self.id.clone(), secrets };
        self.caller
            .step(
                "DeleteVolume",
                &request,
                async |sockets, request| sockets.controller().delete_volume(request).await,
                |_| Ok(request.volume_id.clone()),
            )
            .await?;
        self.undo_log.forget(&Step::Volume(request));
        Ok(())
    }
}

/// The path as text for requests. It is UTF-8, because the place is.
pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}
