//! LIST_VOLUMES, GET_VOLUME and GET_CAPACITY: existing volumes and free capacity.

use std::num::NonZeroU32;

use async_trait::async_trait;
use csi_proto::v1;

use super::{Controller, Page};
use crate::call::request::request;
use crate::call::{Call, Reply};
use crate::error::{Error, Result};
use crate::offer::{Offer, PluginService};
use crate::types::place::usable_from;
use crate::types::volume::signed;
use crate::types::{NodeId, Parameters, Token, Topology, Volume, VolumeCapability, VolumeId};

/// A volume in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeListing {
    /// The volume.
    pub volume: Volume,
    /// The nodes that the volume is attached to, if the driver offers LIST_VOLUMES_PUBLISHED_NODES. The
    /// external-attacher corrects every difference from its own view, so a wrong node here detaches volumes
    /// in use.
    pub published_node_ids: Vec<NodeId>,
}

impl VolumeListing {
    /// Creates the entry of a volume that is attached to these nodes. A driver that does not offer
    /// LIST_VOLUMES_PUBLISHED_NODES gives none.
    pub fn new(volume: Volume, published_node_ids: impl IntoIterator<Item = NodeId>) -> Self {
        Self { volume, published_node_ids: published_node_ids.into_iter().collect() }
    }
}

/// A volume in a listing, with its condition if older callers are served.
#[allow(deprecated, reason = "the form of v1.12.0 is what this is for")]
pub(crate) struct ListedVolume {
    pub(crate) volume: VolumeListing,
    pub(crate) condition: Option<v1::VolumeCondition>,
}

/// Lists volumes. Spec: "ListVolumes".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ListVolumes`",
    label = "needs `impl ListVolumes for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait ListVolumes: Controller {
    /// Returns a page of all volumes, in an order that stays the same while volumes are created and
    /// deleted.
    ///
    /// - spec: `list-volumes.all`, `list-volumes.max-entries`, `list-volumes.bad-token`
    /// - spec: `list-volumes.published-nodes`
    ///
    /// # Errors
    /// [`Error::InvalidToken`](crate::Error::InvalidToken) (ABORTED): the caller starts again from the
    /// beginning.
    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<Page<VolumeListing>>;
}

request! {
    /// Which page of the volumes.
    ListVolumesRequest {
        /// The maximum number of entries; `None` lets the driver choose.
        max_entries: Option<NonZeroU32>,
        /// Where the page starts; `None` means the beginning.
        starting_token: Option<Token>,
    }
}

/// Returns one volume. Alpha. Spec: "ControllerGetVolume".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ControllerGetVolume`",
    label = "needs `impl ControllerGetVolume for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait ControllerGetVolume: Controller {
    /// Returns the volume and the nodes that it is attached to.
    ///
    /// - spec: `controller-get-volume.current`, `controller-get-volume.missing`
    /// - spec: `controller-get-volume.published-nodes`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND).
    async fn get_volume(&self, request: ControllerGetVolumeRequest) -> Result<VolumeListing>;
}

request! {
    /// Which volume to return.
    ControllerGetVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
    }
}

/// Reports the free capacity. Spec: "GetCapacity".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `GetCapacity`",
    label = "needs `impl GetCapacity for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait GetCapacity: Controller {
    /// Returns the capacity for volumes of this kind at this place: with these parameters, for all of these
    /// capabilities. Report the largest and smallest size of a volume if the storage has such limits.
    /// Called often, without secrets.
    ///
    /// - spec: `get-capacity.for-what-is-asked`, `get-capacity.sizes`
    ///
    /// # Errors
    /// Those of any RPC. A place or parameters that the driver does not know have no capacity, which is not
    /// an error.
    async fn capacity(&self, request: GetCapacityRequest) -> Result<Capacity>;
}

/// Capacity for volumes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Capacity {
    /// The total capacity available.
    pub available_capacity: u64,
    /// The size of the largest volume that can be created, if known.
    pub maximum_volume_size: Option<u64>,
    /// The size of the smallest volume that can be created, if such a limit exists. Alpha.
    pub minimum_volume_size: Option<u64>,
}

impl Capacity {
    /// Creates a capacity of this many bytes, without limits for the size of a volume.
    pub fn new(available_capacity: u64) -> Self {
        Self { available_capacity, ..Self::default() }
    }

