//! What a volume is made from: a snapshot, or the volume of another claim.

use std::fmt;
use std::sync::Arc;

use csi_proto::ControllerCapability;
use csi_proto::v1::VolumeContentSource;
use csi_proto::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use k8s_openapi::api::core::v1::TypedObjectReference;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, Then};
use crate::context::Context;
use crate::error::{Result, ensure, invalid};
use crate::keys;
use crate::objects::{Claim, Key, Kind as _, ReferenceGrant, Volume, bytes};

const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";
const SNAPSHOT: &str = "VolumeSnapshot";
const CLAIM: &str = "PersistentVolumeClaim";

/// An object from which volumes are made.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(super) enum Source {
    Snapshot(Key),
    Claim(Key),
}

impl Source {
    /// The source that a claim names, if it is of a kind that a provisioner knows.
    pub(super) fn of(claim: &Claim) -> Option<Self> {
        let named = named(claim)?;
        let namespace = named.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        let own = claim.namespace();
        let key = Key::new(namespace.unwrap_or(own), &named.name);
        match (named.kind.as_str(), named.api_group.as_deref().unwrap_or_default()) {
            (SNAPSHOT, SNAPSHOT_GROUP) => Some(Self::Snapshot(key)),
            (CLAIM, "") => Some(Self::Claim(key)),
            _ => None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Snapshot(key) | Self::Claim(key) => key,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(key) => write!(f, "{SNAPSHOT} {key}"),
            Self::Claim(key) => write!(f, "{CLAIM} {key}"),
        }
    }
}

/// `dataSource` has no other namespace, and the API server copies what it can of `dataSourceRef` to it.
fn named(claim: &Claim) -> Option<TypedObjectReference> {
    let own = claim.spec.data_source.as_deref().cloned();
    let own = own.map(|source| TypedObjectReference { namespace: None, ..source });
    own.or_else(|| claim.spec.data_source_ref.as_deref().cloned())
}

/// The claim's source, if it has one that it can use.
///
/// # Errors
/// With [`Then::Leave`] for a source of a foreign kind.
pub(super) async fn resolve(context: &Context, claim: &Claim) -> Result<Option<Source>, Failure> {
    let Some(named) = named(claim) else { return Ok(None) };
    let own = claim.namespace();
    if let Some(other) = named.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
        let is_on = context.args.cross_namespace_data_sources;
        ensure!(is_on, "dataSourceRef has a namespace, but --cross-namespace-data-sources is not set");
        if other != own {
            let grants: Vec<ReferenceGrant> = context.provisioner.list(other).await?;
            let is_allowed = grants.iter().any(|grant| allows(grant, own, &named));
            ensure!(is_allowed, "no ReferenceGrant allows {} {other}/{} to {own}", named.kind, named.name);
        }
    }
    ensure!(!named.name.is_empty(), "the claim's data source has no name");
    let Some(source) = Source::of(claim) else {
        ensure!(named.kind != SNAPSHOT, "the claim's data source {SNAPSHOT} is not of {SNAPSHOT_GROUP}");
        let error = invalid!("Assuming an external populator will provision the volume");
        return Err(Failure { error, then: Then::Leave });
    };
    let capability = match &source {
        Source::Snapshot(_) => ControllerCapability::CreateDeleteSnapshot,
        Source::Claim(_) => ControllerCapability::CloneVolume,
    };
    let name = capability.as_str_name();
    ensure!(context.driver.can(capability), "{source} needs a driver with the capability {name}");
    Ok(Some(source))
}

fn allows(grant: &ReferenceGrant, namespace: &str, named: &TypedObjectReference) -> bool {
    let any = |side: &str, fits: &dyn Fn(&Value) -> bool| {
        grant.spec[side].as_array().is_some_and(|all| all.iter().any(fits))
    };
    let is_of = |one: &Value, group: &str, kind: &str| one["group"] == group && one["kind"] == kind;
    let group = named.api_group.as_deref().unwrap_or_default();
    let names = |to: &Value| to["name"].as_str().is_none_or(|name| name.is_empty() || name == named.name);
    any("from", &|from| is_of(from, "", CLAIM) && from["namespace"] == namespace)
        && any("to", &|to| is_of(to, group, &named.kind) && names(to))
}

