//! The driver hammered by another client while the kit is at it, and killed at random moments. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use csi_core::client::Client;
use csi_proto::v1;
use support::life::Life;
use support::{MIB, Run, in_private, rounds, wanted};
use tokio::task::JoinSet;

/// Calls at once.
const CALLS: usize = 1000;
/// Names that they are about, each wanted by ten calls at once.
const NAMES: usize = 100;

fn name_of(at: usize) -> String {
    format!("hammer-{}", at % NAMES)
}

/// A thousand calls at once, again and again: make a volume, page through the list, delete it. Between two waves is as long a
/// rest, so that others get their turn on a small machine too.
async fn hammer(client: Client) {
    loop {
        let (mut calls, start) = (JoinSet::new(), Instant::now());
        for at in 0..CALLS {
            let client = client.clone();
            calls.spawn(async move {
                let answer = client.controller().create_volume(wanted(&name_of(at), Some(""), MIB)).await;
                let page = v1::ListVolumesRequest { max_entries: 10, ..Default::default() };
                let _ = client.controller().list_volumes(page).await;
                if let Some(volume) = answer.ok().and_then(|answer| answer.into_inner().volume) {
                    let delete =
                        v1::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() };
                    let _ = client.controller().delete_volume(delete).await;
                }
            });
        }
        while calls.join_next().await.is_some() {}
        tokio::time::sleep(start.elapsed()).await;
    }
}

/// What the hammer left is deleted by its names: had one been made twice, one of the two would stay.
async fn forget_hammer(client: &Client) {
    for at in 0..NAMES {
        let made = client.controller().create_volume(wanted(&name_of(at), Some(""), MIB)).await.unwrap();
        let volume_id = made.into_inner().volume.unwrap().volume_id;
        let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
        client.controller().delete_volume(delete).await.unwrap();
    }
}

async fn listed(client: &Client) -> Vec<String> {
    let list =
        client.controller().list_volumes(v1::ListVolumesRequest::default()).await.unwrap().into_inner();
    list.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)).collect()
}

/// What is on the disk of a volume, for a failure's words.
fn record(run: &Run, id: &str) -> String {
    let path = run.of("data").join("volumes").join(id).join("record.json");
    format!("{id}: {}", std::fs::read_to_string(path).unwrap_or_else(|error| error.to_string()))
}

async fn snapshots(client: &Client) -> Vec<String> {
    let list =
        client.controller().list_snapshots(v1::ListSnapshotsRequest::default()).await.unwrap().into_inner();
    list.entries.into_iter().filter_map(|entry| Some(entry.snapshot?.snapshot_id)).collect()
}

// spec: concurrency.simultaneous-calls
#[test]
fn the_kit_passes_while_another_client_hammers() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let hammering = tokio::spawn(hammer(run.client()));
        let report = run.kit().run().await.unwrap();
        hammering.abort();
        let _ = hammering.await;
        println!("{}", report.summary());
        report.assert_ok();
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}

/// What the kit is at when the driver is killed, one after the other.
const AT: [&str; 7] =
    ["create-volume", "node-publish", "snapshots", "node-use", "groups", "controller-publish", "sequences"];

