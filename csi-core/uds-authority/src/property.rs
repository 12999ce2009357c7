//! Compares random connections with a reference decoder: the headers must be the same except for the
//! authority, and the frames the same except for those with headers.
//!
//! `CSI_TEST_ROUNDS` is the number of connections; the default is 400.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::Authority;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::frames::*;
use crate::reader::write_integer;
use crate::{RepairedStream, huffman};

type Header = (Vec<u8>, Vec<u8>);

/// One instruction of a header block; indices are taken modulo the number of entries.
#[derive(Debug, Clone)]
enum Op {
    Static(usize),
    Dynamic(usize),
    /// The kind bits, a name (by index or literal), a value, and whether it is Huffman-coded.
    Literal(u8, Name, Vec<u8>, bool),
}

#[derive(Debug, Clone)]
enum Name {
    Static(usize),
    Dynamic(usize),
    Text(Vec<u8>, bool),
}

#[derive(Debug, Clone)]
struct Block {
    resize: Option<usize>,
    ops: Vec<Op>,
    padding: Option<u8>,
    priority: bool,
    /// Where the fragment is cut into frames.
    cuts: Vec<usize>,
    /// A frame of another kind that follows.
    between: Option<(u8, Vec<u8>)>,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => Just(b":authority".to_vec()),
        1 => Just(b"grpc-timeout".to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..12),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        Just(b"localhost".to_vec()),
        Just(b"/run/csi/csi.sock".to_vec()),
        Just(b"%2Frun%2Fcsi%2Fcsi.sock".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
        // Entries that evict others, or are too large for the table.
        (500_usize..4_200).prop_map(|length| vec![b'%'; length]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let name = prop_oneof![
        2 => Just(Name::Static(1)),
        1 => (1_usize..62).prop_map(Name::Static),
        3 => any::<usize>().prop_map(Name::Dynamic),
        2 => (name(), any::<bool>()).prop_map(|(name, coded)| Name::Text(name, coded)),
    ];
    let kind = prop_oneof![3 => Just(0x40_u8), 1 => Just(0x10_u8), 1 => Just(0x00_u8)];
    prop_oneof![
        1 => Just(Op::Static(1)),
        1 => (1_usize..62).prop_map(Op::Static),
        4 => any::<usize>().prop_map(Op::Dynamic),
        5 => (kind, name, value(), any::<bool>())
            .prop_map(|(kind, name, value, coded)| Op::Literal(kind, name, value, coded)),
    ]
}

fn block() -> impl Strategy<Value = Block> {
    let resize = proptest::option::weighted(0.1, 0_usize..=4096);
    let between = proptest::option::of((
        prop_oneof![Just(0), 2_u8..5, 6_u8..9, 10_u8..20],
        proptest::collection::vec(any::<u8>(), 0..50),
    ));
    let cuts = proptest::collection::vec(any::<usize>(), 0..3);
    let padding = proptest::option::weighted(0.3, any::<u8>());
    (resize, proptest::collection::vec(op(), 0..8), padding, any::<bool>(), cuts, between).prop_map(
        |(resize, ops, padding, priority, cuts, between)| Block {
            resize,
            ops,
            padding,
            priority,
            cuts,
            between,
        },
    )
}

/// An encoder's dynamic table, to know which indices are valid.
struct Encoder {
    entries: VecDeque<usize>,
    size: usize,
    most: usize,
}

impl Encoder {
    fn fragment(&mut self, block: &Block) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(most) = block.resize {
            write_integer(&mut out, 0x20, 5, most);
            self.most = most;
            self.evict(most);
        }
        for op in &block.ops {
            match op {
                Op::Static(index) => write_integer(&mut out, 0x80, 7, *index),
                Op::Dynamic(_) if self.entries.is_empty() => {}
                Op::Dynamic(nth) => write_integer(&mut out, 0x80, 7, 62 + nth % self.entries.len()),
                Op::Literal(kind, name, value, coded) => self.literal(&mut out, *kind, name, value, *coded),
            }
        }
        // The reference decoder requires a field after a table size update.
        write_integer(&mut out, 0x80, 7, 2);
        out
    }

    fn literal(&mut self, out: &mut Vec<u8>, kind: u8, name: &Name, value: &[u8], coded: bool) {
        let prefix = if kind == 0x40 { 6 } else { 4 };
        let index = match name {
            Name::Static(index) => *index,
            Name::Dynamic(_) if self.entries.is_empty() => 1,
            Name::Dynamic(nth) => 62 + nth % self.entries.len(),
            Name::Text(..) => 0,
        };
        write_integer(out, kind, prefix, index);
        let name_length = match name {
            Name::Text(text, coded) => {
                string(out, text, *coded);
                text.len()
            }
            _ if index < 62 => STATIC_NAMES[index - 1].len(),
            _ => self.entries[index - 62] >> 32,
        };
        string(out, value, coded);
        if kind == 0x40 {
            let size = name_length + value.len() + 32;
            self.evict(self.most.saturating_sub(size));
            if size <= self.most {
                self.size += size;
                self.entries.push_front(name_length << 32 | size);
            }
        }
    }

    fn evict(&mut self, most: usize) {
        while self.size > most {
            self.size -= self.entries.pop_back().unwrap() & 0xffff_ffff;
        }
    }
}

fn string(out: &mut Vec<u8>, text: &[u8], coded: bool) {
    let (bit, bytes) = if coded { (0x80, huffman::encode(text)) } else { (0, text.to_vec()) };
    write_integer(out, bit, 7, bytes.len());
    out.extend_from_slice(&bytes);
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, payload: &[u8]) {
    Head { length: payload.len(), kind, flags, stream: 1 }.write(out);
    out.extend_from_slice(payload);
}

/// The connection's bytes, and the header lists in them.
fn connection(blocks: &[Block]) -> (Vec<u8>, Vec<Vec<Header>>) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut encoder = Encoder { entries: VecDeque::new(), size: 0, most: 4096 };
    let mut reference = loona_hpack::Decoder::new();
    let mut headers = Vec::new();
    for block in blocks {
        let fragment = encoder.fragment(block);
        headers.push(decoded(&mut reference, &fragment));
        let mut cuts: Vec<usize> = block.cuts.iter().map(|cut| cut % (fragment.len() + 1)).collect();
        // No part exceeds the size of a frame, whatever the cuts.
        cuts.extend((0..fragment.len()).step_by(MAX_PAYLOAD - 300));
        cuts.sort_unstable();
        cuts.dedup();
        cuts.retain(|cut| *cut > 0);
        cuts.push(fragment.len());
        let mut start = 0;
        for (nth, end) in cuts.iter().enumerate() {
            let part = &fragment[start..*end];
            start = *end;
            let mut flags = if nth + 1 == cuts.len() { END_HEADERS } else { 0 };
            if nth > 0 {
                frame(&mut bytes, CONTINUATION, flags, part);
                continue;
            }
            let mut payload = Vec::new();
            if let Some(padding) = block.padding {
                flags |= PADDED;
                payload.push(padding);
            }
            if block.priority {
                flags |= PRIORITY;
                payload.extend_from_slice(&[0, 0, 0, 3, 7]);
            }
            payload.extend_from_slice(part);
            payload.extend(std::iter::repeat_n(0, block.padding.map_or(0, usize::from)));
            frame(&mut bytes, HEADERS, flags, &payload);
        }
        if let Some((kind, payload)) = &block.between {
            frame(&mut bytes, *kind, 0, payload);
        }
    }
    (bytes, headers)
}

