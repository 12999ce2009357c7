//! Registering a controller: what is registered is what is advertised.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use csi_proto::v1;

use super::{Controller, CreateDeleteVolume, ExpandVolume, PublishUnpublishVolume};
use v1::controller_service_capability::rpc::Type as Capability;

/// When a volume can be made larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// While it is published to a node, too.
    Online,
    /// Only while it is not published to any node.
    Offline,
}

/// What serves each RPC of the Controller service, if anything does.
pub(crate) struct ControllerTable {
    pub(crate) controller: Arc<dyn Controller>,
    pub(crate) create_delete_volume: Option<Arc<dyn CreateDeleteVolume>>,
    pub(crate) publish_unpublish_volume: Option<Arc<dyn PublishUnpublishVolume>>,
    pub(crate) expand_volume: Option<Arc<dyn ExpandVolume>>,
    pub(crate) expansion: Option<Expansion>,
    pub(crate) offered: BTreeSet<Capability>,
}

/// A driver as a Controller service, with the capabilities that are registered.
///
/// Each method takes a driver that has the trait of the same name; without it, it does not compile:
///
/// ```compile_fail
/// # use csi_core::*;
/// struct Nothing;
/// #[async_trait]
/// impl Controller for Nothing {
///     async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> { Ok(None) }
///     fn supports(&self, _: &VolumeCapability) -> bool { true }
/// }
/// ControllerService::new(std::sync::Arc::new(Nothing)).create_delete_volume(); // `CreateDeleteVolume` is not implemented
/// ```
///
/// A capability that depends on the backend is registered when the backend has it:
/// `if pool.grows { service = service.expand_volume(Expansion::Online) }`.
pub struct ControllerService<D> {
    driver: Arc<D>,
    table: ControllerTable,
}

impl<D: Controller> ControllerService<D> {
    /// The driver as a controller that offers nothing but ValidateVolumeCapabilities yet.
    pub fn new(driver: Arc<D>) -> Self {
        let table = ControllerTable {
            controller: Arc::clone(&driver) as _,
            create_delete_volume: None,
            publish_unpublish_volume: None,
            expand_volume: None,
            expansion: None,
            offered: BTreeSet::new(),
        };
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

    /// Offers EXPAND_VOLUME, and the plugin's capability of online or offline expansion with it.
    #[must_use]
    pub fn expand_volume(mut self, expansion: Expansion) -> Self
    where
        D: ExpandVolume,
    {
        self.table.expand_volume = Some(Arc::clone(&self.driver) as _);
        self.table.expansion = Some(expansion);
        self.offer(Capability::ExpandVolume)
    }

    /// Declares SINGLE_NODE_MULTI_WRITER: the driver tells that access mode, and SINGLE_NODE_SINGLE_WRITER, from
    /// SINGLE_NODE_WRITER. Declare it for the node too.
    #[must_use]
    pub fn single_node_multi_writer(self) -> Self {
        self.offer(Capability::SingleNodeMultiWriter)
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
