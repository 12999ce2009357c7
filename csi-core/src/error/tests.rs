//! Messages, details and causes. `xtask/tests/error_mapping.rs` compares the codes with the document.

use std::collections::BTreeMap;

use super::*;

/// One error of each condition. A new condition does not compile until `name` has it.
fn conditions() -> BTreeMap<&'static str, Error> {
    let text = String::new;
    let all = [
        Error::invalid("field", "reason"),
        Error::VolumeNotFound(VolumeId::new("v").unwrap()),
        Error::SnapshotNotFound(SnapshotId::new("s").unwrap()),
        Error::GroupSnapshotNotFound(GroupSnapshotId::new("g").unwrap()),
        Error::NodeNotFound(NodeId::new("n").unwrap()),
        Error::SourceNotFound(text().into()),
        Error::Incompatible(text().into()),
        Error::OutOfRange(text().into()),
        Error::InUse(text().into()),
        Error::NotPossible(text().into()),
        Error::PublishedElsewhere(NodeId::new("n").unwrap()),
        Error::NotStaged(text().into()),
        Error::LimitReached(text().into()),
        Error::TopologyUnsatisfied(text().into()),
        Error::Unsupported(text().into()),
        Error::Pending(text().into()),
        Error::InvalidToken,
        Error::Unavailable(text().into()),
        Error::OutcomeUnknown(text().into()),
        Error::Unhealthy(text().into()),
        Error::Unauthenticated(text().into()),
        Error::PermissionDenied(text().into()),
        Error::Unimplemented(text().into()),
        Error::Internal(text().into()),
    ];
    all.into_iter().map(|error| (name(&error), error)).collect()
}

fn name(error: &Error) -> &'static str {
    match error {
        Error::InvalidArgument { .. } => "InvalidArgument",
        Error::VolumeNotFound(_) => "VolumeNotFound",
        Error::SnapshotNotFound(_) => "SnapshotNotFound",
        Error::GroupSnapshotNotFound(_) => "GroupSnapshotNotFound",
        Error::NodeNotFound(_) => "NodeNotFound",
        Error::SourceNotFound(_) => "SourceNotFound",
        Error::Incompatible(_) => "Incompatible",
        Error::OutOfRange(_) => "OutOfRange",
        Error::InUse(_) => "InUse",
        Error::NotPossible(_) => "NotPossible",
        Error::PublishedElsewhere(_) => "PublishedElsewhere",
        Error::NotStaged(_) => "NotStaged",
        Error::LimitReached(_) => "LimitReached",
        Error::TopologyUnsatisfied(_) => "TopologyUnsatisfied",
        Error::Unsupported(_) => "Unsupported",
        Error::Pending(_) => "Pending",
        Error::InvalidToken => "InvalidToken",
        Error::Unavailable(_) => "Unavailable",
        Error::OutcomeUnknown(_) => "OutcomeUnknown",
        Error::Unhealthy(_) => "Unhealthy",
        Error::Unauthenticated(_) => "Unauthenticated",
        Error::PermissionDenied(_) => "PermissionDenied",
        Error::Unimplemented(_) => "Unimplemented",
        Error::Internal(_) => "Internal",
    }
}

#[test]
fn the_cause_of_a_mount_error_is_for_the_log() {
    #[cfg(all(feature = "mount", target_os = "linux"))]
    {
        let io = csi_mount::Error::os("read", "/dev/sdx", std::io::Error::from_raw_os_error(5));
        let error = Error::from(io);
        assert_eq!(error.with_causes(), "read /dev/sdx: Input/output error: Input/output error (os error 5)");
    }
    let error =
        Error::Internal(Reason::because("the pool does not answer", std::io::Error::other("10.0.0.7")));
    assert!(!error.status(Rpc::CreateVolume).message().contains("10.0.0.7"));
}

// spec: errors.message, errors.no-details
#[test]
fn a_status_always_has_a_message_and_never_details() {
    for error in conditions().values() {
        for rpc in Rpc::ALL {
            let status = error.status(*rpc);
            assert!(!status.message().trim().is_empty(), "{error:?}");
            assert!(status.details().is_empty());
        }
    }
}

#[test]
fn the_cause_is_for_the_log() {
    let error = Error::from(std::io::Error::other("disk on fire"));
    assert_eq!(error.code(Rpc::DeleteVolume), Code::Internal);
    assert_eq!(error.to_string(), "disk on fire");
    assert!(std::error::Error::source(&error).is_some());
    assert_eq!(error.with_causes(), "disk on fire", "once");
    let error =
        Error::Internal(Reason::because("the pool does not answer", std::io::Error::other("no route")));
    assert_eq!(error.with_causes(), "the pool does not answer: no route");
    let full = Error::from(std::io::Error::from(std::io::ErrorKind::StorageFull));
    assert_eq!(full.code(Rpc::CreateVolume), Code::ResourceExhausted);
}
