//! The GroupController service: snapshots of several volumes at one moment.

use std::collections::BTreeSet;

use async_trait::async_trait;
use csi_proto::v1;

use crate::admission::{Claim, Key};
use crate::call::request::{question, request};
use crate::call::{Call, MAX_ANSWER_BYTES, Reply, answers_nothing};
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::types::{GroupSnapshotId, Name, Parameters, Secrets, SnapshotId, VolumeGroupSnapshot, VolumeId};

/// CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT, the service's only capability. Spec: "GroupController Service
/// RPC".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `GroupController`",
    label = "needs `impl GroupController for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait GroupController: Send + Sync + 'static {
    /// Takes a snapshot of each volume at one moment in the order of writes to all of them, or finds the
    /// group that was created for this name. If the storage cannot guarantee that, it is an error.
    ///
    /// - spec: `create-volume-group-snapshot.one-moment`
    /// - spec: `create-volume-group-snapshot.same-name-same-group`
    /// - spec: `create-volume-group-snapshot.differs-is-already-exists`
    /// - spec: `create-volume-group-snapshot.not-together`, `create-volume-group-snapshot.no-room`
    /// - spec: `create-volume-group-snapshot.failure-leaves-nothing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND);
    /// [`Error::Incompatible`] (ALREADY_EXISTS) when the group of this name has
    /// other sources; [`Error::NotPossible`] (FAILED_PRECONDITION) when these
    /// volumes cannot be snapshotted together; [`Error::LimitReached`]
    /// (RESOURCE_EXHAUSTED). After an error no snapshot of the group may remain.
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot>;

    /// Deletes the group and its snapshots. A group that does not exist counts as deleted. If the caller names no
    /// members, the framework asks only [`volume_group_snapshot`](Self::volume_group_snapshot) whether it exists.
    ///
    /// - spec: `delete-volume-group-snapshot.members-too`, `delete-volume-group-snapshot.mismatch`
    /// - spec: `delete-volume-group-snapshot.in-use`
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the ids are not the group's members;
    /// [`Error::InUse`] (FAILED_PRECONDITION).
    async fn delete_volume_group_snapshot(&self, request: DeleteVolumeGroupSnapshotRequest) -> Result<()>;

    /// Returns the group. The framework compares its members with the ids in the request.
    ///
    /// - spec: `get-volume-group-snapshot.current`, `get-volume-group-snapshot.missing`
    /// - spec: `get-volume-group-snapshot.mismatch`
    ///
    /// # Errors
    /// [`Error::GroupSnapshotNotFound`] (NOT_FOUND).
    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot>;
}

request! {
    /// Which group snapshot to create.
    CreateVolumeGroupSnapshotRequest about name {
        /// The idempotency key, and a suggestion for a name.
        name: Name,
        /// The volumes; at least one.
        source_volume_ids: Vec<VolumeId>,
        /// Credentials.
        secrets: Secrets,
        /// The driver's own parameters. [`parse`](crate::types::StringMap::parse) ignores unknown keys, with a warning.
        parameters: Parameters = Parameters::read_of_snapshots,
    }
}

request! {
    /// Which group snapshot to delete.
    DeleteVolumeGroupSnapshotRequest about group_snapshot_id {
        /// The group.
        group_snapshot_id: GroupSnapshotId,
        /// All members of the group.
        snapshot_ids: Vec<SnapshotId>,
        /// Credentials.
        secrets: Secrets,
    }
}

