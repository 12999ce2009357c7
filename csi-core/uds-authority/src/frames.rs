//! Frames (RFC 9113, 4.1), and the header block in a HEADERS frame and its CONTINUATION frames.

use std::borrow::Cow;

use crate::Malformed;

/// The length of a frame's head.
pub(super) const HEAD: usize = 9;
/// The longest payload that the server allows: the protocol's default, which the server does not change.
pub(super) const MAX_PAYLOAD: usize = 16_384;
pub(super) const HEADERS: u8 = 1;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;
const PRIORITY_LENGTH: usize = 5;
/// How many frames can continue a header block. The server accepts six, for a header list of 16 KiB, and
/// closes the connection at more.
const MAX_CONTINUATIONS: usize = 8;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    /// Reads the head at the start of `bytes`, if it is complete.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, rest @ ..] = bytes.first_chunk::<HEAD>()?;
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        Some(Self { length, kind: *kind, flags: *flags, stream: u32::from_be_bytes(*rest) & 0x7fff_ffff })
    }

    pub(super) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.length as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The result of reading a header block.
pub(super) enum Read<'a> {
    Whole(Block<'a>),
    /// The number of bytes that must be available before the next attempt.
    Needs(usize),
}

/// A complete header block.
pub(super) struct Block<'a> {
    head: Head,
    priority: &'a [u8],
    pub(super) fragment: Cow<'a, [u8]>,
    /// The length of its frames in bytes.
    pub(super) length: usize,
}

impl<'a> Block<'a> {
    /// Reads the block whose HEADERS frame is at the start of `bytes`, if it is complete.
    ///
    /// Until the block is complete, only the heads of its frames are examined, and nothing is copied.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Read<'a>, Malformed> {
        let mut frames: [&[u8]; 1 + MAX_CONTINUATIONS] = [&[]; 1 + MAX_CONTINUATIONS];
        let (mut first, mut count, mut length): (Option<Head>, usize, usize) = (None, 0, 0);
        loop {
            let Some(head) = bytes.get(length..).and_then(Head::read) else {
                return Ok(Read::Needs(length + HEAD));
            };
            // Checked early, so that the reader does not wait for a frame that does not belong here.
            let belongs = first.is_none_or(|first| head.kind == CONTINUATION && head.stream == first.stream);
            let end = length + HEAD + head.length;
            if !belongs || head.length > MAX_PAYLOAD || count == frames.len() {
                return Err(Malformed);
            }
            let Some(payload) = bytes.get(length + HEAD..end) else { return Ok(Read::Needs(end)) };
            frames[count] = payload;
            (first, count, length) = (first.or(Some(head)), count + 1, end);
            if head.has(END_HEADERS) {
                break;
            }
        }
        let head = first.ok_or(Malformed)?;
        let payload = unpadded(head, frames[0])?;
        let split = if head.has(PRIORITY) { PRIORITY_LENGTH } else { 0 };
        let (priority, rest) = payload.split_at_checked(split).ok_or(Malformed)?;
        let fragment = match &frames[1..count] {
            [] => Cow::Borrowed(rest),
            more => Cow::Owned([&[rest], more].concat().concat()),
        };
        Ok(Read::Whole(Self { head, priority, fragment, length }))
    }

    /// Returns the frames of the same block with this fragment instead of its own, without padding.
    pub(super) fn with(&self, fragment: &[u8]) -> Vec<u8> {
        let mut frames = Vec::with_capacity(HEAD + self.priority.len() + fragment.len());
        let (first, mut rest) = fragment.split_at(fragment.len().min(MAX_PAYLOAD - self.priority.len()));
        let ends = |rest: &[u8]| if rest.is_empty() { END_HEADERS } else { 0 };
        let head = Head {
            length: self.priority.len() + first.len(),
            flags: self.head.flags & !(PADDED | END_HEADERS) | ends(rest),
            ..self.head
        };
        head.write(&mut frames);
        frames.extend_from_slice(self.priority);
        frames.extend_from_slice(first);
        while !rest.is_empty() {
            let (part, more) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            let stream = self.head.stream;
            Head { length: part.len(), kind: CONTINUATION, flags: ends(more), stream }.write(&mut frames);
            frames.extend_from_slice(part);
            rest = more;
        }
        frames
    }
}

fn unpadded(head: Head, payload: &[u8]) -> Result<&[u8], Malformed> {
    if !head.has(PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(Malformed)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(Malformed)?;
    Ok(&rest[..length])
}
