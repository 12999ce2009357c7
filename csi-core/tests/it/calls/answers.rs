//! A driver's answer that breaks the spec becomes INTERNAL, and an error in the log names the broken rule.
//! An answer that does not match the request gets the code that the spec gives for this case.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use csi_core::controller::{Capacity, Page, Published, VolumeListing};
use csi_core::snapshot_metadata::{BlockMetadata, BlockMetadataType, BlockRange};
use csi_core::types::{
    ContentSource, GroupSnapshotId, Snapshot, StorageHealthEntry, StorageHealthStatus, Token, Topology,
    Usage, VolumeHealth, VolumeHealthEntry, VolumeHealthStatus, VolumeStats,
};
use csi_core::*;
use csi_proto::v1;
use prost::Message as _;
use tonic::Code;

use crate::common::Served;
use crate::driver::{
    TestDriver, group_snapshot as group, id, page, ranges, snapshot as snap, unwell, volume, whole_plugin,
};
use crate::log::Log;
use crate::rpcs::{self, samples::samples};

fn vol(text: &str) -> Volume {
    volume(&id(text))
}

fn sized(bytes: u64) -> Volume {
    Volume::new(id("v"), bytes)
}

fn listed(volume: Volume) -> VolumeListing {
    VolumeListing::new(volume, vec![])
}

/// A page whose next token is the token that the sample request starts from.
fn round<T>(entries: Vec<T>) -> Page<T> {
    Page::new(entries, Some(Token::new("t").unwrap()))
}

fn health(text: &str, reasons: &[&str]) -> VolumeHealth {
    let entry = |reason: &&str| {
        VolumeHealthEntry::new(VolumeHealthStatus::Degraded, (*reason).to_owned(), "m".repeat(1000))
    };
    VolumeHealth::new(id(text), reasons.iter().map(entry))
}

fn storage(reasons: &[&str]) -> Vec<StorageHealthEntry> {
    let entry = |reason: &&str| {
        StorageHealthEntry::new(StorageHealthStatus::Degraded, (*reason).to_owned(), String::new())
    };
    reasons.iter().map(entry).collect()
}

fn in_zone(key: &str) -> Topology {
    Topology::new(key, "a")
}

