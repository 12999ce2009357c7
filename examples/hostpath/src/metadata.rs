//! The SnapshotMetadata service. Allocated blocks come from the disk's own report (SEEK_DATA), changed blocks
//! from comparing the content of two images.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use csi_core::mount::data_ranges;
use csi_core::snapshot_metadata::{
    BlockMetadata, BlockMetadataType, BlockRange, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    SnapshotMetadata,
};
use csi_core::types::SnapshotId;
use csi_core::{Error, IoContext as _, Result, async_trait};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use crate::damage;
use crate::host::{Driver, Host};
use crate::kind::Kind;

/// The unit of comparison in bytes. Ranges begin and end at multiples of it.
const BLOCK: u64 = 4096;
/// How many bytes are read at once.
const CHUNK: u64 = 1 << 20;
/// The number of streams that can run at once. Each has a thread, even while its caller does not read.
pub(crate) const STREAMS: usize = 16;
/// How many ranges are buffered for a caller.
const AHEAD: usize = 1024;

#[async_trait]
impl SnapshotMetadata for Driver {
    async fn metadata_allocated(&self, request: GetMetadataAllocatedRequest) -> Result<BlockMetadata> {
        self.with(move |host| {
            let (path, image, _) = host.image("snapshot_id", &request.snapshot_id)?;
            let size = image.metadata().at("look at", &path)?.len();
            host.stream(path, size, move |found| {
                for range in data_ranges(&image, request.starting_offset) {
                    let range = range?;
                    found.add(range.start / BLOCK * BLOCK, range.end.next_multiple_of(BLOCK).min(size))?;
                }
                Ok(())
            })
        })
        .await
    }

    async fn metadata_delta(&self, request: GetMetadataDeltaRequest) -> Result<BlockMetadata> {
        self.with(move |host| {
            let (_, base, base_of) = host.image("base_snapshot_id", &request.base_snapshot_id)?;
            let (path, target, target_of) = host.image("target_snapshot_id", &request.target_snapshot_id)?;
            if base_of != target_of {
                return Err(Error::invalid(
                    "base_snapshot_id",
                    "does not belong to the volume of target_snapshot_id",
                ));
            }
            let size = target.metadata().at("look at", &path)?.len();
            let from = request.starting_offset / BLOCK * BLOCK;
            host.stream(path, size, move |found| {
                let mut at = from;
                // Where both files have holes, both read as zeros.
                while let Some(next) = next_data(&base, at)?.into_iter().chain(next_data(&target, at)?).min()
                {
                    at = (next / BLOCK * BLOCK).max(at);
                    if at >= size {
                        break;
                    }
                    let end = (at + CHUNK).min(size);
                    compare(&base, &target, at, end, found)?;
                    at = end;
                }
                Ok(())
            })
        })
        .await
    }
}

impl Host {
    /// Returns the path of the snapshot's image, the open image, and the id of its source volume.
    fn image(&self, field: &str, id: &SnapshotId) -> Result<(PathBuf, File, String)> {
        let record = self.snapshot(id)?;
        if record.kind != Kind::Image {
            return Err(Error::invalid(field, "is the snapshot of a directory, which has no blocks"));
        }
        damage::refuse_snapshot(self, id.as_str(), &record)?;
        let path = record.kind.content(&self.snapshots.place(id.as_str()));
        let image = File::open(&path).at("open", &path)?;
        Ok((path, image, record.taken.source_volume_id().to_string()))
    }

    /// Streams the ranges that `work` finds.
    ///
    /// # Errors
    /// [`Error::LimitReached`] while the maximum number of streams is running.
    fn stream(
        &self,
        image: PathBuf,
        volume_capacity_bytes: u64,
        work: impl FnOnce(&mut Found) -> io::Result<()> + Send + 'static,
    ) -> Result<BlockMetadata> {
        let turn = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            Error::LimitReached(
                format!("{STREAMS} streams are being read: try again when one has ended").into(),
            )
        })?;
        let (sender, ranges) = channel(AHEAD);
        let mut found = Found { kind: self.block_metadata, pending: None, sender };
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            match work(&mut found).and_then(|()| found.finish()) {
                // The caller closed the stream.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => drop(found.sender.blocking_send(Err(error).at("read the blocks of", image))),
                Ok(()) => {}
            }
        });
        Ok(BlockMetadata::new(self.block_metadata, volume_capacity_bytes, ReceiverStream::new(ranges)))
    }
}

/// Ranges on their way to the caller. Adjacent ones are merged, and cut into blocks if their length is fixed.
struct Found {
    kind: BlockMetadataType,
    pending: Option<(u64, u64)>,
    sender: Sender<Result<BlockRange>>,
}

impl Found {
    /// Adds a range. It must not start before an earlier one.
    fn add(&mut self, start: u64, end: u64) -> io::Result<()> {
        match &mut self.pending {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => {
                self.finish()?;
                self.pending = Some((start, end));
            }
        }
        Ok(())
    }

    /// Sends the pending range.
    fn finish(&mut self) -> io::Result<()> {
        let Some((start, end)) = self.pending.take() else { return Ok(()) };
        let step = match self.kind {
            BlockMetadataType::FixedLength => BLOCK,
            _ => end - start,
        };
        let mut at = start;
        while at < end {
            let range = BlockRange::new(at, step);
            self.sender.blocking_send(Ok(range)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            at += step;
        }
        Ok(())
    }
}

/// The offset of the next data in a file, at or after `from`.
fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    data_ranges(file, from).next().transpose().map(|range| range.map(|range| range.start))
}

fn compare(base: &File, target: &File, start: u64, end: u64, found: &mut Found) -> io::Result<()> {
    let old = read(base, start, end)?;
    let new = read(target, start, end)?;
    let blocks = old.chunks(BLOCK as usize).zip(new.chunks(BLOCK as usize));
    for (at, (old, new)) in (start..end).step_by(BLOCK as usize).zip(blocks) {
        if old != new {
            found.add(at, (at + BLOCK).min(end))?;
        }
    }
    Ok(())
}

/// Reads the bytes between two offsets. Past the end of the file it returns zeros, which a volume that has
/// grown since had there.
fn read(file: &File, start: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (end - start) as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], start + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(bytes)
}
