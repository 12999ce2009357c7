//! What CreateVolume is asked for, and what the volume's object will say apart from the answer.

use std::collections::BTreeMap;

use csi_proto::v1::{CapacityRange, CreateVolumeRequest};

use super::source::{self, Source};
use super::topology::{self, Segment};
use super::{Failure, volume_name};
use crate::capability::{capability, mode};
use crate::context::Context;
use crate::error::{Result, ensure, invalid};
use crate::keys::RESERVED;
use crate::objects::{Claim, Class, Kind as _, SecretReference, Text};
use crate::secrets::{self, PROVISIONER};

pub(super) struct Plan {
    pub(super) request: CreateVolumeRequest,
    /// The place that the driver is to take first; empty if any.
    pub(super) segment: Segment,
    pub(super) source: Option<Source>,
    /// Empty for a block volume.
    pub(super) fs_type: String,
    /// By their prefix.
    pub(super) secrets: BTreeMap<&'static str, SecretReference>,
}

/// Reads all that the call needs, and changes nothing.
pub(super) async fn plan(context: &Context, claim: &Claim, class: &Class) -> Result<Plan, Failure> {
    let source = source::resolve(context, claim).await?;
    let mutable_parameters = mutable_parameters(context, claim)?;
    ensure!(claim.spec.selector.is_none(), "claim Selector is not supported");
    let fs_type =
        if claim.is_block() { String::new() } else { fs_type(class, &context.args.default_fstype)? };
    let name = volume_name(claim.uid());
    let required = claim.request().ok_or_else(|| invalid!("the claim requests no storage"))?;
    let required_bytes = i64::try_from(required).unwrap_or(i64::MAX);
    let content = |source| source::content(context, claim, source);
    let volume_content_source = source.as_ref().map(content).transpose()?;
    let node = super::selected_node(claim);
    let accessibility_requirements =
        topology::requirement(context, claim.name(), &class.allowed_topologies, node, None)?;
    let first = accessibility_requirements.as_ref().and_then(|all| all.preferred.first());
    let segment = first.map(|first| first.segments.clone()).unwrap_or_default();
    let capability = |name: &Text| {
        let mode = mode(name, &context.driver)?;
        Ok(capability(mode, claim.is_block(), &fs_type, class.mount_options.clone()))
    };
    let volume_capabilities: Result<Vec<_>> = claim.spec.access_modes.iter().map(capability).collect();
    let secrets = secrets::references(&class.parameters, &name, &claim.metadata)?;
    let is_known = |key: &String| is_fs_type_key(key) || secrets::is_secret_key(key);
    let mut parameters = secrets::without_reserved(&class.parameters, is_known)?;
    parameters.extend(names(claim, &name));
    let request = CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: volume_capabilities?,
        parameters,
        secrets: secrets::read(&context.provisioner, secrets.get(PROVISIONER)).await?,
        volume_content_source,
        accessibility_requirements,
        mutable_parameters,
        name,
    };
    Ok(Plan { request, segment, source, fs_type, secrets })
}

fn is_fs_type_key(key: &str) -> bool {
    key.eq_ignore_ascii_case("fstype") || key.strip_prefix(RESERVED) == Some("fstype")
}

fn fs_type(class: &Class, default: &str) -> Result<String> {
    let mut values = class.parameters.iter().filter(|(key, _)| is_fs_type_key(key)).map(|(_, value)| value);
    let first = values.next();
    ensure!(values.next().is_none(), "the class has both of the parameters fstype and {RESERVED}fstype");
    let named = first.filter(|value| !value.is_empty());
    Ok(named.map_or(default, String::as_str).to_owned())
}

/// The parameters by which a driver learns the names of the objects.
pub(crate) fn names(claim: &Claim, volume: &str) -> [(String, String); 3] {
    let names = [("pvc/name", claim.name()), ("pvc/namespace", claim.namespace()), ("pv/name", volume)];
    names.map(|(key, name)| (format!("{RESERVED}{key}"), name.to_owned()))
}

fn mutable_parameters(context: &Context, claim: &Claim) -> Result<BTreeMap<String, String>> {
    let named = claim.spec.volume_attributes_class_name.as_deref().filter(|name| !name.is_empty());
    let Some(name) = named else { return Ok(BTreeMap::new()) };
    ensure!(context.driver.modifies(), "VolumeAttributesClass {name} needs a driver with MODIFY_VOLUME");
    let class = context.caches.attributes_classes.named(name);
    let class = class.ok_or_else(|| invalid!("VolumeAttributesClass {name} not found"))?;
    let driver = &class.driver_name;
    ensure!(*driver == context.driver.name, "VolumeAttributesClass {name} is for the driver {driver}");
    Ok(class.parameters.clone())
}
