//! The structs of the FUSE protocol, requests and replies.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use super::store::{Attributes, ROOT, Usage};

/// An error number that the kernel receives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Errno(i32);

impl Errno {
    pub(crate) const NOT_FOUND: Self = Self(2);
    /// `ENOSYS`: this filesystem does not support the operation.
    pub(crate) const NOT_THERE: Self = Self(38);
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        // EIO, if the error has no errno.
        Self(error.raw_os_error().unwrap_or(5))
    }
}

/// `struct fuse_in_header`, and the bytes that follow it.
pub(crate) struct Request<'a> {
    pub(crate) operation: u32,
    pub(crate) node: u64,
    unique: [u8; 8],
    body: &'a [u8],
}

impl<'a> Request<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let (head, body) = bytes.split_at_checked(40)?;
        let head = Request { operation: 0, node: 0, unique: head[8..16].try_into().ok()?, body: head };
        Some(Self { operation: head.word(4), node: head.long(16), unique: head.unique, body })
    }

    /// Whether an earlier process had received it, and can have done it before it died (`FUSE_UNIQUE_RESEND`, Linux 6.9).
    pub(crate) fn is_repeated(&self) -> bool {
        u64::from_ne_bytes(self.unique) & 1 << 63 != 0
    }

    pub(crate) fn word(&self, offset: usize) -> u32 {
        let bytes = self.body.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    pub(crate) fn long(&self, offset: usize) -> u64 {
        let bytes = self.body.get(offset..offset + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }

    pub(crate) fn rest(&self, offset: usize) -> &'a [u8] {
        self.body.get(offset..).unwrap_or_default()
    }

    /// Returns a name, which ends with a NUL byte. The kernel sends no slash in it.
    pub(crate) fn name(&self, offset: usize) -> &'a OsStr {
        let bytes = self.rest(offset);
        OsStr::from_bytes(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
    }

    /// `struct fuse_out_header`, followed by the answer.
    pub(crate) fn reply(&self, answer: Result<Answer, Errno>) -> Vec<u8> {
        let (error, body) = match answer {
            Ok(Answer(body)) => (0, body),
            Err(Errno(number)) => (-number, Vec::new()),
        };
        let mut reply = Answer::empty().word(16 + body.len() as u32).word(error.cast_unsigned());
        reply.0.extend(self.unique);
        reply.0.extend(body);
        reply.0
    }
}

/// The bytes of a reply after its header.
pub(crate) struct Answer(Vec<u8>);

/// How long the kernel caches an entry or attributes, in seconds.
const VALID: u64 = 1;

impl Answer {
    pub(crate) fn empty() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    fn word(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn long(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// `struct fuse_init_out`
    pub(crate) fn init(minor: u32, largest_write: usize) -> Self {
        // BIG_WRITES and MAX_PAGES: without them the kernel writes at most one page per request.
        let flags = 1 << 5 | 1 << 22;
        let answer = Self::empty().word(7).word(minor.min(31)).word(0).word(flags).word(0);
        answer.word(largest_write as u32).word(1).word((largest_write / 4096) as u32).zeros(32)
    }

    /// `struct fuse_attr`
    fn attr(self, file: &Attributes) -> Self {
        let times = [file.accessed, file.modified, file.changed];
        let answer = self.long(file.node).long(file.size).long(file.blocks);
        let answer = times.iter().fold(answer, |answer, (seconds, _)| answer.long(*seconds));
        let answer = times.iter().fold(answer, |answer, (_, nanoseconds)| answer.word(*nanoseconds));
        answer.word(file.mode).word(1).word(file.user).word(file.group).word(0).word(4096).word(0)
    }

    /// `struct fuse_entry_out`
    pub(crate) fn entry(file: Attributes) -> Self {
        Self::empty().long(file.node).long(0).long(VALID).long(VALID).zeros(8).attr(&file)
    }

    /// `struct fuse_attr_out`
    pub(crate) fn attributes(file: Attributes) -> Self {
        Self::empty().long(VALID).zeros(8).attr(&file)
    }

    /// `struct fuse_open_out`
    pub(crate) fn opened() -> Self {
        Self::empty().zeros(16)
    }

    /// `struct fuse_write_out`
    pub(crate) fn written(count: usize) -> Self {
        Self::empty().word(count as u32).zeros(4)
    }

    /// `struct fuse_kstatfs`
    pub(crate) fn usage(usage: Usage) -> Self {
        let answer = [usage.blocks, usage.free, usage.available, usage.files, usage.files_free]
            .into_iter()
            .fold(Self::empty(), Self::long);
        answer.word(usage.block_size).word(255).word(usage.block_size).zeros(28)
    }

    /// `struct fuse_dirent`: as many entries as fit, starting at index `from`.
    pub(crate) fn names(names: &[(u64, std::ffi::OsString)], from: u64, room: usize) -> Self {
        let mut answer = Self::empty();
        for (index, (node, name)) in names.iter().enumerate().skip(from as usize) {
            let length = 24 + name.len().next_multiple_of(8);
            if answer.0.len() + length > room {
                break;
            }
            // DT_DIR, DT_REG
            let kind = if *node == ROOT { 4 } else { 8 };
            let entry = answer.long(*node).long(index as u64 + 1).word(name.len() as u32).word(kind);
            let end = entry.0.len() - 24 + length;
            answer = entry;
            answer.0.extend(name.as_bytes());
            answer.0.resize(end, 0);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_request_is_known() {
        for (unique, is_repeated) in [(12_u64, false), (12 | 1 << 63, true)] {
            let mut bytes = [0; 40];
            bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
            assert_eq!(Request::new(&bytes).unwrap().is_repeated(), is_repeated);
        }
    }
}
