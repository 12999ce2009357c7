//! Another client makes many calls while the kit runs, and the driver is killed at random moments.
//! Needs root.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use csi_core::client::{Client, VolumeUse};
use csi_proto::v1;
use tokio::task::JoinSet;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, in_private, rounds, with_driver};

/// Calls at the same time.
const CALLS: usize = 1000;
/// Volume names that the calls use: ten calls at the same time use each name.
const NAMES: usize = 100;

fn name_of(at: usize) -> String {
    format!("hammer-{}", at % NAMES)
}

/// Makes a thousand calls at the same time, repeatedly: create a volume, list a page, delete the volume. The
/// pause between two waves is three times as long as a wave, so that other clients make progress on a small machine too.
async fn hammer(client: Client) {
    loop {
        let mut calls = JoinSet::new();
        let start = Instant::now();
        for at in 0..CALLS {
            let client = client.clone();
            calls.spawn(async move {
                let answer = client.call(wanted(&name_of(at), Some(""), MIB)).await;
                let page = v1::ListVolumesRequest { max_entries: 10, ..Default::default() };
                let _ = client.call(page).await;
                if let Some(volume) = answer.ok().and_then(|answer| answer.volume) {
                    let _ = client.call(delete_volume(volume.volume_id)).await;
                }
            });
        }
        while calls.join_next().await.is_some() {}
        tokio::time::sleep(3 * start.elapsed()).await;
    }
}

/// Deletes the volumes that `hammer` left, by name. If a name existed twice, one of the two volumes
/// would remain.
async fn forget_hammer(client: &Client) {
    for at in 0..NAMES {
        let made = client.call(wanted(&name_of(at), Some(""), MIB)).await.unwrap();
        client.call(delete_volume(made.volume.unwrap().volume_id)).await.unwrap();
    }
}

/// The record of a volume on the disk, for the message of a failure.
fn record(run: &Run, id: &str) -> String {
    let path = run.stored("volumes", id, "record.json");
    format!("{id}: {}", std::fs::read_to_string(path).unwrap_or_else(|error| error.to_string()))
}

// spec: concurrency.simultaneous-calls
#[test]
fn the_kit_passes_while_another_client_hammers() {
    with_driver(&[], async |run, _driver| {
        let hammering = tokio::spawn(hammer(run.client()));
        let report = run.kit().run().await.unwrap();
        hammering.abort();
        let _ = hammering.await;
        println!("{}", report.summary());
        report.assert_ok();
    });
}

/// The groups of tests that the kit runs when the driver is killed, one per round.
const AT: [&str; 7] =
    ["create-volume", "node-publish", "snapshots", "node-use", "groups", "controller-publish", "sequences"];

fn kind_of(round: u32) -> &'static str {
    if round.is_multiple_of(2) { "image" } else { "directory" }
}

fn inline_of(run: &Run, round: u32) -> v1::NodePublishVolumeRequest {
    let kind = kind_of(round);
    inline(run, "inline", kind, if kind == "image" { "ext4" } else { "" })
}

/// Unpublishes, as the kubelet does for a pod that was deleted.
async fn end_inline(run: &Run, request: &v1::NodePublishVolumeRequest) {
    run.call(v1::NodeUnpublishVolumeRequest::from(request)).await.unwrap();
    assert!(!run.of("data").join("inline/node-1/inline").exists());
}

/// Changes a volume's description several times; the last value is "ends" with this round's number.
async fn change(client: Client, volume_id: String, round: u32) -> Result<(), tonic::Status> {
    for step in ["begins", "goes on", "ends"] {
        let description = format!("{step}, round {round}");
        client.call(modification(&volume_id, &[("description", &description)])).await?;
    }
    Ok(())
}

fn description(run: &Run, id: &str) -> String {
    let path = run.stored("volumes", id, "record.json");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    record["record"]["mutable"]["description"].as_str().unwrap_or_default().to_owned()
}

/// A driver that is killed repeatedly, and the expected content of its disk.
struct Kills<'a> {
    run: &'a Run,
    client: Client,
    /// Volumes and snapshots that nobody deletes.
    kept: BTreeSet<String>,
    cut: BTreeSet<String>,
    /// The volume that is changed in every round, and its description after the last kill.
    changed: String,
    description: String,
    dice: u32,
}

/// The answers that arrived before the kill.
struct Answered {
    volume: Option<v1::Volume>,
    was_changed: bool,
}

impl<'a> Kills<'a> {
    async fn new(run: &'a Run) -> Self {
        let driver = run.start(&[]).await;
        let changed = Life::new(run, wanted("changed", None, MIB)).await.unwrap().id;
        drop(driver);
        Self {
            run,
            client: run.client(),
            kept: BTreeSet::from([changed.clone()]),
            cut: BTreeSet::new(),
            changed,
            description: String::new(),
            dice: 0x9e37_79b9,
        }
    }