struct Case(Rpc, Box<dyn Any + Send>, Code, &'static str);

fn case(rpc: Rpc, answer: impl Any + Send, code: Code, says: &'static str) -> Case {
    Case(rpc, Box::new(answer), code, says)
}

fn large_map() -> BTreeMap<String, String> {
    BTreeMap::from([("k".to_owned(), "x".repeat(4096))])
}

fn volume_cases() -> Vec<Case> {
    use Code::{AlreadyExists, Internal, Ok as Good, OutOfRange, Unavailable};
    use Rpc::*;
    let mut large_context = vol("v");
    large_context.volume_context = large_map();
    let other_source = sized(0).source(ContentSource::Volume(id("other")));
    let expanded = |capacity_bytes| Expanded::complete(capacity_bytes);
    let capacity = Capacity::new(1);
    vec![
        case(CreateVolume, vol("v").accessible_from(in_zone("zone")), Good, ""),
        // What was created exists, so these are not INTERNAL: the caller has to repeat the call.
        case(CreateVolume, large_context, Unavailable, "volume.volume_context: is 4097 bytes"),
        case(
            CreateVolume,
            sized(51),
            AlreadyExists,
            "capacity_range: a volume of this name exists and has 51 bytes",
        ),
        case(CreateVolume, sized(4), AlreadyExists, "capacity_range"),
        case(CreateVolume, other_source, AlreadyExists, "volume_content_source"),
        case(
            CreateVolume,
            vol("v").accessible_from(Topology::new("zone", "b")),
            AlreadyExists,
            "accessibility_req",
        ),
        case(
            CreateVolume,
            vol("v").accessible_from(in_zone("-")),
            Unavailable,
            "volume.accessible_topology: key \"-\"",
        ),
        case(ControllerPublishVolume, Published::new(large_map()), Unavailable, "publish_context: is"),
        case(ListVolumes, page(vec![listed(vol("a")), listed(vol("b"))]), Good, ""),
        case(ListVolumes, page(vec![listed(vol("a")); 3]), Internal, "3 of them, max_entries is 2"),
        case(ListVolumes, round(vec![listed(vol("a"))]), Internal, "next_token is the starting_token"),
        case(
            ControllerGetVolume,
            listed(vol("w")),
            Internal,
            "volume.volume_id is w, not the volume asked about",
        ),
        case(ControllerGetVolume, listed(sized(u64::MAX)), Internal, "does not fit an int64"),
        case(GetCapacity, Capacity::new(u64::MAX), Internal, "available_capacity"),
        case(GetCapacity, capacity.maximum_volume_size(u64::MAX), Internal, "maximum_volume"),
        case(GetCapacity, capacity.minimum_volume_size(u64::MAX), Internal, "minimum_volume"),
        case(ControllerExpandVolume, expanded(50), Good, ""),
        case(ControllerExpandVolume, expanded(4), Internal, "capacity_bytes 4 is less than was required"),
        case(ControllerExpandVolume, expanded(51), OutOfRange, "capacity_range.limit_bytes"),
        case(ControllerExpandVolume, expanded(u64::MAX), Internal, "does not fit an int64"),
    ]
}

fn snapshot_cases() -> Vec<Case> {
    use Code::{AlreadyExists, Internal, Ok as Good, Unavailable};
    use Rpc::*;
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_800);
    let mut late = snap("s", "v");
    late.creation_time = far;
    let mut placed = snap("s", "v");
    placed.accessible_topology = vec![Topology::new("zone", "b")];
    let mut misplaced = snap("s", "v");
    misplaced.accessible_topology = vec![in_zone("a/b/c")];
    let mut large = snap("s", "v");
    large.size_bytes = u64::MAX;
    let mut foreign = snap("s", "v");
    foreign.group_snapshot_id = Some(GroupSnapshotId::new("other").unwrap());
    let mut starting = snap("s", "v");
    starting.ready_to_use = false;
    let mut late_group = group("g", vec![snap("s", "v")]);
    late_group.creation_time = far;
    let mut late_pair = group("g", vec![snap("a", "v"), snap("b", "w")]);
    late_pair.creation_time = far;
    vec![
        case(
            CreateSnapshot,
            snap("s", "other"),
            AlreadyExists,
            "source_volume_id: a snapshot of this name exists",
        ),
        case(CreateSnapshot, placed, AlreadyExists, "accessibility_requirements"),
        case(CreateSnapshot, late, Unavailable, "snapshot.creation_time"),
        case(CreateSnapshot, large, Unavailable, "snapshot.size_bytes"),
        case(GetSnapshot, misplaced, Internal, "snapshot.accessible_topology"),
        case(GetSnapshot, snap("other", "v"), Internal, "snapshot.snapshot_id is other"),
        case(ListSnapshots, page(vec![snap("s", "v")]), Good, ""),
        case(ListSnapshots, page::<Snapshot>(vec![]), Good, ""),
        case(
            ListSnapshots,
            page(vec![snap("other", "v")]),
            Internal,
            "snapshot other does not pass the filter",
        ),
        case(ListSnapshots, page(vec![snap("s", "other")]), Internal, "does not pass the filter"),
        case(ListSnapshots, page(vec![snap("s", "v"); 3]), Internal, "max_entries"),
        case(ListSnapshots, round(vec![snap("s", "v")]), Internal, "next_token"),
        case(CreateVolumeGroupSnapshot, group("g", vec![snap("a", "v"), snap("b", "w")]), Good, ""),
        case(CreateVolumeGroupSnapshot, late_pair, Unavailable, "group_snapshot.creation_time"),
        case(CreateVolumeGroupSnapshot, group("g", vec![snap("a", "v")]), AlreadyExists, "source_volume_ids"),
        case(GetVolumeGroupSnapshot, group("h", vec![snap("s", "v")]), Internal, "group_snapshot_id is h"),
        case(GetVolumeGroupSnapshot, group("g", vec![]), Internal, "group_snapshot.snapshots is empty"),
        case(GetVolumeGroupSnapshot, group("g", vec![foreign]), Internal, "belongs to group other"),
        case(GetVolumeGroupSnapshot, group("g", vec![starting]), Internal, "a snapshot of it is not ready"),
        case(GetVolumeGroupSnapshot, late_group, Internal, "group_snapshot.creation_time"),
        case(GetMetadataAllocated, ranges(vec![]), Good, ""),
        case(
            GetMetadataDelta,
            BlockMetadata::new(BlockMetadataType::VariableLength, u64::MAX, tokio_stream::empty()),
            Internal,
            "volume_capacity_bytes",
        ),
        case(
            GetMetadataDelta,
            ranges(vec![Ok(BlockRange::new(7, 0))]),
            Internal,
            "block_metadata at 7: its size is 0",
        ),
    ]
}

