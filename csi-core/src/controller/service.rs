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

/// The object that serves each RPC of the Controller service, if any.
pub(crate) struct ControllerTable {
    pub(crate) controller: Arc<dyn Controller>,
    pub(crate) create_delete_volume: Option<Arc<dyn CreateDeleteVolume>>,
    pub(crate) publish_unpublish_volume: Option<Arc<dyn PublishUnpublishVolume>>,
    pub(crate) list_volumes: Option<Arc<dyn ListVolumes>>,
    pub(crate) capacity: Option<Arc<dyn GetCapacity>>,
    pub(crate) create_delete_snapshot: Option<Arc<dyn CreateDeleteSnapshot>>,
    pub(crate) list_snapshots: Option<Arc<dyn ListSnapshots>>,
    pub(crate) snapshot: Option<Arc<dyn GetSnapshot>>,
    pub(crate) expand_volume: Option<Arc<dyn ControllerExpandVolume>>,
    pub(crate) volume: Option<Arc<dyn ControllerGetVolume>>,
    pub(crate) modify_volume: Option<Arc<dyn ControllerModifyVolume>>,
    pub(crate) volume_health: Option<Arc<dyn ControllerGetVolumeHealth>>,
    pub(crate) list_volume_health: Option<Arc<dyn ControllerListVolumeHealth>>,
    pub(crate) conditions: Conditions,
    pub(crate) modify_while_expanding: bool,
    /// Whether the driver withdrew VOLUME_CONDITION.
    without_condition: bool,
    pub(crate) expansion: Option<Expansion>,
    pub(crate) offered: BTreeSet<Capability>,
}

impl ControllerTable {
    fn new(controller: Arc<dyn Controller>) -> Self {
        Self {
            controller,
            create_delete_volume: None,
            publish_unpublish_volume: None,
            list_volumes: None,
            capacity: None,
            create_delete_snapshot: None,
            list_snapshots: None,
            snapshot: None,
            expand_volume: None,
            volume: None,
            modify_volume: None,
            volume_health: None,
            list_volume_health: None,
            conditions: Conditions::default(),
            modify_while_expanding: false,
            without_condition: false,
            expansion: None,
            offered: BTreeSet::new(),
        }
    }

    /// Whether callers of spec v1.12.0 can read volumes' health where they expect it.
    pub(crate) fn reports_condition(&self) -> bool {
        self.volume_health.is_some() && (self.list_volumes.is_some() || self.volume.is_some())
    }

    /// Serves callers of spec v1.12.0, if the driver reports health.
    #[allow(deprecated, reason = "the capability is that of v1.12.0")]
    pub(crate) fn serve_volume_condition(&mut self) {
        if self.reports_condition() && !self.without_condition {
            self.conditions =
                Conditions { get: self.volume_health.clone(), list: self.list_volume_health.clone() };
            self.offered.insert(Capability::VolumeCondition);
        }
    }

    /// Stops serving what is newer than spec v1.12.0.
    pub(crate) fn withdraw_v1_13(&mut self) {
        self.withdraw(Capability::GetVolumeHealth);
        self.withdraw(Capability::ListVolumeHealth);
    }

    /// Stops serving this capability.
    #[allow(deprecated, reason = "VOLUME_CONDITION is that of v1.12.0")]
    fn withdraw(&mut self, capability: Capability) {
        self.offered.remove(&capability);
        match capability {
            Capability::CreateDeleteVolume => self.create_delete_volume = None,
            Capability::PublishUnpublishVolume => self.publish_unpublish_volume = None,
            Capability::ListVolumes => self.list_volumes = None,
            Capability::GetCapacity => self.capacity = None,
            Capability::CreateDeleteSnapshot => self.create_delete_snapshot = None,
            Capability::ListSnapshots => self.list_snapshots = None,
            Capability::GetSnapshot => self.snapshot = None,
            Capability::ExpandVolume => (self.expand_volume, self.expansion) = (None, None),
            Capability::GetVolume => self.volume = None,
            Capability::ModifyVolume => self.modify_volume = None,
            Capability::GetVolumeHealth => self.volume_health = None,
            Capability::ListVolumeHealth => self.list_volume_health = None,
            Capability::VolumeCondition => self.without_condition = true,
            _ => {}
        }
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

    fn offer(mut self, capability: Capability) -> Self {
        self.table.offered.insert(capability);
        self
    }

    /// Offers CREATE_DELETE_VOLUME.
    #[must_use]
    pub fn create_delete_volume(mut self) -> Self
    where
        D: CreateDeleteVolume,
    {
        self.table.create_delete_volume = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::CreateDeleteVolume)
    }

    /// Declares CLONE_VOLUME: `create_volume` accepts a volume as its source.
    #[must_use]
    pub fn clone_volume(self) -> Self
    where
        D: CreateDeleteVolume,
    {
        self.offer(Capability::CloneVolume)
    }

    /// Offers PUBLISH_UNPUBLISH_VOLUME.
    #[must_use]
    pub fn publish_unpublish_volume(mut self) -> Self
    where
        D: PublishUnpublishVolume,
    {
        self.table.publish_unpublish_volume = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::PublishUnpublishVolume)
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

    /// Offers LIST_VOLUMES.
    #[must_use]
    pub fn list_volumes(mut self) -> Self
    where
        D: ListVolumes,
    {
        self.table.list_volumes = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::ListVolumes)
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

    /// Offers GET_CAPACITY.
    #[must_use]
    pub fn get_capacity(mut self) -> Self
    where
        D: GetCapacity,
    {
        self.table.capacity = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::GetCapacity)
    }

    /// Offers CREATE_DELETE_SNAPSHOT. Then `create_volume` accepts a snapshot as its source.
    #[must_use]
    pub fn create_delete_snapshot(mut self) -> Self
    where
        D: CreateDeleteSnapshot,
    {
        self.table.create_delete_snapshot = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::CreateDeleteSnapshot)
    }

    /// Offers LIST_SNAPSHOTS. Without it, the external-snapshotter treats every snapshot as ready.
    #[must_use]
    pub fn list_snapshots(mut self) -> Self
    where
        D: ListSnapshots,
    {
        self.table.list_snapshots = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::ListSnapshots)
    }

    /// Offers GET_SNAPSHOT. Alpha.
    #[must_use]
    pub fn get_snapshot(mut self) -> Self
    where
        D: GetSnapshot,
    {
        self.table.snapshot = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::GetSnapshot)
    }

    /// Offers GET_VOLUME. Alpha.
    #[must_use]
    pub fn get_volume(mut self) -> Self
    where
        D: ControllerGetVolume,
    {
        self.table.volume = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::GetVolume)
    }

    /// Offers MODIFY_VOLUME. Then `create_volume` accepts mutable parameters.
    #[must_use]
    pub fn modify_volume(mut self) -> Self
    where
        D: ControllerModifyVolume,
    {
        self.table.modify_volume = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::ModifyVolume)
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

    /// Offers GET_VOLUME_HEALTH, or VOLUME_CONDITION with [`Spec::V1_12`](crate::Spec::V1_12). Alpha.
    #[must_use]
    pub fn get_volume_health(mut self) -> Self
    where
        D: ControllerGetVolumeHealth,
    {
        self.table.volume_health = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::GetVolumeHealth)
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
        self.table.withdraw(capability);
        self
    }

    pub(crate) fn into_table(self) -> ControllerTable {
        self.table
    }
}

impl<D> fmt::Debug for ControllerService<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ControllerService").field(&self.table.offered).finish()
    }
}