    /// Two rounds use the same name, which must be the same volume: an answered create is kept and
    /// not repeated.
    fn wanted(round: u32) -> v1::CreateVolumeRequest {
        let kind = kind_of(round / 2);
        let mut request = wanted(&format!("kept-{}", round / 2), Some(""), MIB);
        request.parameters.insert("kind".to_owned(), kind.to_owned());
        request
    }

    /// Starts the driver, lets it do all kinds of work, and kills it.
    async fn kill(&mut self, round: u32) -> Answered {
        let run = self.run;
        let client = &self.client;
        let mut driver = run.start(&[]).await;
        let making = tokio::spawn({
            let client = client.clone();
            let request = Self::wanted(round);
            async move { client.call(request).await }
        });
        let publishing = tokio::spawn({
            let client = client.clone();
            let request = inline_of(run, round);
            async move { client.call(request).await }
        });
        let changing = tokio::spawn(change(client.clone(), self.changed.clone(), round));
        // On its own connection, which is dropped with it, so that no unsent call reaches a later driver.
        let hammering = tokio::spawn(hammer(run.client()));
        let kit = tokio::spawn(run.kit().only(AT[round as usize % AT.len()]).run());
        self.dice = self.dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        tokio::time::sleep(Duration::from_millis(u64::from(self.dice >> 16) % 2000)).await;
        driver.kill();
        for task in [hammering.abort_handle(), kit.abort_handle()] {
            task.abort();
        }
        let _ = (hammering.await, kit.await, publishing.await);
        Answered {
            volume: making.await.unwrap().ok().and_then(|answer| answer.volume),
            was_changed: changing.await.unwrap().is_ok(),
        }
    }

    /// Starts the driver again. Checks that everything that was answered exists, and that a repeated
    /// request creates nothing twice.
    async fn look(&mut self, round: u32, answered: Answered) {
        let _driver = self.run.start(&[]).await;
        end_inline(self.run, &inline_of(self.run, round)).await;
        let found = description(self.run, &self.changed);
        let this_round = format!("round {round}");
        let is_due = if answered.was_changed {
            found == format!("ends, {this_round}")
        } else {
            found == self.description || found.ends_with(&this_round)
        };
        assert!(is_due, "{this_round}: {found:?} after {:?}", self.description);
        self.description = found;
        let again = self.client.call(Self::wanted(round)).await.unwrap();
        let again = again.volume.unwrap().volume_id;
        if let Some(volume) = answered.volume {
            assert_eq!(volume.volume_id, again, "{this_round}: a name is one volume");
        }
        let volume = VolumeUse::new(&again, capability(None, 1));
        let snapshot = self.client.call(volume.create_snapshot(format!("kept-{}", round / 2))).await.unwrap();
        self.kept.insert(again);
        self.cut.insert(snapshot.snapshot.unwrap().snapshot_id);
        if self.run.of("journal").exists() {
            let left = self.run.kit().clean_up().await.unwrap();
            assert!(left.is_empty(), "{this_round}: {left:?}");
        }
        forget_hammer(&self.client).await;
        self.nothing_else_is_there(&this_round).await;
    }

    async fn nothing_else_is_there(&self, round: &str) {
        self.run.assert_clean();
        let now = volumes(&self.client).await;
        let now_cut = snapshots(&self.client).await;
        let distinct: BTreeSet<String> = now.iter().cloned().collect();
        let names: Vec<_> =
            distinct.symmetric_difference(&self.kept).map(|id| record(self.run, id)).collect();
        assert!(names.is_empty(), "{round}: lost, or left: {names:#?}");
        assert_eq!(now.len(), self.kept.len(), "{round}: none is doubled");
        assert_eq!(now_cut.iter().cloned().collect::<BTreeSet<_>>(), self.cut, "{round}: snapshots");
        for store in ["volumes", "snapshots", "groups", "inline/node-1"] {
            for half in [".new", ".old"] {
                let left = std::fs::read_dir(self.run.of("data").join(store).join(half)).unwrap().count();
                assert_eq!(left, 0, "{round}: {store}/{half}");
            }
        }
    }
}

/// `CSI_TEST_ROUNDS` sets the number of rounds; 200 is the full size.
// spec: create-volume.same-name-same-volume, create-volume.one-volume-a-name
// spec: timeouts.retry-continues
#[test]
fn killed_at_random_moments_it_loses_and_doubles_nothing() {
    in_private(async || {
        let run = Run::on_tmpfs(64 << 30);
        let rounds = rounds(12);
        let mut kills = Kills::new(&run).await;
        let mut published = 0;
        let mut changed = 0;
        for round in 0..rounds {
            let answered = kills.kill(round).await;
            published += u32::from(run.of("data").join("inline/node-1/inline").exists());
            changed += u32::from(answered.was_changed);
            kills.look(round, answered).await;
        }
        println!(
            "{rounds} kills, {} volumes and {} snapshots kept, none lost, none doubled; {changed} times a volume was \
             changed, {published} times there was an inline volume",
            kills.kept.len(),
            kills.cut.len()
        );
    });
}
