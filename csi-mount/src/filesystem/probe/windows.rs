//! Parts of a device that were read, by place.

use std::ops::Range;

use super::places::ALIGN;
use super::reader::first_nonzero;

/// Parts of a device that were read.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) size: u64,
    /// The parts that are not all zero, in device order.
    parts: Vec<Part>,
    zeros: Vec<Range<u64>>,
}

#[derive(Debug)]
struct Part {
    start: u64,
    bytes: Vec<u8>,
}

impl Windows {
    /// Nothing of a device of this size.
    pub(super) fn new(size: u64) -> Self {
        Self { size, parts: Vec::new(), zeros: Vec::new() }
    }

    pub(super) fn add(&mut self, start: u64, bytes: &[u8]) {
        if first_nonzero(bytes).is_none() {
            self.zeros.push(start..start + bytes.len() as u64);
            return;
        }
        let after = self.parts.partition_point(|part| part.start < start);
        self.parts.insert(after, Part { start, bytes: bytes.to_vec() });
    }

    /// Adds parts that are zero where nothing else was added.
    pub(super) fn are_zero(&mut self, parts: Vec<Range<u64>>) {
        self.zeros.extend(parts);
    }

    /// A single part.
    pub(super) fn one(size: u64, start: u64, bytes: &[u8]) -> Self {
        Self { size, parts: vec![Part { start, bytes: bytes.to_vec() }], zeros: Vec::new() }
    }

    /// The bytes at `offset`, if all of them were read.
    pub(super) fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        /// The longest length that any caller requests.
        static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
        let found = self.parts.iter().find_map(|part| {
            let from = usize::try_from(offset.checked_sub(part.start)?).ok()?;
            part.bytes.get(from..from.checked_add(length)?)
        });
        let end = offset.saturating_add(length as u64);
        let is_zero = |range: &Range<u64>| range.start <= offset && end <= range.end;
        let found = found.or_else(|| self.zeros.iter().any(is_zero).then(|| ZEROS.get(..length)).flatten());
        #[cfg(test)]
        if found.is_none() && end <= self.size {
            tests::MISSED.with_borrow_mut(|missed| missed.push(offset));
        }
        found
    }

    /// Whether the byte at `offset` was read.
    pub(super) fn reach(&self, offset: u64) -> bool {
        let of_part = |part: &Part| part.start..part.start + part.bytes.len() as u64;
        self.parts.iter().map(of_part).chain(self.zeros.iter().cloned()).any(|range| range.contains(&offset))
    }

    /// Whether these bytes are at `offset`.
    pub(super) fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.bytes(offset, magic.len()) == Some(magic)
    }

    /// The place of the first byte that is not zero.
    pub(super) fn first_nonzero(&self) -> Option<u64> {
        self.parts.iter().find_map(|part| Some(part.start + first_nonzero(&part.bytes)? as u64))
    }

    #[cfg(test)]
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { size: bytes.len() as u64, parts: vec![Part { start: 0, bytes }], zeros: Vec::new() }
    }
}

/// What the parts and the data have in common, in whole blocks.
pub(super) fn common(parts: &[Range<u64>], data: &[Range<u64>]) -> Vec<Range<u64>> {
    let both = |part: &Range<u64>, data: &Range<u64>| {
        let start = part.start.max(data.start);
        start - start % ALIGN..part.end.min(data.end)
    };
    let all = parts.iter().flat_map(|part| data.iter().map(move |data| both(part, data)));
    all.filter(|range| !range.is_empty()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::filesystem::probe::places::named;

    thread_local! {
        /// Places on the device that were requested and had not been read.
        pub(super) static MISSED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    /// Runs a function on zeros at all named places, and returns the places it requests that are not among
    /// them.
    pub(in crate::filesystem::probe) fn missed(size: u64, ask: impl FnOnce(&Windows)) -> Vec<u64> {
        MISSED.take();
        ask(&Windows { size, parts: Vec::new(), zeros: named(size) });
        MISSED.take()
    }
}
