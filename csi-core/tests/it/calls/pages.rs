//! Answers stay below the length that gRPC's callers accept, whatever the callers ask for and however long ids, maps,
//! node lists and topologies are. The client of this test has the default limit, 4 MiB.

use std::sync::Arc;
use std::time::SystemTime;

use csi_core::controller::{Pager, VolumeListing};
use csi_core::types::{
    NodeId, Snapshot, SnapshotId, Topology, VolumeGroupSnapshot, VolumeHealth, VolumeHealthEntry,
    VolumeHealthStatus,
};
use csi_core::*;
use csi_proto::v1;
use prost::Message as _;
use tonic::Code;

use crate::common::{Served, refused};
use crate::driver::{TestDriver, page, whole_plugin};

/// Each entry has about 20 KiB, so that all of them have 10 MiB.
const ENTRIES: usize = 500;

/// A name with 128 bytes. The numbers are sorted as text.
fn name(number: usize) -> String {
    format!("{number:04}-{}", "é".repeat(61)) + "x"
}

fn volume(number: usize) -> Result<Volume> {
    let mut volume = Volume::new(VolumeId::new(name(number))?, 1 << 30).context("key", "c".repeat(4000));
    volume.accessible_topology = (0..40).map(topology).collect();
    Ok(volume)
}

fn topology(number: usize) -> Topology {
    Topology::new("long.csi.example.org/rack", format!("r{number}"))
        .and("long.csi.example.org/room", "a".repeat(63))
}

fn nodes() -> Result<Vec<NodeId>> {
    (0..50).map(|number| NodeId::new(format!("{number:03}{}", "n".repeat(190)))).collect()
}

fn snapshot(number: usize) -> Result<Snapshot> {
    let mut snapshot =
        Snapshot::new(SnapshotId::new(name(number))?, VolumeId::new(name(0))?, SystemTime::UNIX_EPOCH);
    snapshot.accessible_topology = (0..170).map(topology).collect();
    Ok(snapshot)
}

fn unwell() -> impl Iterator<Item = VolumeHealthEntry> {
    (0..20).map(|number| {
        VolumeHealthEntry::new(VolumeHealthStatus::Degraded, format!("Reason{number}"), "m".repeat(1000))
    })
}

fn numbers() -> impl Iterator<Item = (String, usize)> {
    (0..ENTRIES).map(|number| (name(number), number))
}

/// Reads all pages, and checks that each entry is in one of them and that no page is too long.
macro_rules! read_all {
    ($served:expr, $request:ident, $max_entries:expr, $id:expr) => {{
        let mut ids = Vec::new();
        let mut pages = 0;
        let mut request = v1::$request::default();
        request.max_entries = $max_entries;
        loop {
            let page = $served.call(request.clone()).await.unwrap();
            assert!(page.encoded_len() <= 4 << 20, "{}", page.encoded_len());
            assert!(!page.entries.is_empty());
            ids.extend(page.entries.into_iter().map($id));
            pages += 1;
            request.starting_token = page.next_token;
            if request.starting_token.is_empty() {
                break;
            }
        }
        assert_eq!(ids, (0..ENTRIES).map(name).collect::<Vec<_>>());
        assert!(pages < 9, "the pages are as long as they can be: {pages}");
    }};
}

async fn served() -> Served {
    let driver = Arc::new(TestDriver::default());
    driver.list_volumes.answers(|request| {
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        pager.page(numbers())?.try_map(|number| Ok(VolumeListing::new(volume(number)?, nodes()?)))
    });
    driver.list_snapshots.answers(|request| {
        // A driver without a pager, whose page can't be cut.
        if request.source_volume_id.is_some() {
            return Ok(page((0..ENTRIES).map(snapshot).collect::<Result<Vec<_>>>()?));
        }
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        pager.page(numbers())?.try_map(snapshot)
    });
    driver.controller_list_volume_health.answers(|request| {
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        pager.page(numbers())?.try_map(|number| Ok(VolumeHealth::new(VolumeId::new(name(number))?, unwell())))
    });
    driver.create_volume_group_snapshot.answers(|_| unreachable!("the group would be too large"));
    driver.get_volume_group_snapshot.answers(|request| {
        let members = (0..ENTRIES).map(snapshot).collect::<Result<_>>()?;
        Ok(VolumeGroupSnapshot::new(request.group_snapshot_id, members, SystemTime::UNIX_EPOCH))
    });
    Served::start(whole_plugin(&driver)).await
}

#[tokio::test]
async fn each_page_is_cut_where_it_gets_too_long_and_nothing_is_lost() {
    let served = served().await;
    for max_entries in [0, i32::MAX] {
        read_all!(served, ListVolumesRequest, max_entries, |entry| entry.volume.unwrap().volume_id);
        read_all!(served, ListSnapshotsRequest, max_entries, |entry| entry.snapshot.unwrap().snapshot_id);
        read_all!(served, ControllerListVolumeHealthRequest, max_entries, |entry| entry.volume_id);
    }
}

/// What can't be cut is an error that names the cause, and not a message that the caller's library refuses.
#[tokio::test]
async fn an_answer_that_cannot_be_cut_is_refused_by_name() {
    let served = served().await;
    let request = v1::ListSnapshotsRequest { source_volume_id: name(0), ..Default::default() };
    let status = refused(served.call(request).await, Code::Internal);
    assert!(status.message().contains("Pager"), "{status}");

    let get = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: "g".into(),
        snapshot_ids: (0..ENTRIES).map(name).collect(),
        ..Default::default()
    };
    let status = refused(served.call(get).await, Code::Internal);
    assert!(status.message().contains("callers accept"), "{status}");
    let create = v1::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: (0..9999).map(name).collect(),
        ..Default::default()
    };
    let status = refused(served.call(create).await, Code::ResourceExhausted);
    assert!(status.message().starts_with("source_volume_ids"), "{status}");
}
