//! Turns a driver's ranges into messages. Checks that they are in order and do not overlap, skips those
//! that end before the caller's offset, and puts at most as many ranges into a message as the caller
//! accepts.

use csi_proto::v1;
use tokio_stream::StreamExt;

use super::{BlockMetadata, BlockMetadataType, BlockRange};
use crate::error::{Error, Result};
use crate::types::volume::signed;

/// The number of ranges in a message if the caller sets no maximum.
const MAX_RANGES: usize = 1024;

/// The ranges of one stream, and how far it has been read.
pub(crate) struct Ranges {
    answer: BlockMetadata,
    starting_offset: u64,
    at_most: usize,
    /// Where the last range ended.
    end: u64,
    /// The length of all ranges, if it is fixed.
    length: Option<u64>,
    ended: bool,
    /// An error that is returned after the ranges that precede it are sent.
    failed: Option<Error>,
}

impl Ranges {
    // spec: snapshot-metadata.one-type, snapshot-metadata.offset-out-of-range
    pub(super) fn new(answer: BlockMetadata, starting_offset: i64, max_results: i32) -> Result<Self> {
        let capacity = answer.volume_capacity_bytes;
        signed("volume_capacity_bytes", capacity)?;
        let starting_offset = u64::try_from(starting_offset).unwrap_or_default();
        if starting_offset > capacity {
            return Err(Error::OutOfRange(
                format!("starting_offset: is {starting_offset}, the volume has {capacity} bytes").into(),
            ));
        }
        let at_most = match usize::try_from(max_results) {
            Ok(max) if max > 0 => max.min(MAX_RANGES),
            _ => MAX_RANGES,
        };
        Ok(Self { answer, starting_offset, at_most, end: 0, length: None, ended: false, failed: None })
    }

    /// What every message of the stream repeats: the kind of ranges, and the size of the volume.
    pub(super) fn facts(&self) -> (i32, i64) {
        let kind = match self.answer.block_metadata_type {
            BlockMetadataType::FixedLength => v1::BlockMetadataType::FixedLength,
            BlockMetadataType::VariableLength => v1::BlockMetadataType::VariableLength,
        };
        (kind as i32, i64::try_from(self.answer.volume_capacity_bytes).unwrap_or(i64::MAX))
    }

