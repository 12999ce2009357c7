//! Error conditions, with the spec's names, and the status code that each RPC gives them.
//!
//! [`Error`] names a condition; [`Error::code`] is the only place where status codes are chosen. `io.rs`
//! and `mount.rs` turn errors of the system into conditions.
//!
//! It imports the RPCs and ids.

mod io;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod mount;
mod reason;

use std::borrow::Cow;
use std::fmt;

use csi_proto::{Rpc, escape};
use tonic::Code;

pub use io::IoContext;
pub use reason::Reason;
use reason::Source;

use crate::ids::{GroupSnapshotId, NodeId, SnapshotId, VolumeId};

/// The result of every driver method.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error condition that the spec names. The condition and the RPC determine the status code: see
/// [`Error::code`].
///
/// A driver reports the condition; it never chooses a code. `?` on an [`std::io::Error`] or a mount error
/// gives the matching condition, with that error as its source.
///
/// ```
/// use csi_core::{Error, Reason};
///
/// let full = Error::LimitReached("pool a has no room for 1Gi".into());
/// let cause = std::io::Error::other("10.0.0.7: no route");
/// let silent = Error::Unavailable(Reason::because("the pool does not answer", cause));
/// assert_eq!(silent.to_string(), "the pool does not answer");
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// A field is missing or malformed.
    #[doc(alias = "INVALID_ARGUMENT")]
    InvalidArgument {
        /// The field's name on the wire, with its path: `volume_capabilities[0].access_mode`.
        field: String,
        /// What is wrong with it.
        reason: Reason,
    },
    /// The volume does not exist. A delete then succeeds: the framework answers OK.
    #[doc(alias = "NOT_FOUND")]
    VolumeNotFound(VolumeId),
    /// The snapshot does not exist. A delete then succeeds.
    #[doc(alias = "NOT_FOUND")]
    SnapshotNotFound(SnapshotId),
    /// The group snapshot does not exist. A delete then succeeds.
    #[doc(alias = "NOT_FOUND")]
    GroupSnapshotNotFound(GroupSnapshotId),
    /// The node does not exist.
    #[doc(alias = "NOT_FOUND")]
    NodeNotFound(NodeId),
    /// The source of the volume's content does not exist; the text names it.
    #[doc(alias = "NOT_FOUND")]
    SourceNotFound(Reason),
    /// The object already exists and differs from the request; the text names the difference.
    #[doc(alias = "ALREADY_EXISTS")]
    Incompatible(Reason),
    /// The storage can't provide the requested size.
    #[doc(alias = "OUT_OF_RANGE")]
    OutOfRange(Reason),
    /// The object is in use, or has dependants. It was not changed.
    #[doc(alias = "FAILED_PRECONDITION")]
    InUse(Reason),
    /// The volume is attached to another node and can't be attached to two.
    #[doc(alias = "FAILED_PRECONDITION")]
    PublishedElsewhere(NodeId),
    /// The object's state does not allow the operation: a device that holds other data or takes no writes,
    /// volumes that can't be snapshotted together, changes that are not tracked. The object was not
    /// changed.
    #[doc(alias = "FAILED_PRECONDITION")]
    NotPossible(Reason),
    /// The volume is not staged at the path that the call names.
    #[doc(alias = "FAILED_PRECONDITION")]
    NotStaged(Reason),
    /// A limit is reached: volumes on a node, space in a pool, snapshots of a volume. From
    /// ControllerPublishVolume it says that the node can't take more volumes, and Kubernetes can fail the pod.
    #[doc(alias = "RESOURCE_EXHAUSTED")]
    LimitReached(Reason),
    /// A disk, a quota or the memory is full. `?` on such an [`std::io::Error`] gives this condition.
    #[doc(alias = "RESOURCE_EXHAUSTED", alias = "INTERNAL")]
    NoSpace(Reason),
    /// The volume can't be created where it must be usable.
    #[doc(alias = "RESOURCE_EXHAUSTED")]
    TopologyUnsatisfied(Reason),
    /// The driver does not support the request: a capability, parameter or combination; the text names it.
    #[doc(alias = "INVALID_ARGUMENT", alias = "FAILED_PRECONDITION")]
    Unsupported(Reason),
    /// Another operation on the same object is running.
    #[doc(alias = "ABORTED")]
    Pending(Reason),
    /// The token was not issued by this driver, or is too old; the caller starts from the beginning.
    #[doc(alias = "ABORTED")]
    InvalidToken,
    /// Something that the volume needs does not answer at the moment. The operation has ended; a retry can
    /// help.
    #[doc(alias = "UNAVAILABLE", alias = "INTERNAL")]
    Unavailable(Reason),
    /// The operation failed here, but the backend might still run or complete what it started, for example
    /// because a request to the backend timed out. The caller retries until it gets another answer.
    ///
    /// Callers interpret UNAVAILABLE in this way: external-provisioner repeats CreateVolume, even after the
    /// claim was deleted, so that nothing is left behind, and external-snapshotter keeps the object of a
    /// deleted snapshot. Use another condition for an operation that failed and left nothing behind.
    #[doc(alias = "UNAVAILABLE")]
    OutcomeUnknown(Reason),
    /// A dependency of the driver is missing or unhealthy. From Probe this error requests a restart.
    #[doc(alias = "UNAVAILABLE", alias = "FAILED_PRECONDITION")]
    Unhealthy(Reason),
    /// The credentials are not valid.
    #[doc(alias = "UNAUTHENTICATED")]
    Unauthenticated(Reason),
    /// The credentials are valid, but do not allow the operation.
    #[doc(alias = "PERMISSION_DENIED")]
    PermissionDenied(Reason),
    /// The RPC is not offered.
    #[doc(alias = "UNIMPLEMENTED")]
    Unimplemented(Reason),
    /// Any other error.
    #[doc(alias = "INTERNAL")]
    Internal(Reason),
}

