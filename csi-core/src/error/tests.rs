use std::collections::{BTreeMap, BTreeSet};

use super::*;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/error-mapping.md");

/// The rows of the document's table whose first column has this heading.
fn rows(heading: &str) -> Vec<[String; 3]> {
    let text = std::fs::read_to_string(TABLE).expect("the document is beside the crates");
    let table = text.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |"))).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        let mut cell = || cells.next().expect("three columns");
        [cell(), cell(), cell()]
    });
    rows.collect()
}

/// One error of each condition. A new condition does not compile until it is listed here, and then fails
/// until it has a row.
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

/// A code by the spec's name.
fn code(name: &str) -> Code {
    let all = (0..17).map(Code::from_i32);
    let spelt = |code: &Code| format!("{code:?}").to_uppercase() == name.replace('_', "");
    all.into_iter().find(spelt).unwrap_or_else(|| panic!("{name} is no code"))
}

// spec: concurrency.pending-is-aborted, errors.failure-is-an-error, errors.status-codes-only
// spec: errors.code-of-the-condition, errors.permission-denied, errors.unauthenticated, probe.unhealthy
// spec: create-volume.differs-is-already-exists, create-volume.out-of-range, create-volume.source-missing
// spec: create-volume.topology-unmet, delete-volume.in-use
// spec: controller-publish-volume.differs-is-already-exists, controller-publish-volume.volume-missing
// spec: controller-publish-volume.node-missing, controller-publish-volume.on-another-node
// spec: controller-publish-volume.limit, controller-unpublish-volume.missing
// spec: validate-volume-capabilities.missing, list-volumes.bad-token, controller-get-volume.missing
// spec: controller-modify-volume.invalid-changes-nothing, controller-modify-volume.missing
// spec: controller-expand-volume.missing, controller-expand-volume.in-use
// spec: controller-expand-volume.out-of-range, controller-expand-volume.beyond-capabilities
// spec: controller-get-volume-health.missing, controller-list-volume-health.pages
// spec: create-snapshot.other-source, create-snapshot.no-room, delete-snapshot.group-member
// spec: delete-snapshot.in-use, list-snapshots.bad-token, get-snapshot.missing
// spec: create-volume-group-snapshot.differs-is-already-exists, create-volume-group-snapshot.not-together
// spec: create-volume-group-snapshot.no-room, delete-volume-group-snapshot.mismatch
// spec: delete-volume-group-snapshot.in-use, get-volume-group-snapshot.missing
// spec: get-volume-group-snapshot.mismatch, node-stage-volume.differs-is-already-exists
// spec: node-stage-volume.missing, node-stage-volume.beyond-capabilities, node-unstage-volume.missing
// spec: node-publish-volume.beyond-capabilities, node-publish-volume.missing, node-unpublish-volume.missing
// spec: node-get-volume-stats.missing, node-expand-volume.missing, node-expand-volume.in-use
// spec: node-expand-volume.out-of-range, node-expand-volume.beyond-capabilities
// spec: node-get-volume-health.missing, get-metadata-allocated.missing, get-metadata-delta.missing
// spec: get-metadata-delta.not-tracked
#[test]
fn the_document_s_table_is_the_code_s_for_every_condition_and_rpc() {
    let mut left: BTreeSet<(&str, Rpc)> = conditions()
        .into_keys()
        .flat_map(|condition| Rpc::ALL.iter().map(move |rpc| (condition, *rpc)))
        .collect();
    let cells = left.len();
    let conditions = conditions();
    for [condition, rpcs, due] in rows("condition") {
        let (condition, error) = conditions
            .get_key_value(condition.as_str())
            .unwrap_or_else(|| panic!("there is no condition {condition}"));
        let named: Vec<&str> = rpcs.split(", ").collect();
        let rest = ["every RPC", "all others"].contains(&rpcs.as_str());
        assert!(rest || named.iter().all(|name| Rpc::ALL.iter().any(|rpc| rpc.name() == *name)), "{rpcs}");
        for rpc in Rpc::ALL.iter().filter(|rpc| rest || named.contains(&rpc.name())) {
            // Rows go from the particular to the general: an earlier row takes precedence.
            if left.remove(&(*condition, *rpc)) {
                assert_eq!(error.code(*rpc), code(&due), "{condition} of {rpc}");
            }
        }
    }
    assert!(left.is_empty(), "not in the table: {left:?}");
    assert_eq!(cells, 24 * 36);
}

#[cfg(all(feature = "mount", target_os = "linux"))]
#[test]
fn mount_errors_keep_their_meaning_and_their_text() {
    use csi_mount::ErrorKind::*;
    let kinds = [
        InvalidInput,
        Protected,
        NotOwned,
        NotFound,
        AlreadyMounted,
        Busy,
        Unresponsive,
        NotBlank,
        Unreadable,
        WrongDevice,
        ReadOnly,
        OutOfRange,
        NoSpace,
        Damaged,
        Unsupported,
        WrongKey,
        MissingTool,
        OutOfMemory,
        PermissionDenied,
        ToolFailed,
        Io,
    ];
    let rows = rows("kind");
    assert_eq!(rows.len(), kinds.len());
    for kind in kinds {
        let row = rows.iter().find(|[name, ..]| *name == format!("{kind:?}"));
        let [_, due, _] = row.unwrap_or_else(|| panic!("{kind:?} is not in the table"));
        let error =
            Error::from(csi_mount::Error::new(kind, "stage", "as it is").at("/dev/sdx").hint("fix it"));
        assert_eq!(name(&error), due, "{kind:?}");
        assert_eq!(error.to_string(), "stage /dev/sdx: as it is; fix it", "{kind:?}");
        let source = std::error::Error::source(&error).and_then(<dyn std::error::Error>::downcast_ref);
        assert_eq!(source.map(csi_mount::Error::kind), Some(kind), "the mount error is the source");
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
