//! The answers of the SnapshotMetadata service, compared byte by byte with the images. Needs root.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_core::client::Client;
use csi_proto::v1;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use nix::fcntl::{FallocateFlags, fallocate};
use tonic::transport::Endpoint;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, in_private, with_driver};

const BLOCK: usize = 4096;

/// Pseudo-random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The blocks that a stream lists, and the ranges that it used for them.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    blocks: BTreeSet<u64>,
    ranges: Vec<(i64, i64)>,
}

impl Told {
    fn of(ranges: Vec<v1::BlockMetadata>) -> Self {
        let ranges: Vec<(i64, i64)> =
            ranges.iter().map(|range| (range.byte_offset, range.size_bytes)).collect();
        let blocks =
            ranges.iter().flat_map(|(start, size)| (*start as u64..(start + size) as u64).step_by(BLOCK));
        Self { blocks: blocks.map(|at| at / BLOCK as u64).collect(), ranges }
    }
}

async fn allocated(client: &Client, snapshot_id: &str, starting_offset: i64) -> Told {
    let request = v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot_id.to_owned(),
        starting_offset,
        max_results: 7,
        ..Default::default()
    };
    let mut stream = client.snapshot_metadata().get_metadata_allocated(request).await.unwrap().into_inner();
    let mut ranges = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        assert!(part.block_metadata.len() <= 7);
        ranges.extend(part.block_metadata);
    }
    Told::of(ranges)
}

async fn delta(client: &Client, base: &str, target: &str, starting_offset: i64) -> Told {
    let request = v1::GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset,
        ..Default::default()
    };
    let mut stream = client.snapshot_metadata().get_metadata_delta(request).await.unwrap().into_inner();
    let mut ranges = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        ranges.extend(part.block_metadata);
    }
    Told::of(ranges)
}

fn image(run: &Run, snapshot: &str) -> Vec<u8> {
    fs::read(run.stored("snapshots", snapshot, "image")).unwrap()
}

/// The expected answer: blocks that differ in any byte. If the base is shorter, its missing bytes count
/// as zeros.
fn differing(base: &[u8], target: &[u8]) -> BTreeSet<u64> {
    let mut base = base.to_vec();
    base.resize(target.len(), 0);
    let blocks = base.chunks(BLOCK).zip(target.chunks(BLOCK)).zip(0..);
    blocks.filter(|((old, new), _)| old != new).map(|(_, block)| block).collect()
}

fn write_at_random(device: &Path, dice: &mut Dice, size: u64, times: u32) {
    let device = File::options().write(true).open(device).unwrap();
    for _ in 0..times {
        let length = 1 + dice.below(20_000);
        let bytes = vec![dice.below(256) as u8; length as usize];
        device.write_all_at(&bytes, dice.below(size - length)).unwrap();
    }
    device.sync_all().unwrap();
}

async fn snapshots_of_one_volume(life: &mut Life<'_>) -> Vec<String> {
    let mut dice = Dice(42);
    let mut cut = vec![life.snapshot("empty").await.unwrap()];
    let target: PathBuf = life.start().await.unwrap();
    for round in 0..3 {
        write_at_random(&target, &mut dice, 16 * MIB, 12);
        cut.push(life.snapshot(&format!("written-{round}")).await.unwrap());
    }
    // Writing the same bytes again is no change. Writing zeros over data is one.
    let device = File::options().write(true).open(&target).unwrap();
    device.write_all_at(&vec![0; 300_000], 5 * MIB).unwrap();
    // A hole where data was is also a change.
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&device, punch, 0, 4 << 20).unwrap();
    device.sync_all().unwrap();
    cut.push(life.snapshot("zeroed").await.unwrap());
    life.expand(20 * MIB).await.unwrap();
    life.expand_on_node(20 * MIB).await.unwrap();
    device.write_all_at(&[1; 5000], 19 * MIB).unwrap();
    device.sync_all().unwrap();
    cut.push(life.snapshot("grown").await.unwrap());
    cut
}

