//! The streams of the SnapshotMetadata service: the rules that the framework keeps, whatever the
//! driver yields.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use csi_core::snapshot_metadata::{BlockMetadata, BlockMetadataType, BlockRange};
use csi_core::*;
use csi_proto::v1;
use tokio_stream::{Stream, StreamExt};
use tonic::Code;

use crate::common::{Served, eventually};
use crate::driver::{TestDriver, ranges};

fn range(byte_offset: u64, size_bytes: u64) -> Result<BlockRange> {
    Ok(BlockRange::new(byte_offset, size_bytes))
}

fn metadata(ranges: impl Stream<Item = Result<BlockRange>> + Send + 'static) -> BlockMetadata {
    BlockMetadata::new(BlockMetadataType::VariableLength, 100, ranges)
}

/// What the snapshot of this name has. Counts what the endless stream yields.
fn allocated_in(snapshot: &str, yielded: &Arc<AtomicU32>) -> BlockMetadata {
    let yielded = Arc::clone(yielded);
    match snapshot {
        "fails" => ranges(vec![range(0, 10), Err(Error::Unavailable("a disk went away".into()))]),
        "disordered" => ranges(vec![range(10, 10), range(5, 1)]),
        "panics" => {
            metadata(tokio_stream::iter(0..2).map(|at| if at == 0 { range(0, 10) } else { panic!("so") }))
        }
        "endless" => {
            let forever = tokio_stream::iter(0..).map(move |at| {
                yielded.fetch_add(1, Ordering::SeqCst);
                range(at, 1)
            });
            BlockMetadata::new(BlockMetadataType::VariableLength, 1 << 40, forever)
        }
        "silent" => {
            let never = tokio_stream::pending::<()>()
                .map(move |()| range(u64::from(Arc::strong_count(&yielded) as u32), 1));
            metadata(never)
        }
        "panics at once" => panic!("at once"),
        _ => ranges(vec![range(0, 10), range(10, 10), range(40, 20), range(90, 10)]),
    }
}

async fn served(yielded: &Arc<AtomicU32>) -> Served {
    let driver = Arc::new(TestDriver::default());
    let yielded = Arc::clone(yielded);
    driver
        .get_metadata_allocated
        .answers(move |request| Ok(allocated_in(request.snapshot_id.as_str(), &yielded)));
    driver.get_metadata_delta.answers(|request| match request.base_snapshot_id.as_str() {
        "untracked" => Err(Error::NotPossible("changes are not tracked".into())),
        _ => Err(Error::SnapshotNotFound(request.base_snapshot_id)),
    });
    Served::start(Plugin::new("test.csi.example.org", "1").snapshot_metadata(driver)).await
}

/// The messages, as offsets and sizes, and how the stream ended.
async fn allocated(
    served: &Served,
    snapshot_id: &str,
    starting_offset: i64,
    max_results: i32,
) -> (Vec<Vec<(i64, i64)>>, Option<tonic::Status>) {
    let mut client = served.client.snapshot_metadata();
    let request = v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot_id.into(),
        starting_offset,
        max_results,
        ..Default::default()
    };
    let mut messages = match client.get_metadata_allocated(request).await {
        Ok(messages) => messages.into_inner(),
        Err(status) => return (vec![], Some(status)),
    };
    let mut read = vec![];
    loop {
        match messages.message().await {
            Ok(None) => return (read, None),
            Err(status) => return (read, Some(status)),
            Ok(Some(message)) => {
                assert_eq!(message.block_metadata_type(), v1::BlockMetadataType::VariableLength);
                assert_eq!(message.volume_capacity_bytes, 100);
                let ranges = message.block_metadata.iter();
                read.push(ranges.map(|range| (range.byte_offset, range.size_bytes)).collect());
            }
        }
    }
}

// spec: snapshot-metadata.one-type, snapshot-metadata.max-results, snapshot-metadata.starting-offset
// spec: snapshot-metadata.ends-when-all-is-sent
#[tokio::test]
async fn offset_and_results_are_kept_by_the_framework() {
    let served = served(&Arc::default()).await;
    let (all, end) = allocated(&served, "s", 0, 3).await;
    assert!(end.is_none());
    assert_eq!(all, [vec![(0, 10), (10, 10), (40, 20)], vec![(90, 10)]]);
    let (rest, end) = allocated(&served, "s", 45, 0).await;
    assert!(end.is_none());
    assert_eq!(rest, [[(40, 20), (90, 10)]]);
    let (none, end) = allocated(&served, "s", 101, 0).await;
    let status = end.unwrap();
    assert_eq!((none.len(), status.code()), (0, Code::OutOfRange), "{status}");
    assert!(status.message().starts_with("starting_offset"), "{status}");
}

// spec: snapshot-metadata.offset-out-of-range, snapshot-metadata.ends-when-all-is-sent
// spec: snapshot-metadata.failure-ends-the-stream, get-metadata-allocated.missing
// spec: get-metadata-delta.not-tracked
#[tokio::test]
async fn errors_before_and_within_the_stream_end_it_with_their_code() {
    let served = served(&Arc::default()).await;
    let (sent, end) = allocated(&served, "fails", 0, 0).await;
    assert_eq!((sent.concat(), end.unwrap().code()), (vec![(0, 10)], Code::Unavailable));
    let (sent, end) = allocated(&served, "disordered", 0, 0).await;
    let status = end.unwrap();
    assert_eq!((sent.concat(), status.code()), (vec![(10, 10)], Code::Internal));
    assert!(status.message().contains("block_metadata at 5"), "{status}");
    let (_, end) = allocated(&served, "panics", 0, 1).await;
    assert_eq!(end.unwrap().code(), Code::Internal);
    let (_, end) = allocated(&served, "panics at once", 0, 0).await;
    assert_eq!(end.unwrap().code(), Code::Internal);

    let mut client = served.client.snapshot_metadata();
    for (base, code) in [("untracked", Code::FailedPrecondition), ("gone", Code::NotFound)] {
        let request = v1::GetMetadataDeltaRequest {
            base_snapshot_id: base.into(),
            target_snapshot_id: "t".into(),
            ..Default::default()
        };
        assert_eq!(client.get_metadata_delta(request).await.unwrap_err().code(), code);
    }
}

// spec: snapshot-metadata.interruption-ends-the-work
#[tokio::test]
async fn a_caller_that_leaves_ends_the_work() {
    let yielded = Arc::default();
    let served = served(&yielded).await;
    let mut client = served.client.snapshot_metadata();
    let request = |id: &str| v1::GetMetadataAllocatedRequest {
        snapshot_id: id.into(),
        max_results: 10,
        ..Default::default()
    };
    let mut endless = client.get_metadata_allocated(request("endless")).await.unwrap().into_inner();
    endless.message().await.unwrap().unwrap();
    let silent = client.get_metadata_allocated(request("silent")).await.unwrap();
    assert_eq!(Arc::strong_count(&yielded), 4, "the test's, the driver's, and one a stream");
    drop((endless, silent));
    eventually("both streams are dropped", || Arc::strong_count(&yielded) == 2).await;
    assert!(yielded.load(Ordering::SeqCst) < 1_000_000, "no more is read than the caller takes");
}

// spec: snapshot-metadata.both-served
#[tokio::test]
async fn a_plugin_without_the_service_says_so() {
    let served = Served::start(Plugin::new("bare.csi.example.org", "1")).await;
    let (_, end) = allocated(&served, "s", 0, 0).await;
    assert_eq!(end.unwrap().code(), Code::Unimplemented);
}
