//! The GroupController service: snapshots of several volumes at one moment.

use std::collections::BTreeSet;

use async_trait::async_trait;
use csi_proto::v1;

use crate::admission::{Claim, Key};
use crate::call::Call;
use crate::call::request::{question, request};
use crate::offer::Offer;
use crate::{
    Error, GroupSnapshotId, GroupSnapshotName, Parameters, Result, Rpc, Secrets, SnapshotId, Spec,
    VolumeGroupSnapshot, VolumeId,
};

/// CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT, the service's only capability. Spec: "GroupController Service
/// RPC".
#[async_trait]
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
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND);
    /// [`Error::Incompatible`](crate::Error::Incompatible) (ALREADY_EXISTS) when the group of this name has
    /// other sources; [`Error::NotPossible`](crate::Error::NotPossible) (FAILED_PRECONDITION) when these
    /// volumes cannot be snapshotted together; [`Error::LimitReached`](crate::Error::LimitReached)
    /// (RESOURCE_EXHAUSTED). After an error no snapshot of the group may remain.
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot>;

    /// Deletes the group and its snapshots. A group that does not exist counts as deleted. If the caller
    /// names no members, which only [`Spec::V1_12`] allows, the framework takes them from
    /// [`volume_group_snapshot`](Self::volume_group_snapshot).
    ///
    /// - spec: `delete-volume-group-snapshot.members-too`, `delete-volume-group-snapshot.mismatch`
    /// - spec: `delete-volume-group-snapshot.in-use`
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the ids are not the group's members;
    /// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION).
    async fn delete_volume_group_snapshot(&self, request: DeleteVolumeGroupSnapshotRequest) -> Result<()>;

    /// Returns the group. The framework compares its members with the ids in the request.
    ///
    /// - spec: `get-volume-group-snapshot.current`, `get-volume-group-snapshot.missing`
    /// - spec: `get-volume-group-snapshot.mismatch`
    ///
    /// # Errors
    /// [`Error::GroupSnapshotNotFound`](crate::Error::GroupSnapshotNotFound) (NOT_FOUND).
    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot>;
}

request! {
    /// Which group snapshot to create.
    CreateVolumeGroupSnapshotRequest {
        /// The idempotency key, and a suggestion for a name.
        name: GroupSnapshotName,
        /// The volumes; at least one.
        source_volume_ids: Vec<VolumeId>,
        /// Credentials.
        secrets: Secrets,
        /// The driver's own parameters. [`parse`](Parameters::parse) ignores unknown keys, with a warning.
        parameters: Parameters = Parameters::read_of_snapshots,
    }
}