/// `CSI_TEST_ROUNDS` says how often; 200 is the full size.
// spec: create-volume.same-name-same-volume, create-volume.one-volume-a-name
// spec: timeouts.retry-continues
#[test]
fn killed_at_random_moments_it_loses_and_doubles_nothing() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let (mut kept, mut cut) = (BTreeSet::new(), BTreeSet::new());
        let mut moment = 0x9e37_79b9_u32;
        let rounds = rounds(12);
        for round in 0..rounds {
            let mut driver = run.start(&[]).await;
            let client = run.client();
            // The same name again after the kill is the same volume: what was answered is kept, nothing is doubled.
            let request = wanted(&format!("kept-{}", round / 2), Some(""), MIB);
            let making = tokio::spawn({
                let (client, request) = (client.clone(), request.clone());
                async move { client.controller().create_volume(request).await }
            });
            // With a connection of its own, which goes with it: what it still had to send reaches no later driver.
            let hammering = tokio::spawn(hammer(run.client()));
            let kit = tokio::spawn(run.kit().only(AT[round as usize % AT.len()]).run());
            moment = moment.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            tokio::time::sleep(Duration::from_millis(u64::from(moment >> 16) % 2000)).await;
            driver.kill().await.unwrap();
            for task in [hammering.abort_handle(), kit.abort_handle()] {
                task.abort();
            }
            let _ = (hammering.await, kit.await);
            let answered = making.await.unwrap().ok().and_then(|answer| answer.into_inner().volume);

            let mut driver = run.start(&[]).await;
            let again =
                client.controller().create_volume(request).await.unwrap().into_inner().volume.unwrap();
            if let Some(volume) = answered {
                assert_eq!(volume.volume_id, again.volume_id, "round {round}: a name is one volume");
            }
            let snapshot = v1::CreateSnapshotRequest {
                source_volume_id: again.volume_id.clone(),
                name: format!("kept-{}", round / 2),
                ..Default::default()
            };
            let snapshot =
                client.controller().create_snapshot(snapshot).await.unwrap().into_inner().snapshot.unwrap();
            kept.insert(again.volume_id);
            cut.insert(snapshot.snapshot_id);
            if run.of("journal").exists() {
                let left = run.kit().clean_up().await.unwrap();
                assert!(left.is_empty(), "round {round}: {left:?}");
            }
            forget_hammer(&client).await;
            run.assert_clean();
            let (now, now_cut) = (listed(&client).await, snapshots(&client).await);
            let distinct: BTreeSet<String> = now.iter().cloned().collect();
            let names: Vec<_> = distinct.symmetric_difference(&kept).map(|id| record(&run, id)).collect();
            assert!(names.is_empty(), "round {round}: lost, or left: {names:#?}");
            assert_eq!(now.len(), kept.len(), "round {round}: none is doubled");
            assert_eq!(now_cut.iter().cloned().collect::<BTreeSet<_>>(), cut, "round {round}: snapshots");
            for store in ["volumes", "snapshots", "groups"] {
                for half in [".new", ".old"] {
                    let left = std::fs::read_dir(run.of("data").join(store).join(half)).unwrap().count();
                    assert_eq!(left, 0, "round {round}: {store}/{half}");
                }
            }
            driver.kill().await.unwrap();
        }
        println!(
            "{rounds} kills, {} volumes and {} snapshots kept, none lost, none doubled",
            kept.len(),
            cut.len()
        );
    });
}

/// Each kind of half that a kill can leave, made by hand.
#[test]
fn what_was_half_done_is_finished_or_taken_back() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let mut driver = run.start(&[]).await;
        let mut mounted = Life::new(&run, wanted("mounted", Some("xfs"), 320 * MIB)).await.unwrap();
        let target = mounted.start().await.unwrap();
        let growing = Life::new(&run, wanted("growing", None, 8 * MIB)).await.unwrap();
        let mut members = Vec::new();
        for name in ["half", "whole"] {
            let request = v1::CreateVolumeGroupSnapshotRequest {
                name: name.to_owned(),
                source_volume_ids: vec![mounted.id.clone(), growing.id.clone()],
                ..Default::default()
            };
            let made = run.client().group_controller().create_volume_group_snapshot(request).await.unwrap();
            members.push(made.into_inner().group_snapshot.unwrap());
        }
        driver.kill().await.unwrap();

        // Killed before the group's record, with a filesystem frozen; and between an image and its record.
        std::fs::remove_dir_all(run.of("data").join("groups").join(&members[0].group_snapshot_id)).unwrap();
        let frozen = std::process::Command::new("fsfreeze").arg("--freeze").arg(&target).status().unwrap();
        assert!(frozen.success());
        let image = run.of("data").join("volumes").join(&growing.id).join("image");
        std::fs::File::options().write(true).open(image).unwrap().set_len(16 * MIB).unwrap();

        let mut driver = run.start(&[]).await;
        let write = tokio::task::spawn_blocking(move || std::fs::write(target.join("file"), "x"));
        tokio::time::timeout(Duration::from_secs(20), write).await.expect("it is thawed").unwrap().unwrap();
        let due: BTreeSet<_> = members[1].snapshots.iter().map(|one| one.snapshot_id.clone()).collect();
        assert_eq!(snapshots(&run.client()).await.into_iter().collect::<BTreeSet<_>>(), due);
        let request = v1::ControllerGetVolumeRequest { volume_id: growing.id.clone() };
        let found = run.client().controller().controller_get_volume(request).await.unwrap().into_inner();
        assert_eq!(found.volume.unwrap().capacity_bytes as u64, 16 * MIB);
        mounted.end().await;
        run.assert_clean();
        driver.kill().await.unwrap();
    });
}