fn health_and_node_cases() -> Vec<Case> {
    use Code::{Internal, Ok as Good, OutOfRange, Unavailable};
    use Rpc::*;
    let info = || NodeInfo::new("n").unwrap();
    let usage = Usage::new(u64::MAX, 0, 0);
    vec![
        case(ControllerGetVolumeHealth, health("v", &["DiskSlow", "PoolFull"]), Good, ""),
        case(ControllerGetVolumeHealth, health("w", &[]), Internal, "volume_health.volume_id is w"),
        case(
            ControllerGetVolumeHealth,
            health("v", &["DiskSlow"; 2]),
            Internal,
            "Degraded and DiskSlow are there twice",
        ),
        case(ControllerGetVolumeHealth, health("v", &["disk slow"]), Internal, "is not one CamelCase word"),
        case(
            ControllerListVolumeHealth,
            page(vec![health("v", &[])]),
            Internal,
            "nothing is wrong with volume v",
        ),
        case(ControllerListVolumeHealth, page(vec![unwell(id("v")); 3]), Internal, "max_entries"),
        case(ControllerListVolumeHealth, round(vec![unwell(id("v"))]), Internal, "next_token"),
        case(NodeGetVolumeHealth, health("w", &[]), Internal, "volume_health.volume_id is w"),
        case(NodeGetStorageHealth, storage(&["LinkDown", "LinkSlow"]), Good, ""),
        case(
            NodeGetStorageHealth,
            storage(&["LinkDown"; 2]),
            Internal,
            "there twice for one volume_capability",
        ),
        case(NodeGetStorageHealth, storage(&["link-down"]), Internal, "is not one CamelCase word"),
        case(NodeGetInfo, info().max_volumes(u64::MAX), Internal, "max_volumes_per_node"),
        case(NodeGetInfo, info().at(Topology::new("zone", "")), Internal, "accessible_topology: value"),
        // The first prefix that an answer contains is required in all later answers.
        case(NodeGetInfo, info().at(in_zone("one.example.org/zone")), Good, ""),
        case(NodeGetInfo, info().at(in_zone("two.example.org/zone")), Internal, "all must have one"),
        case(
            CreateVolume,
            vol("v").accessible_from(in_zone("two.example.org/zone")),
            Unavailable,
            "all must have one",
        ),
        case(NodeGetVolumeStats, VolumeStats::default(), Internal, "neither bytes nor inodes"),
        case(NodeGetVolumeStats, VolumeStats::from_usage(usage, None), Internal, "usage.total"),
        case(NodeExpandVolume, u64::MAX, Internal, "capacity_bytes"),
        case(NodeExpandVolume, 50_u64, Good, ""),
        case(NodeExpandVolume, 0_u64, Good, ""),
        case(NodeExpandVolume, 4_u64, Unavailable, "capacity_range.required_bytes: the volume has only 4"),
        case(NodeExpandVolume, 51_u64, OutOfRange, "capacity_range.limit_bytes: the volume already has 51"),
    ]
}

