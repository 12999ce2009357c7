//! The request that undoes what another request began.

use std::collections::BTreeMap;

use crate::{Rpc, v1};

/// What undoes a call: the request to send. It has no secrets: add its own.
#[derive(Debug, Clone, PartialEq)]
pub enum Undo {
    /// The volume might exist: the answer to its repeated request has the id.
    FindVolume(v1::CreateVolumeRequest),
    /// Deletes a created volume.
    DeleteVolume(v1::DeleteVolumeRequest),
    /// Detaches an attached volume.
    Detach(v1::ControllerUnpublishVolumeRequest),
    /// Unstages a staged volume.
    Unstage(v1::NodeUnstageVolumeRequest),
    /// Unpublishes a published volume.
    Unpublish(v1::NodeUnpublishVolumeRequest),
    /// The snapshot might exist: the answer to its repeated request has the id.
    FindSnapshot(v1::CreateSnapshotRequest),
    /// Deletes a created snapshot.
    DeleteSnapshot(v1::DeleteSnapshotRequest),
}

impl Undo {
    /// The RPC of the request.
    pub fn rpc(&self) -> Rpc {
        match self {
            Self::FindVolume(_) => Rpc::CreateVolume,
            Self::DeleteVolume(_) => Rpc::DeleteVolume,
            Self::Detach(_) => Rpc::ControllerUnpublishVolume,
            Self::Unstage(_) => Rpc::NodeUnstageVolume,
            Self::Unpublish(_) => Rpc::NodeUnpublishVolume,
            Self::FindSnapshot(_) => Rpc::CreateSnapshot,
            Self::DeleteSnapshot(_) => Rpc::DeleteSnapshot,
        }
    }
}

pub(crate) fn created_volume(
    request: &v1::CreateVolumeRequest,
    answer: Option<&v1::CreateVolumeResponse>,
) -> Undo {
    let Some(answer) = answer else {
        return Undo::FindVolume(v1::CreateVolumeRequest { secrets: BTreeMap::new(), ..request.clone() });
    };
    let volume_id = answer.volume.as_ref().map(|volume| volume.volume_id.clone()).unwrap_or_default();
    Undo::DeleteVolume(v1::DeleteVolumeRequest { volume_id, ..Default::default() })
}

pub(crate) fn created_snapshot(
    request: &v1::CreateSnapshotRequest,
    answer: Option<&v1::CreateSnapshotResponse>,
) -> Undo {
    let Some(answer) = answer else {
        return Undo::FindSnapshot(v1::CreateSnapshotRequest { secrets: BTreeMap::new(), ..request.clone() });
    };
    let snapshot = answer.snapshot.as_ref();
    let snapshot_id = snapshot.map(|snapshot| snapshot.snapshot_id.clone()).unwrap_or_default();
    Undo::DeleteSnapshot(v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() })
}

pub(crate) fn attached<A>(request: &v1::ControllerPublishVolumeRequest, _: Option<&A>) -> Undo {
    Undo::Detach(request.into())
}

pub(crate) fn staged<A>(request: &v1::NodeStageVolumeRequest, _: Option<&A>) -> Undo {
    Undo::Unstage(request.into())
}

pub(crate) fn published<A>(request: &v1::NodePublishVolumeRequest, _: Option<&A>) -> Undo {
    Undo::Unpublish(request.into())
}

/// The call that detaches what this call attached. It has no secrets: add its own.
impl From<&v1::ControllerPublishVolumeRequest> for v1::ControllerUnpublishVolumeRequest {
    fn from(made: &v1::ControllerPublishVolumeRequest) -> Self {
        Self { volume_id: made.volume_id.clone(), node_id: made.node_id.clone(), ..Self::default() }
    }
}

/// The call that unstages what this call staged.
impl From<&v1::NodeStageVolumeRequest> for v1::NodeUnstageVolumeRequest {
    fn from(made: &v1::NodeStageVolumeRequest) -> Self {
        Self { volume_id: made.volume_id.clone(), staging_target_path: made.staging_target_path.clone() }
    }
}

/// The call that unpublishes what this call published.
impl From<&v1::NodePublishVolumeRequest> for v1::NodeUnpublishVolumeRequest {
    fn from(made: &v1::NodePublishVolumeRequest) -> Self {
        Self { volume_id: made.volume_id.clone(), target_path: made.target_path.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestParts as _;

    #[test]
    fn what_undoes_a_creation_has_no_secrets_and_is_known_by_its_answer() {
        let secrets = BTreeMap::from([("key".to_owned(), "canary".to_owned())]);
        let request =
            v1::CreateVolumeRequest { name: "v".into(), secrets: secrets.clone(), ..Default::default() };
        let begun = v1::CreateVolumeRequest { name: "v".into(), ..Default::default() };
        assert_eq!(request.undo(None), Some(Undo::FindVolume(begun)));
        let volume = Some(v1::Volume { volume_id: "id".into(), ..Default::default() });
        let delete = v1::DeleteVolumeRequest { volume_id: "id".into(), ..Default::default() };
        let undo = request.undo(Some(&v1::CreateVolumeResponse { volume }));
        assert_eq!(undo, Some(Undo::DeleteVolume(delete.clone())));
        assert_eq!(v1::DeleteVolumeRequest { secrets, ..delete }.as_undo(), undo);
        assert_eq!(v1::ProbeRequest {}.undo(None), None);
        assert_eq!(v1::ProbeRequest {}.as_undo(), None);
    }
}
