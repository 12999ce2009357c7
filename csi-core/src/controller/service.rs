//! Registers a controller: what is registered is what is advertised.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::condition::Conditions;
use super::{
    Controller, ControllerExpandVolume, ControllerGetVolume, ControllerGetVolumeHealth,
    ControllerListVolumeHealth, ControllerModifyVolume, CreateDeleteSnapshot, CreateDeleteVolume,
    GetCapacity, GetSnapshot, ListSnapshots, ListVolumes, PublishUnpublishVolume,
};
use crate::offer::{ControllerCapability as Capability, Expansion};
use crate::registered::registered;

registered! {
    /// The object that serves each RPC of the Controller service, if any.
    ControllerTable of ControllerService, with controller: Controller
    fields {
        pub(crate) conditions: Conditions,
        pub(crate) modify_while_expanding: bool,
        pub(crate) expansion: Option<Expansion>,
    }
    by hand {
        expand_volume: ControllerExpandVolume = ExpandVolume,
        list_volume_health: ControllerListVolumeHealth = ListVolumeHealth,
    }
    methods {
        /// Offers CREATE_DELETE_VOLUME.
        create_delete_volume: CreateDeleteVolume = CreateDeleteVolume,
        /// Offers PUBLISH_UNPUBLISH_VOLUME.
        publish_unpublish_volume: PublishUnpublishVolume = PublishUnpublishVolume,
        /// Offers LIST_VOLUMES.
        list_volumes: ListVolumes = ListVolumes,
        /// Offers GET_CAPACITY.
        get_capacity: GetCapacity = GetCapacity,
        /// Offers CREATE_DELETE_SNAPSHOT. Then `create_volume` accepts a snapshot as its source.
        create_delete_snapshot: CreateDeleteSnapshot = CreateDeleteSnapshot,
        /// Offers LIST_SNAPSHOTS. Without it, the external-snapshotter treats every snapshot as ready.
        list_snapshots: ListSnapshots = ListSnapshots,
        /// Offers GET_SNAPSHOT. Alpha.
        get_snapshot: GetSnapshot = GetSnapshot,
        /// Offers GET_VOLUME. Alpha.
        get_volume: ControllerGetVolume = GetVolume,
        /// Offers MODIFY_VOLUME. Then `create_volume` accepts mutable parameters.
        modify_volume: ControllerModifyVolume = ModifyVolume,
        /// Offers GET_VOLUME_HEALTH, or VOLUME_CONDITION with [`Spec::V1_12`](crate::Spec::V1_12). Alpha.
        get_volume_health: ControllerGetVolumeHealth = GetVolumeHealth,
    }
}

impl ControllerTable {
    /// Whether callers of spec v1.12.0 can read volumes' health where they expect it.
    pub(crate) fn reports_condition(&self) -> bool {
        self.get_volume_health.is_some() && (self.list_volumes.is_some() || self.get_volume.is_some())
    }

    /// Serves callers of spec v1.12.0, if the driver reports health.
    #[allow(deprecated, reason = "the capability is that of v1.12.0")]
    pub(crate) fn serve_volume_condition(&mut self) {
        if self.reports_condition() && !self.without_condition {
            self.conditions =
                Conditions { get: self.get_volume_health.clone(), list: self.list_volume_health.clone() };
            self.offered.insert(Capability::VolumeCondition);
        }
    }

    /// Stops serving what is newer than spec v1.12.0.
    pub(crate) fn withdraw_v1_13(&mut self) {
        self.withdraw(Capability::GetVolumeHealth);
        self.withdraw(Capability::ListVolumeHealth);
    }
}

/// A driver as a Controller service, with the registered capabilities.
///
/// Each method requires the driver to implement the trait of the same name, else the code does not compile:
///
/// ```compile_fail,E0277
/// # use csi_core::{Result, prelude::*};
/// struct Nothing;
/// #[async_trait]
/// impl Controller for Nothing {
///     async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> { Ok(None) }
///     fn supports(&self, _: &VolumeCapability) -> bool { true }
/// }
/// ControllerService::new(std::sync::Arc::new(Nothing)).create_delete_volume(); // `CreateDeleteVolume` is not implemented
/// ```
///
/// A capability that depends on the backend is registered only if the backend has it:
/// `if pool.grows { service = service.expand_volume(Expansion::Online) }`.
pub struct ControllerService<D> {
    driver: Arc<D>,
    table: ControllerTable,
}