impl Error {
    /// Creates an [`InvalidArgument`](Self::InvalidArgument): a field is missing or malformed.
    pub fn invalid(field: impl Into<String>, reason: impl Into<Reason>) -> Self {
        Self::InvalidArgument { field: field.into(), reason: reason.into() }
    }

    /// Creates an [`Internal`](Self::Internal) error with this cause. The caller sees the cause's message; the
    /// cause's sources go to the log.
    pub fn internal(cause: impl Into<Source>) -> Self {
        Self::Internal(Reason::from_error(cause))
    }

    /// The driver's answer breaks a rule of the spec. The log and the caller's message name the rule.
    pub(crate) fn broken(rule: impl fmt::Display) -> Self {
        Self::Internal(format!("the driver's answer breaks the spec: {rule}").into())
    }

    /// Returns the status code of this condition in the answer to this RPC.
    ///
    /// Callers act on codes, so the spec's table for the RPC decides. If the table has no row for a
    /// condition, the code is the nearest one to which the RPC's callers react correctly.
    ///
    /// - spec: `concurrency.pending-is-aborted`, `fields.invalid-is-invalid-argument`
    /// - spec: `errors.status-codes-only`, `errors.code-of-the-condition`, `errors.permission-denied`
    /// - spec: `errors.unauthenticated`, `probe.unhealthy`, `create-volume.out-of-range`
    /// - spec: `create-volume.source-missing`, `create-volume.topology-unmet`
    /// - spec: `controller-publish-volume.volume-missing`, `controller-publish-volume.node-missing`
    /// - spec: `controller-publish-volume.on-another-node`, `controller-get-volume.missing`
    /// - spec: `controller-modify-volume.missing`, `controller-expand-volume.missing`
    /// - spec: `controller-expand-volume.in-use`, `controller-expand-volume.beyond-capabilities`
    /// - spec: `controller-get-volume-health.missing`, `create-snapshot.no-room`
    /// - spec: `delete-snapshot.group-member`, `delete-snapshot.in-use`, `get-snapshot.missing`
    /// - spec: `create-volume-group-snapshot.not-together`, `create-volume-group-snapshot.no-room`
    /// - spec: `delete-volume-group-snapshot.mismatch`, `delete-volume-group-snapshot.in-use`
    /// - spec: `get-volume-group-snapshot.missing`, `get-volume-group-snapshot.mismatch`
    /// - spec: `node-stage-volume.missing`, `node-stage-volume.beyond-capabilities`
    /// - spec: `node-unstage-volume.missing`, `node-publish-volume.beyond-capabilities`
    /// - spec: `node-publish-volume.missing`, `node-unpublish-volume.missing`
    /// - spec: `node-get-volume-stats.missing`
    /// - spec: `node-expand-volume.missing`, `node-expand-volume.in-use`, `node-expand-volume.out-of-range`
    /// - spec: `node-expand-volume.beyond-capabilities`, `node-get-volume-health.missing`
    /// - spec: `get-metadata-allocated.missing`, `get-metadata-delta.missing`
    /// - spec: `get-metadata-delta.not-tracked`
    pub fn code(&self, rpc: Rpc) -> Code {
        match self {
            Self::InvalidArgument { .. } => Code::InvalidArgument,
            Self::VolumeNotFound(_)
            | Self::SnapshotNotFound(_)
            | Self::GroupSnapshotNotFound(_)
            | Self::NodeNotFound(_)
            | Self::SourceNotFound(_) => Code::NotFound,
            Self::Incompatible(_) => match rpc {
                Rpc::CreateVolume
                | Rpc::ControllerPublishVolume
                | Rpc::CreateSnapshot
                | Rpc::CreateVolumeGroupSnapshot
                | Rpc::NodeStageVolume
                | Rpc::NodePublishVolume => Code::AlreadyExists,
                _ => Code::FailedPrecondition,
            },
            // external-resizer accepts no other code as "this change is impossible, don't retry".
            Self::OutOfRange(_) if rpc == Rpc::ControllerModifyVolume => Code::InvalidArgument,
            Self::OutOfRange(_) => Code::OutOfRange,
            Self::InUse(_) | Self::NotPossible(_) | Self::PublishedElsewhere(_) | Self::NotStaged(_) => {
                Code::FailedPrecondition
            }
            // In other RPCs that code is final, but a missing dependency can come back.
            Self::Unhealthy(_) if rpc == Rpc::Probe => Code::FailedPrecondition,
            // The operation has ended. With UNAVAILABLE the caller would retry forever, even for objects
            // that nobody wants any more.
            Self::Unavailable(_) | Self::Unhealthy(_) if creates(rpc) => Code::Internal,
            Self::Unavailable(_) | Self::Unhealthy(_) | Self::OutcomeUnknown(_) => Code::Unavailable,
            // In this RPC RESOURCE_EXHAUSTED is the node's limit of volumes, for which the kubelet fails the pod.
            Self::NoSpace(_) | Self::TopologyUnsatisfied(_) if rpc == Rpc::ControllerPublishVolume => {
                Code::Internal
            }
            Self::LimitReached(_) | Self::NoSpace(_) | Self::TopologyUnsatisfied(_) => {
                Code::ResourceExhausted
            }
            // A stage or publish beyond the volume's capabilities depends on the volume's state; in other
            // RPCs the request itself asks for something unsupported.
            Self::Unsupported(_) => match rpc {
                Rpc::NodeStageVolume | Rpc::NodePublishVolume => Code::FailedPrecondition,
                _ => Code::InvalidArgument,
            },
            Self::Pending(_) | Self::InvalidToken => Code::Aborted,
            Self::Unauthenticated(_) => Code::Unauthenticated,
            Self::PermissionDenied(_) => Code::PermissionDenied,
            Self::Unimplemented(_) => Code::Unimplemented,
            Self::Internal(_) => Code::Internal,
        }
    }

