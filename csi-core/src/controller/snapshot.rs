//! CREATE_DELETE_SNAPSHOT, LIST_SNAPSHOTS and GET_SNAPSHOT.

use std::num::NonZeroU32;

use async_trait::async_trait;
use csi_proto::v1;

use super::{Controller, Page};
use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, Reply, answers_nothing};
use crate::error::{Error, Result};
use crate::offer::{Offer, PluginService};
use crate::types::{Name, Parameters, Secrets, Snapshot, SnapshotId, Token, TopologyRequirement, VolumeId};

/// Creates and deletes snapshots. A driver with this trait must also be able to create a volume from a
/// snapshot. Spec: "CreateSnapshot", "DeleteSnapshot".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `CreateDeleteSnapshot`",
    label = "needs `impl CreateDeleteSnapshot for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait CreateDeleteSnapshot: Controller {
    /// Takes the snapshot, or finds the one that was taken for this name before. The method returns as soon
    /// as the snapshot's point in time is fixed. If processing continues after that, `ready_to_use` is
    /// false, and the caller repeats the call until it is true. If that processing fails, the next call
    /// returns the error. The id identifies the snapshot among all others. A snapshot that cannot be
    /// deleted without its group names the group.
    ///
    /// - spec: `create-snapshot.same-name-same-snapshot`, `create-snapshot.other-source`
    /// - spec: `create-snapshot.cut-before-answer`, `create-snapshot.not-ready-while-processed`
    /// - spec: `create-snapshot.failure-told`, `create-snapshot.no-room`, `create-snapshot.id-is-unique`
    /// - spec: `create-snapshot.group-told`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND);
    /// [`Error::Incompatible`](crate::Error::Incompatible) (ALREADY_EXISTS) when the name has another source;
    /// [`Error::LimitReached`](crate::Error::LimitReached) (RESOURCE_EXHAUSTED).
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot>;

    /// Deletes the snapshot. A snapshot that does not exist counts as deleted.
    ///
    /// - spec: `delete-snapshot.group-member`, `delete-snapshot.in-use`
    ///
    /// # Errors
    /// [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a member of a group.
    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()>;
}

request! {
    /// Which snapshot to create.
    CreateSnapshotRequest about name {
        /// The volume to snapshot.
        source_volume_id: VolumeId,
        /// The idempotency key, and a suggestion for a name.
        name: Name,
        /// Credentials.
        secrets: Secrets,
        /// The driver's own parameters. [`parse`](crate::types::StringMap::parse) ignores unknown keys, with a warning.
        parameters: Parameters = Parameters::read_of_snapshots,
        /// From where the snapshot must be restorable. Alpha.
        accessibility_requirements: Option<TopologyRequirement>,
    }
}