impl<D: Controller> ControllerService<D> {
    /// Creates a service that offers nothing but ValidateVolumeCapabilities yet.
    pub fn new(driver: Arc<D>) -> Self {
        let table = ControllerTable::new(Arc::clone(&driver) as _);
        Self { driver, table }
    }

    /// Declares CLONE_VOLUME: `create_volume` accepts a volume as its source.
    #[must_use]
    pub fn clone_volume(self) -> Self
    where
        D: CreateDeleteVolume,
    {
        self.offer(Capability::CloneVolume)
    }

    /// Declares PUBLISH_READONLY: `publish_volume` can attach a volume read-only.
    #[must_use]
    pub fn publish_readonly(self) -> Self
    where
        D: PublishUnpublishVolume,
    {
        self.offer(Capability::PublishReadonly)
    }

    /// Offers EXPAND_VOLUME, and declares the plugin's capability of online or offline expansion.
    #[must_use]
    pub fn expand_volume(mut self, expansion: Expansion) -> Self
    where
        D: ControllerExpandVolume,
    {
        self.table.expand_volume = Some(Arc::clone(&self.driver) as _);
        self.table.expansion = Some(expansion);
        self.offer(Capability::ExpandVolume)
    }

    /// Declares LIST_VOLUMES_PUBLISHED_NODES: listings say to which nodes a volume is attached. The
    /// external-attacher corrects every difference from its own view, so the listing must be right.
    #[must_use]
    pub fn list_volumes_published_nodes(self) -> Self
    where
        D: ListVolumes,
    {
        self.offer(Capability::ListVolumesPublishedNodes)
    }

    /// Lets ControllerModifyVolume and ControllerExpandVolume of one volume run at the same time, for a driver
    /// that handles it, or that makes one call to its backend of both. By default the second is ABORTED.
    #[must_use]
    pub fn modify_while_expanding(mut self) -> Self
    where
        D: ControllerModifyVolume + ControllerExpandVolume,
    {
        self.table.modify_while_expanding = true;
        self
    }

    /// Offers LIST_VOLUME_HEALTH, and GET_VOLUME_HEALTH, which it implies. Alpha, new in spec v1.13.0. With
    /// [`Spec::V1_12`](crate::Spec::V1_12) the list is the source of VOLUME_CONDITION in ListVolumes.
    ///
    /// - spec: `controller-list-volume-health.needs-get`
    #[must_use]
    pub fn list_volume_health(mut self) -> Self
    where
        D: ControllerListVolumeHealth,
    {
        self.table.list_volume_health = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::ListVolumeHealth).get_volume_health()
    }

    /// Declares SINGLE_NODE_MULTI_WRITER: the driver distinguishes this access mode and
    /// SINGLE_NODE_SINGLE_WRITER from SINGLE_NODE_WRITER. Declare it for the node too.
    #[must_use]
    pub fn single_node_multi_writer(self) -> Self {
        self.offer(Capability::SingleNodeMultiWriter)
    }

    /// Withdraws a capability: it is not advertised and its RPCs are not served. For a backend that turns
    /// out not to support it. For callers of an older spec see [`Plugin::spec`](crate::Plugin::spec).
    ///
    /// ```
    /// # use csi_core::controller::ControllerGetVolumeHealth;
    /// # use csi_core::{ControllerCapability, Result, prelude::*};
    /// # fn configured<D: ControllerGetVolumeHealth>(service: ControllerService<D>, pool_is_remote: bool) -> ControllerService<D> {
    /// let service = service.get_volume_health();
    /// if pool_is_remote { service.without(ControllerCapability::GetVolumeHealth) } else { service }
    /// # }
    /// ```
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        if capability == Capability::ExpandVolume {
            self.table.expansion = None;
        }
        self.table.withdraw(capability);
        self
    }
}