    /// The ranges of the next message: all that are available at once, at least one; `None` after the last
    /// range.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<v1::BlockMetadata>>> {
        let mut batch = Vec::new();
        while batch.len() < self.at_most && !self.ended {
            let next = if batch.is_empty() {
                self.answer.ranges.next().await
            } else {
                tokio::select! {
                    biased;
                    next = self.answer.ranges.next() => next,
                    () = std::future::ready(()) => break,
                }
            };
            match next.map(|range| range.and_then(|range| self.accept(range))) {
                None => self.ended = true,
                Some(Ok(range)) => batch.extend(range),
                Some(Err(error)) => (self.ended, self.failed) = (true, Some(error)),
            }
        }
        match self.failed.take_if(|_| batch.is_empty()) {
            Some(error) => Err(error),
            None => Ok((!batch.is_empty()).then_some(batch)),
        }
    }

    /// The range on the wire, unless it ends before the caller's offset.
    // spec: snapshot-metadata.ascending, snapshot-metadata.size-positive, snapshot-metadata.fixed-length
    // spec: snapshot-metadata.max-results, snapshot-metadata.starting-offset
    fn accept(&mut self, range: BlockRange) -> Result<Option<v1::BlockMetadata>> {
        let BlockRange { byte_offset, size_bytes } = range;
        let capacity = self.answer.volume_capacity_bytes;
        let broken = |rule: String| Err(Error::broken(format!("block_metadata at {byte_offset}: {rule}")));
        let Some(end) = byte_offset.checked_add(size_bytes).filter(|_| size_bytes > 0) else {
            return broken(format!("its size is {size_bytes}"));
        };
        if byte_offset < self.end {
            return broken(format!("it starts before the end of the one before it, {}", self.end));
        }
        let is_fixed = self.answer.block_metadata_type == BlockMetadataType::FixedLength;
        // The last block of fixed length can reach past the end of a volume whose size is not a multiple of
        // it.
        if byte_offset >= capacity || (!is_fixed && end > capacity) {
            return broken(format!("it reaches to {end}, past the volume's end at {capacity}"));
        }
        if is_fixed && *self.length.get_or_insert(size_bytes) != size_bytes {
            return broken(format!("its size is {size_bytes}, others have another, and the length is fixed"));
        }
        self.end = end;
        if end <= self.starting_offset {
            return Ok(None);
        }
        Ok(Some(v1::BlockMetadata {
            byte_offset: signed("block_metadata.byte_offset", byte_offset)?,
            size_bytes: signed("block_metadata.size_bytes", size_bytes)?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind of ranges, an example of ranges, and the rule that they break.
    type Broken = (BlockMetadataType, &'static [(u64, u64)], &'static str);

    /// The messages that these ranges make, and the error that ends the stream, if any.
    async fn messages(
        kind: BlockMetadataType,
        ranges: &[(u64, u64)],
        starting_offset: i64,
        max_results: i32,
    ) -> (Vec<Vec<(i64, i64)>>, Option<String>) {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|&(byte_offset, size_bytes)| Ok(BlockRange { byte_offset, size_bytes }))
            .collect();
        let answer = BlockMetadata {
            block_metadata_type: kind,
            volume_capacity_bytes: 100,
            ranges: Box::pin(tokio_stream::iter(ranges)),
        };
        let mut ranges = match Ranges::new(answer, starting_offset, max_results) {
            Ok(ranges) => ranges,
            Err(error) => return (vec![], Some(error.to_string())),
        };
        let mut sent = vec![];
        loop {
            match ranges.next().await {
                Ok(Some(batch)) => {
                    sent.push(batch.iter().map(|range| (range.byte_offset, range.size_bytes)).collect());
                }
                Ok(None) => return (sent, None),
                Err(error) => return (sent, Some(error.to_string())),
            }
        }
    }

    use BlockMetadataType::{FixedLength, VariableLength};

    // spec: snapshot-metadata.max-results, snapshot-metadata.starting-offset
    #[tokio::test]
    async fn max_results_and_starting_offset_are_kept() {
        let all = [(0, 10), (10, 10), (30, 5), (90, 10)];
        let due = vec![vec![(0, 10), (10, 10)], vec![(30, 5), (90, 10)]];
        assert_eq!(messages(VariableLength, &all, 0, 2).await, (due, None));
        let (sent, error) = messages(VariableLength, &all, 0, 0).await;
        assert_eq!((sent.len(), sent[0].len(), error), (1, 4, None));
        // A range that contains the offset is sent whole; a range that ends at it is not sent.
        assert_eq!(messages(VariableLength, &all, 15, 9).await.0, [[(10, 10), (30, 5), (90, 10)]]);
        assert_eq!(messages(VariableLength, &all, 20, 9).await.0, [[(30, 5), (90, 10)]]);
        assert_eq!(messages(VariableLength, &all, 100, 9).await, (vec![], None));
        let (_, error) = messages(VariableLength, &all, 101, 9).await;
        assert!(error.unwrap().starts_with("starting_offset: is 101"));
    }

    // spec: snapshot-metadata.ascending, snapshot-metadata.size-positive, snapshot-metadata.fixed-length
    // spec: snapshot-metadata.failure-ends-the-stream
    #[tokio::test]
    async fn what_breaks_the_order_ends_the_stream_after_what_was_right() {
        let cases: [Broken; 8] = [
            (VariableLength, &[(10, 10), (5, 5)], "starts before the end"),
            (VariableLength, &[(10, 10), (19, 5)], "starts before the end"),
            (VariableLength, &[(10, 10), (10, 10)], "starts before the end"),
            (VariableLength, &[(10, 10), (20, 0)], "its size is 0"),
            (VariableLength, &[(10, 10), (95, 6)], "past the volume's end"),
            (VariableLength, &[(10, 10), (u64::MAX, 2)], "its size is 2"),
            (FixedLength, &[(10, 10), (20, 9)], "the length is fixed"),
            (FixedLength, &[(10, 10), (100, 10)], "past the volume's end"),
        ];
        for (kind, ranges, rule) in cases {
            let (sent, error) = messages(kind, ranges, 0, 0).await;
            assert_eq!(sent, [[(10, 10)]], "{ranges:?}");
            let error = error.unwrap_or_else(|| panic!("{ranges:?} is taken"));
            assert!(error.contains(rule) && error.contains("breaks the spec"), "{ranges:?}: {error}");
        }
        assert_eq!(
            messages(FixedLength, &[(96, 8)], 0, 0).await.1,
            None,
            "the last block may reach past the end"
        );
    }
}
