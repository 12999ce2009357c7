//! The names of annotations, finalizers and parameters, as Kubernetes and the sidecars have them.

/// Which provisioner a claim waits for, and the key of older versions.
pub(crate) const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(crate) const STORAGE_PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The node that the scheduler chose for a claim.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Which provisioner made a volume.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Keeps the object of a volume until the volume is deleted.
pub(crate) const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Name and namespace of a volume's secrets.
pub(crate) const DELETION_SECRET: [&str; 2] = [
    "volume.kubernetes.io/provisioner-deletion-secret-name",
    "volume.kubernetes.io/provisioner-deletion-secret-namespace",
];
pub(crate) const MODIFY_SECRET: [&str; 2] = [
    "volume.kubernetes.io/controller-modify-secret-name",
    "volume.kubernetes.io/controller-modify-secret-namespace",
];
/// The attribute of a volume that says which process made it.
pub(crate) const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// Keeps the source of a clone until no claim needs it.
pub(crate) const CLONE_FINALIZER: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// Keeps the source of a restore until the volume exists.
pub(crate) const SNAPSHOT_SOURCE_FINALIZER: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
pub(crate) const ALLOW_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// The node id by which a volume was attached.
pub(crate) const ATTACHED_NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

pub(crate) const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
pub(crate) const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// The group of a snapshot that is a member of one.
pub(crate) const GROUP_OF_MEMBER: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The beginning of the keys of parameters that are not for the driver.
pub(crate) const RESERVED: &str = "csi.storage.k8s.io/";

/// The ConfigMap with the volumes that are being created.
pub(crate) fn creations(driver: &str) -> String {
    format!("{}-volume-creations", plain_name(driver))
}

/// The annotation of an attachment with the id of its volume, for a detach after the volume's object is gone.
pub(crate) fn attached_volume(driver: &str) -> String {
    format!("{}/volume-handle", driver.to_lowercase())
}

/// The finalizer of a volume that is attached, and of its attachments: the name of a driver with the letters that
/// external-attacher replaces.
pub(crate) fn attacher_finalizer(driver: &str) -> String {
    format!("external-attacher/{}", plain_name(driver))
}

/// The leases of the four sidecars; the first one is this crate's election.
pub(crate) fn leases(driver: &str) -> [String; 4] {
    let name = plain_name(driver);
    let of = |sidecar: &str| format!("{sidecar}-{name}");
    [name.clone(), of("external-attacher-leader"), of("external-resizer"), of("external-snapshotter-leader")]
}

/// A driver's name has letters, digits, dashes and dots.
fn plain_name(driver: &str) -> String {
    driver.replace('.', "-")
}
