//! What a start repairs, and what it leaves alone. Needs root.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::Duration;

use csi_core::client::Client;
use csi_proto::v1;
use test_support::driver::Signal;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, takes_writes, with_driver, with_driver_on};

async fn group_deleted(client: &Client, group: &v1::VolumeGroupSnapshot) -> Result<(), tonic::Status> {
    let request = v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect(),
        ..Default::default()
    };
    client.call(request).await.map(drop)
}

/// A disk that fails for a moment, or records of another version, do not make anything disappear.
#[test]
fn what_can_not_be_read_at_a_start_is_not_lost() {
    with_driver(&[], async |run, mut driver| {
        let one = Life::new(run, wanted("one", None, MIB)).await.unwrap();
        let other = Life::new(run, wanted("other", None, MIB)).await.unwrap();
        let made = run.call(group("group", &[&one.id, &other.id])).await.unwrap();
        let group = made.group_snapshot.unwrap();
        let due: BTreeSet<_> = snapshots(&run.client()).await.into_iter().collect();
        assert_eq!(due.len(), 2);
        driver.kill();

        let records = [("groups", &group.group_snapshot_id), ("volumes", &one.id)]
            .map(|(store, id)| run.stored(store, id, "record.json"));
        let mut kept = Vec::new();
        for record in &records {
            kept.push(std::fs::read(record).unwrap());
            std::fs::write(record, "{}").unwrap();
        }
        driver.start_again().await;
        assert_eq!(snapshots(&run.client()).await.into_iter().collect::<BTreeSet<_>>(), due, "its members");
        // It is not reported as deleted either.
        for refused in [group_deleted(&run.client(), &group).await, one.delete().await] {
            assert_eq!(refused.unwrap_err().code(), tonic::Code::Internal);
        }
        driver.kill();

        for (record, words) in records.iter().zip(&kept) {
            std::fs::write(record, words).unwrap();
        }
        driver.start_again().await;
        assert_eq!(snapshots(&run.client()).await.into_iter().collect::<BTreeSet<_>>(), due);
        group_deleted(&run.client(), &group).await.unwrap();
        assert!(snapshots(&run.client()).await.is_empty());
        for life in [one, other] {
            life.delete().await.unwrap();
        }
    });
}

/// Each incomplete state that a kill can leave, made by hand.
#[test]
fn what_was_half_done_is_finished_or_taken_back() {
    with_driver(&[], async |run, mut driver| {
        let mut mounted = Life::new(run, wanted("mounted", Some("xfs"), 320 * MIB)).await.unwrap();
        let target = mounted.start().await.unwrap();
        let growing = Life::new(run, wanted("growing", None, 8 * MIB)).await.unwrap();
        let mut members = Vec::new();
        for name in ["half", "whole"] {
            let made = run.call(group(name, &[&mounted.id, &growing.id])).await.unwrap();
            members.push(made.group_snapshot.unwrap());
        }
        driver.kill();

        // States after a kill: before the record of the group was written, with a frozen filesystem; and
        // between an image and its record.
        std::fs::remove_dir_all(run.of("data").join("groups").join(&members[0].group_snapshot_id)).unwrap();
        let frozen = std::process::Command::new("fsfreeze").arg("--freeze").arg(&target).status().unwrap();
        assert!(frozen.success());
        let image = run.stored("volumes", &growing.id, "image");
        std::fs::File::options().write(true).open(image).unwrap().set_len(16 * MIB).unwrap();

        driver.start_again().await;
        takes_writes(&target).await;
        let due: BTreeSet<_> = members[1].snapshots.iter().map(|one| one.snapshot_id.clone()).collect();
        assert_eq!(snapshots(&run.client()).await.into_iter().collect::<BTreeSet<_>>(), due);
        let request = v1::ControllerGetVolumeRequest { volume_id: growing.id.clone() };
        let found = run.call(request).await.unwrap();
        assert_eq!(found.volume.unwrap().capacity_bytes as u64, 16 * MIB);
        mounted.end().await;
    });
}

/// A frozen filesystem. The process that froze it thaws it when this value is dropped or when the test's
/// process ends.
struct Frozen(std::process::Child);

impl Frozen {
    fn new(place: &std::path::Path) -> Self {
        use std::io::Read as _;
        let script = r#"trap "" INT TERM HUP; fsfreeze --freeze "$1" && echo frozen && read -r _
                        fsfreeze --unfreeze "$1""#;
        let pipe = std::process::Stdio::piped;
        let mut process = std::process::Command::new("sh");
        let mut process =
            process.args(["-c", script, "sh"]).arg(place).stdin(pipe()).stdout(pipe()).spawn().unwrap();
        let mut said = [0; 7];
        process.stdout.as_mut().unwrap().read_exact(&mut said).expect("it is frozen");
        Self(process)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// How long an event can take on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A thread that waits for a frozen filesystem cannot be killed. The process ends with that thread after
/// the filesystem is thawed.
#[test]
fn a_stop_while_an_operation_is_frozen_takes_the_grace_and_loses_nothing() {
    with_driver_on(
        || Run::on_xfs(320 * MIB),
        &["--grace=1s"],
        async |run, mut driver| {
            let process = driver.id();
            let frozen = Frozen::new(&run.of("data"));
            let client = run.client();
            let creating =
                tokio::spawn(async move { client.call(wanted("volume", None, MIB)).await.map(drop) });
            until("a thread of the driver waits in the kernel", || {
                let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
                threads.flatten().any(|thread| {
                    let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D'))
                })
            })
            .await;
            run.call(v1::ProbeRequest {}).await.expect("others are answered meanwhile");

            let stopped = std::time::Instant::now();
            driver.signal(Signal::TERM);
            let socket = run.of("csi.sock");
            until("the driver has ended its service", || !socket.exists()).await;
            assert!(stopped.elapsed() >= Duration::from_secs(1), "{:?}", stopped.elapsed());
            creating.await.unwrap().expect_err("the call has no answer");
            drop(frozen);
            driver.ended().await;

            driver.start_again().await;
            let volume = Life::new(run, wanted("volume", None, MIB)).await.expect("a retry");
            assert_eq!(volumes(&run.client()).await.len(), 1);
            volume.delete().await.unwrap();
        },
    );
}
