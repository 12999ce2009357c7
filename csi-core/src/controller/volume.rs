//! CREATE_DELETE_VOLUME.

use async_trait::async_trait;
use csi_proto::v1;

use super::Controller;
use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, Reply, answers_nothing};
use crate::error::{Error, Result};
use crate::offer::{Offer, PluginService};
use crate::types::capability;
use crate::types::{
    CapacityRange, ContentSource, Name, Parameters, Secrets, TopologyRequirement, Volume, VolumeCapability,
    VolumeId,
};
use v1::controller_service_capability::rpc::Type as Capability;

/// Creates and deletes volumes. Spec: "CreateVolume", "DeleteVolume".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `CreateDeleteVolume`",
    label = "needs `impl CreateDeleteVolume for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait CreateDeleteVolume: Controller {
    /// Creates the volume, or finds and returns the volume that was created for this name before.
    ///
    /// The name is the idempotency key: callers repeat the call, even after a restart, until they receive
    /// an answer. The framework runs one call for a name at a time, has checked each capability with
    /// [`Controller::supports`], and compares the answer with the request: a size out of range or another
    /// source becomes ALREADY_EXISTS.
    ///
    /// The driver does the rest. A volume of this name with other parameters is [`Error::Incompatible`]
    /// (helper: [`CreateRecord`](crate::controller::CreateRecord)). Mutable parameters take precedence over
    /// parameters with the same key. Preferred places are tried in their order. A volume with a source has
    /// the source's content. If it is larger than the source, it also has its own size by the time a workload
    /// sees it. The id identifies the volume among all others, without the context. The context never changes
    /// and contains no secrets.
    ///
    /// - spec: `create-volume.same-name-same-volume`, `create-volume.one-volume-a-name`
    /// - spec: `create-volume.differs-is-already-exists`, `create-volume.capacity-range`
    /// - spec: `create-volume.out-of-range`, `create-volume.mutable-parameters-win`
    /// - spec: `create-volume.from-snapshot`, `create-volume.from-volume`
    /// - spec: `create-volume.source-not-supported`, `create-volume.source-missing`
    /// - spec: `create-volume.larger-than-source`, `create-volume.topology-met`
    /// - spec: `create-volume.topology-preferred`, `create-volume.topology-unmet`
    /// - spec: `create-volume.id-is-unique`, `create-volume.context-stays`
    /// - spec: `create-volume.context-without-secrets`
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] or [`Error::Unsupported`] (INVALID_ARGUMENT) for parameters or a source
    /// that can't be used; [`Error::SourceNotFound`] (NOT_FOUND); [`Error::Incompatible`] (ALREADY_EXISTS)
    /// for a volume of this name that differs; [`Error::OutOfRange`] (OUT_OF_RANGE) for a size that the
    /// storage can't provide; [`Error::LimitReached`] or [`Error::TopologyUnsatisfied`]
    /// (RESOURCE_EXHAUSTED). After an error nothing may be left behind.
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume>;

    /// Deletes the volume. The framework has found it with [`Controller::lookup`]. For a volume that does
    /// not exist, or that disappears meanwhile ([`Error::VolumeNotFound`]), the framework answers that it
    /// is deleted. Snapshots that do not need the volume stay as they are: they are listed, and volumes can
    /// be created from them.
    ///
    /// - spec: `delete-volume.missing-is-ok`, `delete-volume.in-use`, `delete-volume.snapshots-live-on`
    ///
    /// # Errors
    /// [`Error::InUse`] (FAILED_PRECONDITION) when the volume is attached or has snapshots that need it; it
    /// then stays unchanged.
    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()>;
}

request! {
    /// Which volume to create.
    CreateVolumeRequest about name {
        /// The idempotency key, and a suggestion for a name.
        name: Name,
        /// The accepted sizes; any size if the caller gave none.
        capacity_range: CapacityRange,
        /// How the volume will be used: it must support all of these.
        volume_capabilities: Vec<VolumeCapability> = capability::read_required,
        /// The driver's own parameters.
        parameters: Parameters,
        /// Credentials.
        secrets: Secrets,
        /// The source from which to copy the content.
        volume_content_source: Option<ContentSource>,
        /// From where the volume must be usable. Always `None` unless the plugin offers
        /// VOLUME_ACCESSIBILITY_CONSTRAINTS.
        accessibility_requirements: Option<TopologyRequirement>,
        /// Parameters that can be changed later; they take precedence over `parameters`. Always empty
        /// unless the driver offers MODIFY_VOLUME.
        mutable_parameters: Parameters,
    }
}

/// The filesystem of a mounted volume whose caller names none.
const DEFAULT_FS_TYPE: &str = "ext4";

impl CreateVolumeRequest {
    /// Refuses a copy that could never be staged: one of a source that holds this filesystem, to be mounted as
    /// another one. A capability without a filesystem is ext4, as for `stage_plan`. For drivers whose volumes
    /// are block devices.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the capability's field.
    pub fn check_source_fs_type(&self, source: Option<&str>) -> Result<()> {
        let Some(source) = source else { return Ok(()) };
        for (at, capability) in self.volume_capabilities.iter().enumerate() {
            let requested = capability.fs_type().unwrap_or(DEFAULT_FS_TYPE);
            if capability.is_mount() && requested != source {
                let empty = if capability.fs_type().is_none() { "empty, which means " } else { "" };
                return Err(Error::invalid(
                    format!("volume_capabilities[{at}].mount.fs_type"),
                    format!(
                        "is {empty}{requested}, but volume_content_source holds {source}: request {source}, in \
                         Kubernetes with the StorageClass's csi.storage.k8s.io/fstype"
                    ),
                ));
            }
        }
        Ok(())
    }
}