/// The header lists of a connection, and its other frames.
fn read_back(bytes: &[u8]) -> (Vec<Vec<Header>>, Vec<Vec<u8>>) {
    let mut reference = loona_hpack::Decoder::new();
    let mut lists = Vec::new();
    let mut others = Vec::new();
    let mut rest = &bytes[24..];
    while let Some(head) = Head::read(rest) {
        let length = if head.kind == HEADERS {
            let Read::Whole(block) = super::frames::Block::read(rest).unwrap() else {
                panic!("not all of it")
            };
            lists.push(decoded(&mut reference, &block.fragment));
            block.length
        } else {
            others.push(rest[..HEAD + head.length].to_vec());
            HEAD + head.length
        };
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
    (lists, others)
}

fn decoded(reference: &mut loona_hpack::Decoder<'_>, fragment: &[u8]) -> Vec<Header> {
    reference.decode(fragment).expect("a good block")
}

fn compare(before: &[Header], after: &[Header]) {
    let mut after = after.iter();
    for (name, value) in before {
        if name != b":authority" || Authority::try_from(&value[..]).is_ok() {
            assert_eq!(after.next(), Some(&(name.clone(), value.clone())));
        } else if !value.is_empty() {
            let (repaired, instead) = after.next().expect("a repaired authority");
            assert_eq!((repaired, instead.len()), (name, value.len()));
            assert!(Authority::try_from(&instead[..]).is_ok(), "{instead:?}");
        }
    }
    assert_eq!(after.next(), None);
}

/// Returns its bytes in pieces of these sizes, cyclically.
struct Pieces<'a> {
    bytes: &'a [u8],
    sizes: std::iter::Cycle<std::slice::Iter<'a, usize>>,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let size = *self.sizes.next().unwrap();
        let (now, later) = self.bytes.split_at(self.bytes.len().min(size).min(buffer.remaining()));
        buffer.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

fn pass_through(runtime: &tokio::runtime::Runtime, bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut repaired = RepairedStream::new(Pieces { bytes, sizes: sizes.iter().cycle() });
    let mut out = Vec::new();
    runtime.block_on(repaired.read_to_end(&mut out)).expect("no error");
    out
}

fn rounds() -> u32 {
    std::env::var("CSI_TEST_ROUNDS").map_or(400, |rounds| rounds.parse().expect("a number of rounds"))
}

fn check<S: Strategy>(strategy: &S, test: impl Fn(S::Value)) {
    let config = Config { cases: rounds(), failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(strategy, |value| {
        test(value);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn headers_stay_the_same_but_for_the_authority() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let counts = std::cell::Cell::new((0_u64, 0_u64, 0_u64));
    let sizes = proptest::collection::vec(prop_oneof![1_usize..20, 1_usize..5_000], 1..6);
    check(&(proptest::collection::vec(block(), 1..6), sizes), |(blocks, sizes)| {
        let (sent, before) = connection(&blocks);
        let received = pass_through(&runtime, &sent, &sizes);
        let (after, others) = read_back(&received);
        assert_eq!(before.len(), after.len());
        for (before, after) in before.iter().zip(&after) {
            compare(before, after);
        }
        assert_eq!(others, read_back(&sent).1, "other frames are as they were");
        let fine = before == after;
        assert!(!fine || sent == received, "nothing is changed for nothing");
        let (connections, lists, repaired) = counts.get();
        counts.set((connections + 1, lists + before.len() as u64, repaired + u64::from(!fine)));
    });
    let (connections, lists, repaired) = counts.get();
    println!("{connections} connections, {lists} header blocks, {repaired} connections repaired");
    assert!(repaired > connections / 10, "the authorities are not odd enough: {repaired}");
}

#[test]
fn whatever_comes_does_not_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let sizes = proptest::collection::vec(1_usize..100, 1..4);
    let spoiled = (any::<usize>(), any::<u8>());
    check(
        &(proptest::collection::vec(block(), 0..4), sizes, proptest::collection::vec(spoiled, 0..4)),
        |(blocks, sizes, spoiled)| {
            let (mut sent, _) = connection(&blocks);
            for (place, byte) in spoiled {
                let place = place % sent.len();
                sent[place] = byte;
            }
            let mut repaired = RepairedStream::new(Pieces { bytes: &sent, sizes: sizes.iter().cycle() });
            let mut out = Vec::new();
            // The reader may refuse a connection whose tables are out of step; no other error is allowed.
            if let Err(error) = runtime.block_on(repaired.read_to_end(&mut out)) {
                assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
            }
        },
    );
}

#[rustfmt::skip]
pub(super) const STATIC_NAMES: [&str; 61] = [
    ":authority", ":method", ":method", ":path", ":path", ":scheme", ":scheme", ":status", ":status", ":status",
    ":status", ":status", ":status", ":status", "accept-charset", "accept-encoding", "accept-language",
    "accept-ranges", "accept", "access-control-allow-origin", "age", "allow", "authorization", "cache-control",
    "content-disposition", "content-encoding", "content-language", "content-length", "content-location",
    "content-range", "content-type", "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified", "link", "location",
    "max-forwards", "proxy-authenticate", "proxy-authorization", "range", "referer", "refresh", "retry-after",
    "server", "set-cookie", "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via",
    "www-authenticate",
];
