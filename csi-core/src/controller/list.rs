//! LIST_VOLUMES, GET_VOLUME and GET_CAPACITY: what there is, and what room is left.

use std::num::NonZeroU32;

use async_trait::async_trait;

use super::Controller;
use crate::request::request;
use crate::{NodeId, Parameters, Result, Token, Topology, Volume, VolumeCapability, VolumeId};

/// A page of a listing, and where the next one starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// At most as many as the caller asked for.
    pub entries: Vec<T>,
    /// Where to go on; `None` after the last page.
    pub next_token: Option<Token>,
}

/// A volume in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeListing {
    /// The volume.
    pub volume: Volume,
    /// The nodes that it is attached to, where the driver offers LIST_VOLUMES_PUBLISHED_NODES. The attacher
    /// repairs what differs from its own view, so a wrong node here detaches volumes in use.
    pub published_node_ids: Vec<NodeId>,
}

/// Listing volumes. Spec: "ListVolumes".
#[async_trait]
pub trait ListVolumes: Controller {
    /// A page of all volumes, in an order that stays while volumes come and go.
    ///
    /// # Errors
    /// [`Error::InvalidToken`](crate::Error::InvalidToken) (ABORTED): the caller starts again.
    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<Page<VolumeListing>>;
}

request! {
    /// Which page of the volumes.
    ListVolumesRequest {
        /// At most so many entries; `None` leaves it to the driver.
        max_entries: Option<NonZeroU32>,
        /// Where the page starts; `None` at the beginning.
        starting_token: Option<Token>,
    }
}

/// One volume's particulars. Alpha. Spec: "ControllerGetVolume".
#[async_trait]
pub trait GetVolume: Controller {
    /// The volume and the nodes that it is attached to.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND).
    async fn get_volume(&self, request: ControllerGetVolumeRequest) -> Result<VolumeListing>;
}

request! {
    /// Which volume.
    ControllerGetVolumeRequest {
        /// The volume.
        volume_id: VolumeId,
    }
}

/// How much room there is. Spec: "GetCapacity".
#[async_trait]
pub trait GetCapacity: Controller {
    /// The room for volumes of this kind at this place. Asked often, with no secrets.
    ///
    /// # Errors
    /// Those of any RPC; a place or parameters that the driver does not know have no room, which is no error.
    async fn capacity(&self, request: GetCapacityRequest) -> Result<Capacity>;
}

/// Room for volumes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// How much there is in all.
    pub available_capacity: u64,
    /// The largest volume that can be made, where that is known.
    pub maximum_volume_size: Option<u64>,
    /// The smallest volume that can be made, where there is such a limit. Alpha.
    pub minimum_volume_size: Option<u64>,
}

request! {
    /// Room for what, where. Callers send a StorageClass's parameters as they are, so unknown keys are no mistake
    /// here: look up what you know with [`Parameters::get`].
    GetCapacityRequest {
        /// How the volumes will be used; empty is any way.
        volume_capabilities: Vec<VolumeCapability>,
        /// The parameters that the volumes would have.
        parameters: Parameters,
        /// The place; `None` is everywhere.
        accessible_topology: Option<Topology>,
    }
}
