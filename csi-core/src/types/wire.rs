//! Turns a field of the wire into a field of a typed request: the trait, and the limits of its implementations, which
//! are in `fields.rs`.
//!
//! The type of a request's field states what the spec requires: `VolumeId` is required, `Option<NodeId>` is
//! optional.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// The spec's limit for a map, the total of keys and values, in bytes.
pub(crate) const MAP_MAX: usize = 4096;
/// The spec's limit for mount_flags, the total of all flags, in bytes.
pub(crate) const FLAGS_MAX: usize = 4096;

/// Keys with this prefix belong to the orchestrator, not to the driver.
pub(super) const KUBERNETES: &str = "csi.storage.k8s.io/";
/// The key that external-provisioner adds to a volume's context.
pub(super) const PROVISIONER: &str = "storage.kubernetes.io/csiProvisionerIdentity";

pub(crate) type Map = BTreeMap<String, String>;

/// A field of a typed request, read from the wire's form `W`. `field` is the name for the error.
pub(crate) trait Field<W>: Sized {
    // spec: fields.required, fields.required-list
    fn read(field: &str, wire: &W) -> Result<Self>;
}

pub(crate) fn check_total(field: &str, sizes: impl Iterator<Item = usize>, max: usize) -> Result<()> {
    match sizes.sum::<usize>() {
        total if total > max => {
            Err(Error::invalid(field, format!("is {total} bytes in all, the limit is {max}")))
        }
        _ => Ok(()),
    }
}

/// The limit is for what the driver and its users choose. Kubernetes adds the pod and a token for each audience, of more
/// than 1 KiB each.
// spec: size-limits.map
pub(crate) fn check_map(field: &str, map: &Map) -> Result<()> {
    let own = map.iter().filter(|(key, _)| !key.starts_with(KUBERNETES) && *key != PROVISIONER);
    check_total(field, own.map(|(key, value)| key.len() + value.len()), MAP_MAX)
}