request! {
    /// Which snapshot to delete.
    DeleteSnapshotRequest about snapshot_id {
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Lists snapshots. Spec: "ListSnapshots".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ListSnapshots`",
    label = "needs `impl ListSnapshots for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait ListSnapshots: Controller {
    /// Returns a page of the snapshots that match the filters, however they were created, in their current
    /// state. Snapshots that are not ready are listed; snapshots that are not taken yet are not. If nothing
    /// matches a filter, the page is empty.
    ///
    /// - spec: `list-snapshots.all`, `list-snapshots.cut-only`, `list-snapshots.max-entries`
    /// - spec: `list-snapshots.bad-token`, `list-snapshots.current`
    ///
    /// # Errors
    /// [`Error::InvalidToken`](crate::Error::InvalidToken) (ABORTED).
    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<Page<Snapshot>>;
}

request! {
    /// Which page of which snapshots to return.
    ListSnapshotsRequest {
        /// The maximum number of entries; `None` lets the driver choose.
        max_entries: Option<NonZeroU32>,
        /// Where the page starts; `None` means the beginning.
        starting_token: Option<Token>,
        /// Only snapshots of this volume.
        source_volume_id: Option<VolumeId>,
        /// Only this snapshot.
        snapshot_id: Option<SnapshotId>,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Returns one snapshot. A driver that creates group snapshots should implement it. Alpha. Spec:
/// "GetSnapshot".
///
/// - spec: `get-snapshot.with-groups`
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `GetSnapshot`",
    label = "needs `impl GetSnapshot for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait GetSnapshot: Controller {
    /// Returns the snapshot in its current state, also while it is not ready.
    ///
    /// - spec: `get-snapshot.current`, `get-snapshot.not-ready-too`, `get-snapshot.missing`
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`](crate::Error::SnapshotNotFound) (NOT_FOUND).
    async fn get_snapshot(&self, request: GetSnapshotRequest) -> Result<Snapshot>;
}

request! {
    /// Which snapshot to return.
    GetSnapshotRequest about snapshot_id {
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// Credentials.
        secrets: Secrets,
    }
}

impl Call for CreateSnapshotRequest {
    type Answer = Snapshot;

    // spec: create-snapshot.topology-needs-capability
    fn permitted(&self, offer: &Offer) -> Result<()> {
        if self.accessibility_requirements.is_some()
            && !offer.has_service(PluginService::SnapshotAccessibilityConstraints)
        {
            let reason = "must be left out: the plugin has no SNAPSHOT_ACCESSIBILITY_CONSTRAINTS";
            return Err(Error::invalid("accessibility_requirements", reason));
        }
        Ok(())
    }

    // spec: create-snapshot.same-name-same-snapshot
    fn claims(&self) -> Vec<Claim> {
        vec![
            Claim::alone(Key::SnapshotName(self.name.as_str().to_owned())),
            Claim::shared(Key::Volume(self.source_volume_id.as_str().to_owned())),
        ]
    }

    // spec: create-snapshot.other-source
    fn reply(snapshot: Snapshot, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        same_source(&snapshot.source_volume_id, &request.source_volume_id)?;
        let requirements = TopologyRequirement::asked(request.accessibility_requirements.as_ref())?;
        if !requirements.is_satisfied_by(&snapshot.accessible_topology) {
            let text =
                "accessibility_requirements: a snapshot of this name exists and is not usable from there";
            return Err(Error::Incompatible(text.to_owned().into()));
        }
        Ok(v1::CreateSnapshotResponse { snapshot: Some(snapshot.answer(offer)?) })
    }
}

impl Call for DeleteSnapshotRequest {
    answers_nothing!();

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::alone(Key::Snapshot(self.snapshot_id.as_str().to_owned()))]
    }

    // spec: delete-snapshot.missing-is-ok
    fn answer_to_error(error: Error) -> Result<()> {
        match error {
            Error::SnapshotNotFound(_) => Ok(()),
            other => Err(other),
        }
    }
}

impl Call for ListSnapshotsRequest {
    type Answer = Page<Snapshot>;

    /// A filter that names an object that does not exist matches nothing.
    // spec: list-snapshots.unknown-filter
    fn answer_to_error(error: Error) -> Result<Page<Snapshot>> {
        match error {
            Error::SnapshotNotFound(_) | Error::VolumeNotFound(_) => Ok(Page::new(Vec::new(), None)),
            other => Err(other),
        }
    }

    // spec: list-snapshots.filters
    fn reply(page: Page<Snapshot>, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        let passes = |filter: &str, value: &str| filter.is_empty() || filter == value;
        let entry = |snapshot: Snapshot| {
            if !passes(&request.snapshot_id, snapshot.snapshot_id.as_str())
                || !passes(&request.source_volume_id, snapshot.source_volume_id.as_str())
            {
                let id = snapshot.snapshot_id;
                return Err(Error::broken(format!(
                    "entries: snapshot {id} does not pass the filter of the request"
                )));
            }
            Ok(v1::list_snapshots_response::Entry { snapshot: Some(snapshot.answer(offer)?) })
        };
        let (entries, next_token) = page.answer(request.max_entries, &request.starting_token, entry)?;
        Ok(v1::ListSnapshotsResponse { entries, next_token })
    }
}

impl Call for GetSnapshotRequest {
    type Answer = Snapshot;

    // spec: get-snapshot.current
    fn reply(snapshot: Snapshot, request: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        if snapshot.snapshot_id.as_str() != request.snapshot_id {
            let other = snapshot.snapshot_id;
            return Err(Error::broken(format!(
                "snapshot.snapshot_id is {other}, not the snapshot asked about"
            )));
        }
        Ok(v1::GetSnapshotResponse { snapshot: Some(snapshot.answer(offer)?) })
    }
}

/// Checks that a snapshot of this volume is what a request for this name and source means.
// spec: create-snapshot.other-source
pub(super) fn same_source(found: &VolumeId, requested: &str) -> Result<()> {
    if found == requested {
        return Ok(());
    }
    let text = format!("source_volume_id: a snapshot of this name exists and was taken of {found}");
    Err(Error::Incompatible(text.into()))
}