    /// The status for the caller: the code for this RPC, a message that is never empty, and no details.
    // spec: errors.message, errors.no-details
    pub(crate) fn status(&self, rpc: Rpc) -> tonic::Status {
        let code = self.code(rpc);
        let message = match self {
            // It can exist.
            Self::VolumeNotFound(_) if matches!(rpc, Rpc::NodeGetVolumeStats | Rpc::NodeExpandVolume) => {
                escape::message(&format!("{}, or is not at this path", self.unescaped())).into_owned()
            }
            _ => self.to_string(),
        };
        let message = if message.trim().is_empty() { code.description().to_owned() } else { message };
        tonic::Status::new(code, message)
    }

    /// The text for the log: the caller's message, and the causes below it. Escaped and limited like it.
    pub(crate) fn with_causes(&self, message: &str) -> String {
        let mut text = message.to_owned();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            let words = cause.to_string();
            let words = escape::message(&words);
            // Skip a cause whose words are already part of the text.
            if !text.contains(&*words) {
                text.push_str(": ");
                text.push_str(&words);
            }
            next = cause.source();
        }
        escape::message(&text).into_owned()
    }

    /// The reason of a condition that has one.
    fn reason(&self) -> Option<&Reason> {
        match self {
            Self::InvalidArgument { reason, .. }
            | Self::SourceNotFound(reason)
            | Self::Incompatible(reason)
            | Self::OutOfRange(reason)
            | Self::InUse(reason)
            | Self::NotPossible(reason)
            | Self::NotStaged(reason)
            | Self::LimitReached(reason)
            | Self::NoSpace(reason)
            | Self::TopologyUnsatisfied(reason)
            | Self::Unsupported(reason)
            | Self::Pending(reason)
            | Self::Unavailable(reason)
            | Self::OutcomeUnknown(reason)
            | Self::Unhealthy(reason)
            | Self::Unauthenticated(reason)
            | Self::PermissionDenied(reason)
            | Self::Unimplemented(reason)
            | Self::Internal(reason) => Some(reason),
            Self::VolumeNotFound(_)
            | Self::SnapshotNotFound(_)
            | Self::GroupSnapshotNotFound(_)
            | Self::NodeNotFound(_)
            | Self::PublishedElsewhere(_)
            | Self::InvalidToken => None,
        }
    }

    /// The message as its parts have it: they can contain any text of a request, of the kernel or of a program.
    fn unescaped(&self) -> Cow<'_, str> {
        match self {
            Self::InvalidArgument { field, reason } => format!("{field}: {reason}").into(),
            Self::VolumeNotFound(id) => format!("volume {id} does not exist").into(),
            Self::SnapshotNotFound(id) => format!("snapshot {id} does not exist").into(),
            Self::GroupSnapshotNotFound(id) => format!("group snapshot {id} does not exist").into(),
            Self::NodeNotFound(id) => format!("node {id} does not exist").into(),
            Self::SourceNotFound(what) => format!("source {what} does not exist").into(),
            Self::PublishedElsewhere(node) => format!("the volume is published to node {node}").into(),
            Self::InvalidToken => "starting_token: is not one of this driver's; list from the start".into(),
            other => other.reason().map_or("", Reason::as_str).into(),
        }
    }
}

/// Whether this controller RPC creates something. After an error its caller deletes it only if the code
/// says that it might exist.
pub(crate) const fn creates(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::CreateVolume
            | Rpc::ControllerPublishVolume
            | Rpc::CreateSnapshot
            | Rpc::CreateVolumeGroupSnapshot
    )
}

/// The message for the caller, also part of the log: one line of at most 2,048 bytes, without control characters
/// ([`escape::message`]).
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape::message(&self.unescaped()))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.reason()?.source()
    }
}

#[cfg(test)]
mod tests;
