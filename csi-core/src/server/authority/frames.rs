//! Frames (RFC 9113, 4.1), and the header block that lies in a HEADERS frame and those that continue it.

use std::borrow::Cow;

use super::Malformed;

/// The length of a frame's head.
pub(super) const HEAD: usize = 9;
/// The longest payload that the server allows: the protocol's default, which it does not change.
pub(super) const PAYLOAD_MOST: usize = 16_384;
pub(super) const HEADERS: u8 = 1;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;
const PRIORITY_LENGTH: usize = 5;
/// How many frames may continue a header block. The server takes fewer, and gives up the connection at more.
const CONTINUATIONS_MOST: usize = 16;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    /// The head at the start of `bytes`, if all of it is there.
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

/// A whole header block.
pub(super) struct Block<'a> {
    head: Head,
    priority: &'a [u8],
    pub(super) fragment: Cow<'a, [u8]>,
    /// How many bytes its frames take.
    pub(super) length: usize,
}

impl<'a> Block<'a> {
    /// The block whose HEADERS frame is at the start of `bytes`, if all of it is there.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let Some((head, payload)) = frame(bytes)? else { return Ok(None) };
        let payload = unpadded(head, payload)?;
        let split = if head.has(PRIORITY) { PRIORITY_LENGTH } else { 0 };
        let (priority, first) = payload.split_at_checked(split).ok_or(Malformed)?;

        let mut fragment = Cow::Borrowed(first);
        let mut length = HEAD + head.length;
        let (mut last, mut continuations) = (head, 0);
        while !last.has(END_HEADERS) {
            continuations += 1;
            if continuations > CONTINUATIONS_MOST {
                return Err(Malformed);
            }
            // Told early, so that what does not belong here is not waited for.
            let next = Head::read(&bytes[length..]);
            if next.is_some_and(|next| next.kind != CONTINUATION || next.stream != head.stream) {
                return Err(Malformed);
            }
            let Some((next, more)) = frame(&bytes[length..])? else { return Ok(None) };
            fragment.to_mut().extend_from_slice(more);
            length += HEAD + next.length;
            last = next;
        }
        Ok(Some(Self { head, priority, fragment, length }))
    }

    /// The frames of the same block with this fragment in place of its own, without padding.
    pub(super) fn with(&self, fragment: &[u8]) -> Vec<u8> {
        let mut frames = Vec::with_capacity(HEAD + self.priority.len() + fragment.len());
        let (first, mut rest) = fragment.split_at(fragment.len().min(PAYLOAD_MOST - self.priority.len()));
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
            let (part, more) = rest.split_at(rest.len().min(PAYLOAD_MOST));
            let stream = self.head.stream;
            Head { length: part.len(), kind: CONTINUATION, flags: ends(more), stream }.write(&mut frames);
            frames.extend_from_slice(part);
            rest = more;
        }
        frames
    }
}

/// The frame at the start of `bytes`, if all of it is there.
fn frame(bytes: &[u8]) -> Result<Option<(Head, &[u8])>, Malformed> {
    let Some(head) = Head::read(bytes) else { return Ok(None) };
    if head.length > PAYLOAD_MOST {
        return Err(Malformed);
    }
    Ok(bytes.get(HEAD..HEAD + head.length).map(|payload| (head, payload)))
}

fn unpadded(head: Head, payload: &[u8]) -> Result<&[u8], Malformed> {
    if !head.has(PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(Malformed)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(Malformed)?;
    Ok(&rest[..length])
}