request! {
    /// Which volume to delete.
    DeleteVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Refuses the first capability that the driver does not support, and names its index.
pub(crate) fn check_supported(
    supports: impl Fn(&VolumeCapability) -> bool,
    capabilities: &[VolumeCapability],
) -> Result<()> {
    match capabilities.iter().position(|capability| !supports(capability)) {
        Some(at) => Err(Error::invalid(
            format!("volume_capabilities[{at}]"),
            format!("is {}, which this driver does not support", capabilities[at]),
        )),
        None => Ok(()),
    }
}

impl Call for CreateVolumeRequest {
    type Answer = Volume;

    // spec: create-volume.all-capabilities, create-volume.mutable-parameters-need-capability
    // spec: create-volume.source-not-supported, create-volume.topology-needs-capability
    fn permitted(&self, offer: &Offer) -> Result<()> {
        for (at, capability) in self.volume_capabilities.iter().enumerate() {
            offer.check_controller_use(&format!("volume_capabilities[{at}]"), capability)?;
        }
        let cuts = offer.has_controller(Capability::CreateDeleteSnapshot)
            || offer.has_service(PluginService::GroupControllerService);
        match &self.volume_content_source {
            Some(ContentSource::Volume(_)) if !offer.has_controller(Capability::CloneVolume) => {
                return Err(Error::invalid(
                    "volume_content_source.volume",
                    "is not possible: no CLONE_VOLUME",
                ));
            }
            Some(ContentSource::Snapshot(_)) if !cuts => {
                let reason = "is not possible: no CREATE_DELETE_SNAPSHOT";
                return Err(Error::invalid("volume_content_source.snapshot", reason));
            }
            _ => {}
        }
        if self.accessibility_requirements.is_some()
            && !offer.has_service(PluginService::VolumeAccessibilityConstraints)
        {
            let reason = "must be left out: the plugin has no VOLUME_ACCESSIBILITY_CONSTRAINTS";
            return Err(Error::invalid("accessibility_requirements", reason));
        }
        if self.mutable_parameters.iter().next().is_some() && !offer.has_controller(Capability::ModifyVolume)
        {
            return Err(Error::invalid("mutable_parameters", "must be left out: no MODIFY_VOLUME"));
        }
        Ok(())
    }

    // spec: create-volume.same-name-same-volume, create-volume.one-volume-a-name
    fn claims(&self) -> Vec<Claim> {
        let mut claims = vec![Claim::alone(Key::VolumeName(self.name.as_str().to_owned()))];
        match &self.volume_content_source {
            Some(ContentSource::Volume(id)) => {
                claims.push(Claim::shared(Key::Volume(id.as_str().to_owned())));
            }
            Some(ContentSource::Snapshot(id)) => {
                claims.push(Claim::shared(Key::Snapshot(id.as_str().to_owned())));
            }
            None => {}
        }
        claims
    }

    fn claims_in(&self, offer: &Offer) -> Vec<Claim> {
        let volume = (offer.volume_id_of_name)(&self.name);
        let volume = volume.map(|id| Claim::alone(Key::Volume(id.as_str().to_owned())));
        self.claims().into_iter().chain(volume).collect()
    }

    // spec: create-volume.differs-is-already-exists, create-volume.capacity-range, create-volume.source-told
    // spec: create-volume.topology-met
    fn reply(mut volume: Volume, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        let range = CapacityRange::asked(request.capacity_range.as_ref())?;
        if volume.capacity_bytes != 0 && !range.contains(volume.capacity_bytes) {
            return Err(Error::Incompatible(
                format!(
                    "capacity_range: a volume of this name exists and has {} bytes",
                    volume.capacity_bytes
                )
                .into(),
            ));
        }
        let requirements = TopologyRequirement::asked(request.accessibility_requirements.as_ref())?;
        if !requirements.is_satisfied_by(&volume.accessible_topology) {
            return Err(Error::Incompatible(
                "accessibility_requirements: a volume of this name exists and is not usable from there"
                    .to_owned()
                    .into(),
            ));
        }
        let asked = request
            .volume_content_source
            .as_ref()
            .map(|source| ContentSource::read("volume_content_source", source))
            .transpose()?;
        if volume.content_source.is_none() {
            volume.content_source = asked;
        } else if volume.content_source != asked {
            let text = "volume_content_source: a volume of this name exists with another source";
            return Err(Error::Incompatible(text.to_owned().into()));
        }
        Ok(v1::CreateVolumeResponse { volume: Some(volume.answer(offer)?) })
    }
}

impl Call for DeleteVolumeRequest {
    answers_nothing!();

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::alone(Key::Volume(self.volume_id.as_str().to_owned()))]
    }

    // spec: delete-volume.missing-is-ok
    fn answer_to_error(error: Error) -> Result<()> {
        match error {
            Error::VolumeNotFound(_) => Ok(()),
            other => Err(other),
        }
    }
}