/// The source for the call.
pub(super) fn content(context: &Context, claim: &Claim, source: &Source) -> Result<VolumeContentSource> {
    let found = match source {
        Source::Snapshot(key) => snapshot_content(context, claim, key),
        Source::Claim(key) => clone_content(context, claim, key),
    };
    let content = found.map_err(|error| invalid!("the volume can't be made from {source}: {error}"))?;
    Ok(VolumeContentSource { r#type: Some(content) })
}

fn snapshot_content(context: &Context, claim: &Claim, key: &Key) -> Result<Type> {
    let caches = &context.caches;
    let snapshot = caches.snapshots.get(key).ok_or_else(|| invalid!("it does not exist"))?;
    let bound = snapshot.status.bound_volume_snapshot_content_name.as_deref();
    let bound = bound.ok_or_else(|| invalid!("it is not bound"))?;
    let content = caches.snapshot_contents.named(bound);
    let content = content.ok_or_else(|| invalid!("its VolumeSnapshotContent {bound} does not exist"))?;
    let is_kept = snapshot.has_finalizer(keys::SNAPSHOT_SOURCE_FINALIZER);
    ensure!(!snapshot.is_deleting() || is_kept, "it is being deleted");
    let back = &content.spec.volume_snapshot_ref;
    ensure!(back.is_to(&*snapshot), "its VolumeSnapshotContent {bound} is bound to a different snapshot");
    let maker = &content.spec.driver;
    ensure!(*maker == context.driver.name, "its VolumeSnapshotContent {bound} is of the driver {maker}");
    ensure!(snapshot.status.ready_to_use, "it is not ready");
    let handle = content.status.as_ref().and_then(|status| status["snapshotHandle"].as_str());
    let handle = handle.ok_or_else(|| invalid!("its VolumeSnapshotContent {bound} has no handle"))?;
    let size = snapshot.status.restore_size.as_deref().and_then(bytes).unwrap_or_default();
    let request = claim.request().unwrap_or_default();
    ensure!(request >= size, "the requested size {request} is less than its size {size}");
    if let (Some(source), Some(wanted)) = (&content.spec.source_volume_mode, &claim.spec.volume_mode) {
        // A user could write a filesystem as a block device that attacks the kernel which mounts it.
        let key = keys::ALLOW_MODE_CHANGE;
        let allows = matches!(content.annotation(key), Some("1" | "t" | "T" | "true" | "TRUE" | "True"));
        ensure!(
            **source == **wanted || allows,
            "its mode is {source}, and {bound} has no annotation {key}: true"
        );
    }
    Ok(Type::Snapshot(SnapshotSource { snapshot_id: handle.to_owned() }))
}

fn clone_content(context: &Context, claim: &Claim, key: &Key) -> Result<Type> {
    let source = context.caches.claims.get(key).ok_or_else(|| invalid!("it does not exist"))?;
    ensure!(source.is_bound(), "its phase is {:?}, and must be Bound", source.status.phase);
    ensure!(!source.is_deleting(), "it is being deleted");
    ensure!(source.class_name().is_some(), "it has no storage class");
    let request = claim.request().unwrap_or_default();
    let size = source.request().unwrap_or_default();
    ensure!(request >= size, "the requested size {request} is less than its size {size}");
    let is_source = |volume: &Arc<Volume>| {
        let owner = volume.spec.claim_ref.as_ref();
        owner.is_some_and(|owner| owner.is_to(&*source)) && volume.is_in("Bound")
    };
    let volume = context.caches.volumes.named(&source.spec.volume_name).filter(is_source);
    let csi = volume.as_ref().and_then(|volume| Some((volume, volume.source_of(&context.driver.name)?)));
    let (volume, csi) = csi.ok_or_else(|| invalid!("it has no bound volume of this driver"))?;
    ensure!(volume.is_block() == claim.is_block(), "only one of the two has the volume mode Block");
    Ok(Type::Volume(VolumeSource { volume_id: csi.volume_handle.to_string() }))
}