async fn told_is_what_is(run: Run, flags: &[&str]) {
    let _driver = run.start(flags).await;
    let client = run.client();
    let mut life = Life::new(&run, wanted("volume", None, 16 * MIB)).await.unwrap();
    let cut = snapshots_of_one_volume(&mut life).await;
    let is_fixed = flags.contains(&"--block-metadata=fixed");
    for (at, target) in cut.iter().enumerate() {
        let content = image(&run, target);
        let told = allocated(&client, target, 0).await;
        let with_data = differing(&[], &content);
        assert!(told.blocks.is_superset(&with_data), "{at}: data that is not told");
        assert!(
            told.blocks.len() <= with_data.len() * 2 + 80,
            "{at}: {} for {}",
            told.blocks.len(),
            with_data.len()
        );
        assert!(!is_fixed || told.ranges.iter().all(|(_, size)| *size == BLOCK as i64));
        for base in &cut[..at] {
            let told = delta(&client, base, target, 0).await;
            assert_eq!(
                told.blocks,
                differing(&image(&run, base), &content),
                "{at}: what changed, and nothing else"
            );
            // Continue from the middle, as a caller does whose stream was interrupted.
            if let Some((middle, _)) = told.ranges.get(told.ranges.len() / 2) {
                let rest = delta(&client, base, target, *middle).await;
                assert_eq!(rest.ranges, told.ranges[told.ranges.len() / 2..]);
            }
        }
    }
    assert!(allocated(&client, &cut[0], 0).await.ranges.is_empty(), "nothing was written yet");
    life.end().await;
    // The snapshots do not need the volume any more.
    assert_eq!(
        delta(&client, &cut[0], &cut[1], 0).await.blocks,
        differing(&image(&run, &cut[0]), &image(&run, &cut[1]))
    );
    let other = Life::new(&run, wanted("other", None, MIB)).await.unwrap();
    let foreign = other.snapshot("foreign").await.unwrap();
    let request = v1::GetMetadataDeltaRequest {
        base_snapshot_id: foreign,
        target_snapshot_id: cut[1].clone(),
        ..Default::default()
    };
    let refused = client.snapshot_metadata().get_metadata_delta(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
}

// spec: get-metadata-allocated.all-data, get-metadata-delta.all-changes
// spec: snapshot-metadata.fixed-length, snapshot-metadata.starting-offset
// spec: snapshot-metadata.max-results
#[test]
fn what_is_told_is_what_the_images_hold() {
    in_private(async || {
        told_is_what_is(Run::on_tmpfs(64 << 30), &[]).await;
        told_is_what_is(Run::on_tmpfs(64 << 30), &["--block-metadata=fixed"]).await;
        // On XFS snapshots share their blocks.
        told_is_what_is(Run::on_xfs(1 << 30), &[]).await;
    });
}

/// The number of streams that the driver serves at the same time.
const STREAMS: usize = 16;

#[test]
fn streams_that_nobody_reads_keep_nobody_from_calling() {
    // Enough ranges to fill the buffers between the driver and a reader.
    with_driver(&["--block-metadata=fixed"], async |run, _driver| {
        let life = Life::new(run, wanted("volume", None, 256 * MIB)).await.unwrap();
        let image = run.stored("volumes", &life.id, "image");
        let file = File::options().write(true).open(&image).unwrap();
        for at in 0..256 {
            file.write_all_at(&[7; MIB as usize], at * MIB).unwrap();
        }
        let snapshot_id = life.snapshot("full").await.unwrap();
        let stream = async || {
            let request = v1::GetMetadataAllocatedRequest {
                snapshot_id: snapshot_id.clone(),
                max_results: 1,
                ..Default::default()
            };
            // By default a client takes two megabytes before anybody reads: all that the driver sends.
            let socket = Endpoint::from_shared(format!("unix://{}", run.of("csi.sock").display())).unwrap();
            let channel = socket.initial_stream_window_size(1 << 16).connect().await.unwrap();
            SnapshotMetadataClient::new(channel).get_metadata_allocated(request).await
        };
        let mut stalled = Vec::new();
        for _ in 0..STREAMS {
            stalled.push(stream().await.unwrap().into_inner());
        }
        let refused = stream().await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
        run.call(v1::ProbeRequest {}).await.unwrap();
        stalled.clear();
        // The driver notices the closed stream at its next send.
        let end = Instant::now() + Duration::from_secs(120);
        while let Err(refused) = stream().await {
            assert!(Instant::now() < end, "{refused:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}