request! {
    /// Which group snapshot to look up.
    GetVolumeGroupSnapshotRequest about group_snapshot_id {
        /// The group.
        group_snapshot_id: GroupSnapshotId,
        /// All members of the group, as the caller knows them. The framework compares them with the answer, and
        /// refuses a request without them.
        snapshot_ids: Vec<SnapshotId>,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Checks that the group has a snapshot of each requested volume, and of no other.
// spec: create-volume-group-snapshot.differs-is-already-exists
fn check_sources(group: &VolumeGroupSnapshot, asked: &[String]) -> Result<()> {
    let have: BTreeSet<&str> = group.snapshots.iter().map(|one| one.source_volume_id.as_str()).collect();
    if have == asked.iter().map(String::as_str).collect() {
        Ok(())
    } else {
        Err(Error::Incompatible(
            "source_volume_ids: a group snapshot of this name exists and was taken of other volumes"
                .to_owned()
                .into(),
        ))
    }
}

/// The error for a group that exists. A group that does not is answered as such, as test suites expect.
// spec: fields.required-list
fn no_members() -> Error {
    Error::invalid("snapshot_ids", "is required and must not be empty")
}

impl DeleteVolumeGroupSnapshotRequest {
    /// Asks the driver to delete the group. A request without members is refused, unless the group does not exist.
    pub(crate) async fn answer(self, driver: &dyn GroupController) -> Result<()> {
        if !self.snapshot_ids.is_empty() {
            return driver.delete_volume_group_snapshot(self).await;
        }
        let wire = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: self.group_snapshot_id.to_string(),
            secrets: self.raw.secrets.clone(),
            ..Default::default()
        };
        driver.volume_group_snapshot(wire.try_into()?).await?;
        Err(no_members())
    }
}

impl Call for CreateVolumeGroupSnapshotRequest {
    type Answer = VolumeGroupSnapshot;

    // spec: create-volume-group-snapshot.same-name-same-group
    fn claims(&self) -> Vec<Claim> {
        let sources: BTreeSet<&str> = self.source_volume_ids.iter().map(VolumeId::as_str).collect();
        let sources = sources.into_iter().map(|id| Claim::shared(Key::Volume(id.to_owned())));
        let name = Claim::alone(Key::GroupSnapshotName(self.name.as_str().to_owned()));
        std::iter::once(name).chain(sources).collect()
    }

    /// A group cannot be answered in pages. It is refused before its snapshots exist.
    fn permitted(&self, _: &Offer) -> Result<()> {
        /// The other fields of a snapshot: two ids of at most 128 bytes, numbers, and some room for its places.
        const BYTES: usize = 512;
        let count = self.source_volume_ids.len();
        let ids: usize = self.source_volume_ids.iter().map(|id| id.as_str().len()).sum();
        match ids + count * BYTES {
            0..=MAX_ANSWER_BYTES => Ok(()),
            _ => Err(Error::LimitReached(
                format!(
                    "source_volume_ids: the answer for {count} volumes can be longer than the {MAX_ANSWER_BYTES} \
                     bytes that callers accept: take the group of fewer volumes"
                )
                .into(),
            )),
        }
    }

    fn reply(group: VolumeGroupSnapshot, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        check_sources(&group, &request.source_volume_ids)?;
        Ok(v1::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group.answer(offer)?) })
    }
}

impl Call for DeleteVolumeGroupSnapshotRequest {
    answers_nothing!();

    fn claims(&self) -> Vec<Claim> {
        let members: BTreeSet<&str> = self.snapshot_ids.iter().map(SnapshotId::as_str).collect();
        let members = members.into_iter().map(|id| Claim::alone(Key::Snapshot(id.to_owned())));
        let group = Claim::alone(Key::GroupSnapshot(self.group_snapshot_id.as_str().to_owned()));
        std::iter::once(group).chain(members).collect()
    }

    // spec: delete-volume-group-snapshot.missing-is-ok
    fn answer_to_error(error: Error) -> Result<()> {
        match error {
            Error::GroupSnapshotNotFound(_) => Ok(()),
            other => Err(other),
        }
    }
}

impl Call for GetVolumeGroupSnapshotRequest {
    type Answer = VolumeGroupSnapshot;

    // spec: get-volume-group-snapshot.current, get-volume-group-snapshot.mismatch
    fn reply(group: VolumeGroupSnapshot, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        if group.group_snapshot_id.as_str() != request.group_snapshot_id {
            let other = group.group_snapshot_id;
            return Err(Error::broken(format!(
                "group_snapshot.group_snapshot_id is {other}, not the one asked about"
            )));
        }
        if request.snapshot_ids.is_empty() {
            return Err(no_members());
        }
        let group = group.answer(offer)?;
        let asked: BTreeSet<&str> = request.snapshot_ids.iter().map(String::as_str).collect();
        let have: BTreeSet<&str> = group.snapshots.iter().map(|one| one.snapshot_id.as_str()).collect();
        if asked != have {
            return Err(Error::invalid("snapshot_ids", "are not the members of the group"));
        }
        Ok(v1::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) })
    }
}

question!(GroupControllerGetCapabilitiesRequest);

impl Call for GroupControllerGetCapabilitiesRequest {
    type Answer = ();

    // spec: group-controller.capabilities
    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        use v1::group_controller_service_capability::{Rpc, Type, rpc};
        let r#type = rpc::Type::CreateDeleteGetVolumeGroupSnapshot as i32;
        let capability = v1::GroupControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type })) };
        Ok(v1::GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] })
    }
}