request! {
    /// Which group snapshot to delete.
    DeleteVolumeGroupSnapshotRequest {
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
    GetVolumeGroupSnapshotRequest {
        /// The group.
        group_snapshot_id: GroupSnapshotId,
        /// All members of the group, as the caller knows them; empty if the caller names none. The framework
        /// compares them with the answer.
        snapshot_ids: Vec<SnapshotId>,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Checks that the group has a snapshot of each requested volume, and of no other.
// spec: create-volume-group-snapshot.differs-is-already-exists
fn check_sources(group: &VolumeGroupSnapshot, asked: &[String]) -> Result<()> {
    let have: BTreeSet<&str> = group.snapshots.iter().map(|one| one.source_volume_id.as_str()).collect();
    match have == asked.iter().map(String::as_str).collect() {
        true => Ok(()),
        false => Err(Error::Incompatible(
            "source_volume_ids: a group snapshot of this name exists and was taken of other volumes"
                .to_owned()
                .into(),
        )),
    }
}

/// The spec requires the members; test suites for v1.12.0 leave them out.
fn check_members_given(members: &[SnapshotId], offer: &Offer) -> Result<()> {
    match members.is_empty() && offer.spec > Spec::V1_12 {
        true => Err(Error::invalid("snapshot_ids", "is required and must not be empty")),
        false => Ok(()),
    }
}

impl DeleteVolumeGroupSnapshotRequest {
    /// Fills in the members of the group if the caller named none.
    pub(crate) async fn with_members(mut self, driver: &dyn GroupController) -> Result<Self> {
        if self.snapshot_ids.is_empty() {
            let wire = v1::GetVolumeGroupSnapshotRequest {
                group_snapshot_id: self.group_snapshot_id.to_string(),
                secrets: self.raw.secrets.clone(),
                ..Default::default()
            };
            let group = driver.volume_group_snapshot(wire.try_into()?).await?;
            self.snapshot_ids = group.snapshots.into_iter().map(|member| member.snapshot_id).collect();
        }
        Ok(self)
    }
}

impl Call for CreateVolumeGroupSnapshotRequest {
    const RPC: Rpc = Rpc::CreateVolumeGroupSnapshot;
    type Answer = VolumeGroupSnapshot;
    type Reply = v1::CreateVolumeGroupSnapshotResponse;

    fn subject(&self) -> &str {
        self.name.as_str()
    }

    // spec: create-volume-group-snapshot.same-name-same-group
    fn claims(&self) -> Vec<Claim> {
        let sources: BTreeSet<&str> = self.source_volume_ids.iter().map(VolumeId::as_str).collect();
        let sources = sources.into_iter().map(|id| Claim::shared(Key::Volume(id.to_owned())));
        let name = Claim::alone(Key::GroupSnapshotName(self.name.as_str().to_owned()));
        std::iter::once(name).chain(sources).collect()
    }

    fn reply(group: VolumeGroupSnapshot, request: &Self::Wire, offer: &Offer) -> Result<Self::Reply> {
        check_sources(&group, &request.source_volume_ids)?;
        Ok(v1::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group.answer(offer)?) })
    }
}

impl Call for DeleteVolumeGroupSnapshotRequest {
    const RPC: Rpc = Rpc::DeleteVolumeGroupSnapshot;
    type Answer = ();
    type Reply = v1::DeleteVolumeGroupSnapshotResponse;

    fn subject(&self) -> &str {
        self.group_snapshot_id.as_str()
    }

    fn permitted(&self, offer: &Offer) -> Result<()> {
        check_members_given(&self.snapshot_ids, offer)
    }

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

    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        Ok(v1::DeleteVolumeGroupSnapshotResponse {})
    }
}

impl Call for GetVolumeGroupSnapshotRequest {
    const RPC: Rpc = Rpc::GetVolumeGroupSnapshot;
    type Answer = VolumeGroupSnapshot;
    type Reply = v1::GetVolumeGroupSnapshotResponse;

    fn subject(&self) -> &str {
        self.group_snapshot_id.as_str()
    }

    fn permitted(&self, offer: &Offer) -> Result<()> {
        check_members_given(&self.snapshot_ids, offer)
    }

    // spec: get-volume-group-snapshot.current, get-volume-group-snapshot.mismatch
    fn reply(group: VolumeGroupSnapshot, request: &Self::Wire, offer: &Offer) -> Result<Self::Reply> {
        if group.group_snapshot_id.as_str() != request.group_snapshot_id {
            let other = group.group_snapshot_id;
            return Err(Error::broken(format!(
                "group_snapshot.group_snapshot_id is {other}, not the one asked about"
            )));
        }
        let group = group.answer(offer)?;
        let asked: BTreeSet<&str> = request.snapshot_ids.iter().map(String::as_str).collect();
        let have: BTreeSet<&str> = group.snapshots.iter().map(|one| one.snapshot_id.as_str()).collect();
        if !asked.is_empty() && asked != have {
            return Err(Error::invalid("snapshot_ids", "are not the members of the group"));
        }
        Ok(v1::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) })
    }
}

question!(GroupControllerGetCapabilitiesRequest);

impl Call for GroupControllerGetCapabilitiesRequest {
    const RPC: Rpc = Rpc::GroupControllerGetCapabilities;
    type Answer = ();
    type Reply = v1::GroupControllerGetCapabilitiesResponse;

    // spec: group-controller.capabilities
    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        use v1::group_controller_service_capability::{Rpc, Type, rpc};
        let r#type = rpc::Type::CreateDeleteGetVolumeGroupSnapshot as i32;
        let capability = v1::GroupControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type })) };
        Ok(v1::GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] })
    }
}