async fn check(served: &Served, driver: &TestDriver, log: &Log, cases: Vec<Case>) {
    for Case(rpc, answer, due, says) in cases {
        *driver.next_answer.lock().unwrap() = Some(answer);
        log.take();
        let (_, request) = samples().into_iter().find(|(sample, _)| *sample == rpc).unwrap();
        let answer = rpcs::call(&served.client, rpc, request.encode_to_vec()).await;
        let (code, message) = match &answer {
            Ok(_) => (Code::Ok, ""),
            Err(status) => (status.code(), status.message()),
        };
        assert_eq!(code, due, "{rpc}, {says:?}: {message}");
        assert!(message.contains(says), "{rpc}: {says:?} is due, not {message:?}");
        if due == Code::Internal || message.contains("breaks the spec") {
            let log = log.take();
            let line = log.lines().find(|line| line.starts_with("ERROR"));
            assert!(
                line.is_some_and(|line| line.contains(says)),
                "{rpc}: {says:?} is not in the log: {line:?}"
            );
        }
    }
}

// spec: size-limits.string, size-limits.map, fields.not-negative, topology.one-prefix
// spec: create-volume.capacity-range, create-volume.source-told
// spec: create-volume.topology-met, create-volume.topology-needs-capability, create-volume.answers-an-id
// spec: list-volumes.max-entries, controller-get-volume.current, get-capacity.not-negative
// spec: controller-expand-volume.grows, controller-expand-volume.out-of-range
// spec: node-expand-volume.grows, node-expand-volume.out-of-range
// spec: controller-get-volume-health.current, controller-list-volume-health.only-unwell
// spec: controller-list-volume-health.pages, volume-health.reason, volume-health.unique
// spec: create-snapshot.other-source, create-snapshot.answer-complete
// spec: create-snapshot.topology-needs-capability, list-snapshots.filters, list-snapshots.max-entries
// spec: get-snapshot.current, create-volume-group-snapshot.differs-is-already-exists
// spec: create-volume-group-snapshot.answer-complete, create-volume-group-snapshot.members-name-it
// spec: create-volume-group-snapshot.ready-when-all-are, get-volume-group-snapshot.current
// spec: node-get-volume-stats.usage, node-get-info.max-volumes, node-get-info.topology-needs-capability
// spec: node-get-volume-health.current, node-get-storage-health.unique
#[tokio::test]
async fn answers_keep_the_spec_or_are_internal() {
    let (log, _guard) = Log::of_thread();
    let driver = Arc::new(TestDriver::default());
    let served = Served::start(whole_plugin(&driver)).await;
    check(&served, &driver, &log, volume_cases()).await;
    check(&served, &driver, &log, snapshot_cases()).await;
    check(&served, &driver, &log, health_and_node_cases()).await;

    let bare = Plugin::new("test.csi.example.org", "1")
        .controller(ControllerService::new(driver.clone()).get_volume().get_snapshot())
        .node(NodeService::new(driver.clone()));
    let served = Served::start(bare).await;
    let mut placed = snap("s", "v");
    placed.accessible_topology = vec![in_zone("zone")];
    let not_offered = vec![
        case(
            Rpc::ControllerGetVolume,
            listed(vol("v").accessible_from(in_zone("zone"))),
            Code::Internal,
            "volume.accessible_topology is set, but VOLUME_ACCESSIBILITY_CONSTRAINTS is not offered",
        ),
        case(
            Rpc::NodeGetInfo,
            NodeInfo::new("n").unwrap().at(in_zone("zone")),
            Code::Internal,
            "accessible_topology is set, but VOLUME_ACCESSIBILITY_CONSTRAINTS is not offered",
        ),
        case(
            Rpc::GetSnapshot,
            placed,
            Code::Internal,
            "snapshot.accessible_topology is set, but SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is not offered",
        ),
    ];
    check(&served, &driver, &log, not_offered).await;

    let older = Served::start(whole_plugin(&driver).spec(Spec::V1_12)).await;
    let mut placed = snap("s", "v");
    placed.accessible_topology = vec![in_zone("zone")];
    *driver.next_answer.lock().unwrap() = Some(Box::new(placed));
    let request = v1::GetSnapshotRequest { snapshot_id: "s".into(), ..Default::default() };
    let told = older.call(request).await.unwrap();
    assert_eq!(told.snapshot.unwrap().accessible_topology, [], "v1.12.0 has no such field");
}
