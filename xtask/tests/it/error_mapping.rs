//! Compares the tables of `docs/error-mapping.md` with the code: the status code of every condition for every
//! RPC, and the condition of every kind of mount error.

use std::collections::{BTreeMap, BTreeSet};

use csi_core::types::{GroupSnapshotId, NodeId, SnapshotId};
use csi_core::{Error, Rpc, VolumeId};
use tonic::Code;

use crate::tree;
use crate::tree::read;

/// The rows of the document's table whose first column has this heading.
fn rows(heading: &str) -> Vec<[String; 3]> {
    let rows = tree::rows(&read("docs/error-mapping.md"), &format!("| {heading} |"));
    rows.into_iter().map(|cells| cells.try_into().expect("three columns")).collect()
}

/// The variants of an enum, read from its source: the compiler does not report a variant that is missing
/// here, because both enums are `non_exhaustive`.
fn variants(path: &str, name: &str) -> BTreeSet<String> {
    let file = syn::parse_file(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let found = file.items.into_iter().find_map(|item| match item {
        syn::Item::Enum(item) if item.ident == name => Some(item.variants),
        _ => None,
    });
    let variants = found.unwrap_or_else(|| panic!("{path} has no enum {name}"));
    variants.into_iter().map(|variant| variant.ident.to_string()).collect()
}

/// One error of each condition, by the condition's name.
fn conditions() -> BTreeMap<String, Error> {
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
        Error::NoSpace(text().into()),
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
    let conditions: BTreeMap<_, _> = all.into_iter().map(|error| (name(&error), error)).collect();
    let names: BTreeSet<String> = conditions.keys().cloned().collect();
    assert_eq!(names, variants("csi-core/src/error/mod.rs", "Error"), "the conditions (right) and this list");
    conditions
}

/// The name of its condition, with which its `Debug` output begins.
fn name(error: &Error) -> String {
    format!("{error:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
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
    let conditions = conditions();
    let cells = |condition| Rpc::ALL.iter().map(move |rpc| (condition, *rpc));
    let mut left: BTreeSet<(&String, Rpc)> = conditions.keys().flat_map(cells).collect();
    assert_eq!(left.len(), 25 * 36);
    for [names, rpcs, due] in rows("condition") {
        let named: Vec<&str> = rpcs.split(", ").collect();
        let rest = ["every RPC", "all others"].contains(&rpcs.as_str());
        assert!(rest || named.iter().all(|name| Rpc::ALL.iter().any(|rpc| rpc.name() == *name)), "{rpcs}");
        for name in names.split(", ") {
            let known = conditions.get_key_value(name);
            let (condition, error) = known.unwrap_or_else(|| panic!("there is no condition {name}"));
            for rpc in Rpc::ALL.iter().filter(|rpc| rest || named.contains(&rpc.name())) {
                // Rows go from the particular to the general: an earlier row takes precedence.
                if left.remove(&(condition, *rpc)) {
                    assert_eq!(error.code(*rpc), code(&due), "{condition} of {rpc}");
                }
            }
        }
    }
    assert!(left.is_empty(), "not in the table: {left:?}");
}

/// What one caller does with the codes of an RPC.
struct Caller {
    uncertain: BTreeSet<String>,
    infeasible: BTreeSet<String>,
}

/// The rows of all callers' tables, by RPC.
fn callers() -> BTreeMap<Rpc, Vec<Caller>> {
    const FIVE: &str = "CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, RESOURCE_EXHAUSTED, ABORTED";
    let mut callers: BTreeMap<Rpc, Vec<Caller>> = BTreeMap::new();
    for row in tree::rows(&read("docs/error-mapping.md"), "| RPC | uncertain |") {
        let [rpcs, uncertain, infeasible, _] = &row[..] else { panic!("four columns: {row:?}") };
        let codes = |cell: &String| -> BTreeSet<String> {
            match cell.as_str() {
                "—" | "none" => BTreeSet::new(),
                "the five" => FIVE.split(", ").map(str::to_owned).collect(),
                codes => codes.split(", ").map(str::to_owned).collect(),
            }
        };
        for name in rpcs.split(", ") {
            let rpc = Rpc::ALL.iter().find(|rpc| rpc.name() == name);
            let rpc = rpc.unwrap_or_else(|| panic!("{name} is no RPC"));
            let caller = Caller { uncertain: codes(uncertain), infeasible: codes(infeasible) };
            let named = caller.uncertain.iter().chain(&caller.infeasible);
            named.for_each(|name| _ = spelt(name));
            callers.entry(*rpc).or_default().push(caller);
        }
    }
    callers
}

/// A code by gRPC's name; CANCELLED has two spellings.
fn spelt(name: &str) -> Code {
    if name == "CANCELLED" { Code::Cancelled } else { code(name) }
}

#[test]
fn the_callers_of_every_rpc_are_named() {
    let named: BTreeSet<Rpc> = callers().into_keys().collect();
    let missing: Vec<_> = Rpc::ALL.iter().filter(|rpc| !named.contains(rpc)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// These callers repeat a call that can still be running even if its object is deleted.
#[test]
fn no_call_is_repeated_for_an_object_that_nobody_wants() {
    use Rpc::{CreateSnapshot, CreateVolume, CreateVolumeGroupSnapshot};
    let conditions = conditions();
    let callers = callers();
    for rpc in [CreateVolume, CreateSnapshot, CreateVolumeGroupSnapshot] {
        assert!(!callers[&rpc].is_empty());
        for (name, error) in &conditions {
            let can_be_running = ["Pending", "OutcomeUnknown", "InvalidToken"].contains(&name.as_str());
            // The spec's own code for a full storage.
            let is_full = rpc != CreateVolume && error.code(rpc) == Code::ResourceExhausted;
            let is_repeated = callers[&rpc]
                .iter()
                .any(|caller| caller.uncertain.iter().any(|it| spelt(it) == error.code(rpc)));
            assert_eq!(is_repeated, can_be_running || is_full, "{name} of {rpc}");
        }
    }
}

/// What can't succeed is not tried again at once, where the caller knows the difference.
#[test]
fn a_request_that_can_t_succeed_is_infeasible() {
    use Rpc::{ControllerExpandVolume, ControllerModifyVolume, CreateVolume, NodeExpandVolume};
    let conditions = conditions();
    let callers = callers();
    for (rpc, names) in [
        (CreateVolume, &["InvalidArgument", "Unsupported"][..]),
        (ControllerExpandVolume, &["InvalidArgument", "Unsupported", "OutOfRange", "VolumeNotFound"]),
        (ControllerModifyVolume, &["InvalidArgument", "Unsupported", "OutOfRange"]),
        (NodeExpandVolume, &["InvalidArgument", "Unsupported", "OutOfRange", "VolumeNotFound"]),
    ] {
        for name in names {
            let due = conditions[*name].code(rpc);
            let mut codes = callers[&rpc].iter().flat_map(|caller| &caller.infeasible);
            assert!(codes.any(|it| spelt(it) == due), "{name} of {rpc}: {due:?}");
        }
    }
}

/// In Kubernetes the kubelet fails the pod for it.
#[test]
fn only_a_limit_of_the_node_is_told_to_the_attacher() {
    let limits: Vec<_> = conditions()
        .into_iter()
        .filter(|(_, error)| error.code(Rpc::ControllerPublishVolume) == Code::ResourceExhausted)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(limits, ["LimitReached"]);
    let full = Error::from(std::io::Error::from(std::io::ErrorKind::StorageFull));
    assert_eq!(full.code(Rpc::ControllerPublishVolume), Code::Internal);
    assert_eq!(full.code(Rpc::CreateVolume), Code::ResourceExhausted);
}

#[cfg(target_os = "linux")]
#[test]
fn mount_errors_keep_their_meaning_and_their_text() {
    use csi_core::mount::{self, ErrorKind::*};
    let kinds = [
        InvalidInput,
        InvalidOption,
        Protected,
        NotOwned,
        NotFound,
        AlreadyExists,
        Pending,
        AlreadyMounted,
        Busy,
        Unresponsive,
        NotBlank,
        Unreadable,
        WrongDevice,
        ReadOnly,
        Reserved,
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
    let names: BTreeSet<String> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
    assert_eq!(names, variants("csi-mount/src/error.rs", "ErrorKind"), "the kinds (right) and this list");
    let rows = rows("kind");
    assert_eq!(rows.len(), kinds.len());
    for kind in kinds {
        let row = rows.iter().find(|[name, ..]| *name == format!("{kind:?}"));
        let [_, due, _] = row.unwrap_or_else(|| panic!("{kind:?} is not in the table"));
        let error = Error::from(mount::Error::new(kind, "stage", "as it is").at("/dev/sdx").hint("fix it"));
        assert_eq!(name(&error), *due, "{kind:?}");
        let field = if kind == InvalidOption { "volume_capability.mount.mount_flags: " } else { "" };
        assert_eq!(error.to_string(), format!("{field}stage /dev/sdx: as it is; fix it"), "{kind:?}");
        let source = std::error::Error::source(&error).and_then(<dyn std::error::Error>::downcast_ref);
        assert_eq!(source.map(mount::Error::kind), Some(kind), "the mount error is the source");
    }
}

/// A number that is missing in the code is retried for ever, or never: so all numbers of Linux are compared.
#[cfg(target_os = "linux")]
#[test]
fn every_error_number_has_the_kind_and_the_condition_of_the_document() {
    use csi_core::mount;
    use std::io;
    let rows = rows("errno");
    let rest = rows.iter().find(|[numbers, ..]| numbers == "all others").expect("a row for all others");
    let mut named: BTreeSet<&str> = rows.iter().flat_map(|[numbers, ..]| numbers.split(", ")).collect();
    named.remove("all others");
    for number in 1..134 {
        let errno = format!("{:?}", nix::errno::Errno::from_raw(number));
        if errno == "UnknownErrno" {
            continue;
        }
        let row = rows.iter().find(|[numbers, ..]| numbers.split(", ").any(|name| name == errno));
        named.remove(errno.as_str());
        let [_, kind, condition] = row.unwrap_or(rest);
        let system = || io::Error::from_raw_os_error(number);
        let found = mount::Error::os("open", "/path", system()).kind();
        assert_eq!(format!("{found:?}"), *kind, "the kind of {errno}");
        assert_eq!(name(&Error::from(system())), *condition, "the condition of {errno}");
    }
    assert!(named.is_empty(), "not the names of numbers: {named:?}");
}