    /// Sets the size in bytes of the largest volume that can be created.
    #[must_use]
    pub fn maximum_volume_size(self, bytes: u64) -> Self {
        Self { maximum_volume_size: Some(bytes), ..self }
    }

    /// Sets the size in bytes of the smallest volume that can be created. Alpha.
    #[must_use]
    pub fn minimum_volume_size(self, bytes: u64) -> Self {
        Self { minimum_volume_size: Some(bytes), ..self }
    }
}

request! {
    /// Which capacity to report. Callers send a StorageClass's parameters unchanged, so unknown keys are no
    /// error here: read the known ones with [`parse_known`](crate::types::StringMap::parse_known).
    GetCapacityRequest {
        /// How the volumes will be used; empty means in any way.
        volume_capabilities: Vec<VolumeCapability>,
        /// The parameters that the volumes would have.
        parameters: Parameters,
        /// The place; `None` means everywhere.
        accessible_topology: Option<Topology>,
    }
}

impl Call for ListVolumesRequest {
    type Answer = Page<ListedVolume>;

    // spec: list-volumes.published-nodes
    #[allow(deprecated, reason = "the condition is answered for callers of spec v1.12.0")]
    fn reply(page: Page<ListedVolume>, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        use v1::list_volumes_response::{Entry, VolumeStatus};
        let entry = |ListedVolume { volume: VolumeListing { volume, published_node_ids }, condition }| {
            let status = VolumeStatus {
                published_node_ids: published_node_ids.into_iter().map(Into::into).collect(),
                volume_condition: condition,
            };
            Ok(Entry { volume: Some(volume.answer(offer)?), status: Some(status) })
        };
        let (entries, next_token) = page.answer(request.max_entries, &request.starting_token, entry)?;
        Ok(v1::ListVolumesResponse { entries, next_token })
    }
}

impl Call for ControllerGetVolumeRequest {
    type Answer = ListedVolume;

    // spec: controller-get-volume.current, controller-get-volume.published-nodes
    #[allow(deprecated, reason = "the condition is answered for callers of spec v1.12.0")]
    fn reply(answer: ListedVolume, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        let VolumeListing { volume, published_node_ids } = answer.volume;
        if volume.volume_id.as_str() != request.volume_id {
            let other = volume.volume_id;
            return Err(Error::broken(format!("volume.volume_id is {other}, not the volume asked about")));
        }
        let status = v1::controller_get_volume_response::VolumeStatus {
            published_node_ids: published_node_ids.into_iter().map(Into::into).collect(),
            volume_condition: answer.condition,
        };
        Ok(v1::ControllerGetVolumeResponse { volume: Some(volume.answer(offer)?), status: Some(status) })
    }
}

impl GetCapacityRequest {
    /// Whether the capacity of this place counts: it is in the requested place, or none is requested.
    pub fn is_for(&self, place: &Topology) -> bool {
        self.accessible_topology.as_ref().is_none_or(|wanted| usable_from(place, wanted))
    }
}

impl Call for GetCapacityRequest {
    type Answer = Capacity;

    // spec: get-capacity.place-needs-capability
    fn permitted(&self, offer: &Offer) -> Result<()> {
        for (at, capability) in self.volume_capabilities.iter().enumerate() {
            offer.check_controller_use(&format!("volume_capabilities[{at}]"), capability)?;
        }
        if self.accessible_topology.is_some()
            && !offer.has_service(PluginService::VolumeAccessibilityConstraints)
        {
            let reason = "must be left out: the plugin has no VOLUME_ACCESSIBILITY_CONSTRAINTS";
            return Err(Error::invalid("accessible_topology", reason));
        }
        Ok(())
    }

    // spec: get-capacity.not-negative
    fn reply(answer: Capacity, _: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        let optional = |field: &str, bytes: Option<u64>| bytes.map(|bytes| signed(field, bytes)).transpose();
        Ok(v1::GetCapacityResponse {
            available_capacity: signed("available_capacity", answer.available_capacity)?,
            maximum_volume_size: optional("maximum_volume_size", answer.maximum_volume_size)?,
            minimum_volume_size: optional("minimum_volume_size", answer.minimum_volume_size)?,
        })
    }
}
