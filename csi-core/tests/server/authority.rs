//! Callers with other HTTP/2 implementations that dial a bare socket path: their calls succeed, and so does
//! the next call on the same connection.

use std::sync::Arc;

use csi_proto::v1;
use prost::Message;

use crate::common::*;
use crate::driver::plugin;
use crate::raw::*;

const PROBE: &str = "/csi.v1.Identity/Probe";

/// Values of `:authority`, and the same values in Huffman code.
const AUTHORITIES: [(&str, &[u8]); 6] = [
    ("", &[]),
    ("localhost", &[0xa0, 0xe4, 0x1d, 0x13, 0x9d, 0x09]),
    ("/a", &[0x60, 0x7f]),
    ("/a/b.c", &[0x60, 0x6c, 0x46, 0xb9, 0x3f]),
    ("%2Fa", &[0x54, 0x58, 0x47]),
    ("a:b:c", &[0x1d, 0xc8, 0xee, 0x13]),
];

/// The encodings of a field: the kind in its first byte, and whether the name `:authority` is an index of
/// the static table or is written out.
const FORMS: [(u8, bool); 6] =
    [(0x40, true), (0x40, false), (0x00, true), (0x00, false), (0x10, true), (0x10, false)];

fn block(form: (u8, bool), value: &[u8], coded: bool) -> Vec<u8> {
    let mut block = head(PROBE);
    let (kind, by_index) = form;
    block.push(kind | u8::from(by_index));
    if !by_index {
        text(&mut block, b":authority", false);
    }
    text(&mut block, value, coded);
    tail(&mut block);
    block
}

async fn probes(raw: &mut Raw, block: &[u8], travel: Travel) {
    let answer = raw.call(block, travel, &[]).await.unwrap_or_else(|why| panic!("{block:x?}: {why}"));
    assert_eq!(v1::ProbeResponse::decode(&answer[..]).unwrap().ready, Some(true));
}

#[tokio::test]
async fn every_form_of_every_authority() {
    let served = Served::start(plugin(&Arc::default())).await;
    let mut calls = 0;
    for (value, huffman) in AUTHORITIES {
        for coded in [false, true] {
            let value = if coded { huffman } else { value.as_bytes() };
            for form in FORMS {
                for travel in [Travel::Whole, Travel::Padded, Travel::Continued] {
                    let mut raw = Raw::open(served.endpoint.path()).await;
                    probes(&mut raw, &block(form, value, coded), travel).await;
                    // The next call refers to the table entry that the first call added, or repeats
                    // the value.
                    let mut next = head(PROBE);
                    match form.0 {
                        0x40 => next.push(0x80 | 62),
                        kind => {
                            next.push(kind | 1);
                            text(&mut next, value, coded);
                        }
                    }
                    tail(&mut next);
                    probes(&mut raw, &next, travel).await;
                    calls += 2;
                }
            }
        }
    }
    println!("{calls} calls with odd authorities");
    assert_eq!(calls, 6 * 2 * 6 * 3 * 2);
}

#[tokio::test]
async fn none_and_the_static_empty_one() {
    let served = Served::start(plugin(&Arc::default())).await;
    let mut raw = Raw::open(served.endpoint.path()).await;
    let mut none = head(PROBE);
    tail(&mut none);
    let mut empty = head(PROBE);
    empty.push(0x81);
    tail(&mut empty);
    for block in [&none, &empty, &none] {
        probes(&mut raw, block, Travel::Whole).await;
    }
}

#[tokio::test]
async fn references_behind_one_that_was_left_out() {
    let served = Served::start(plugin(&Arc::default())).await;
    let mut raw = Raw::open(served.endpoint.path()).await;
    // The table gets the path, then the empty authority, then the content type.
    let mut first = vec![0x83, 0x86, 0x44];
    text(&mut first, PROBE.as_bytes(), false);
    first.extend_from_slice(&[0x41, 0, 0x40 | 31]);
    text(&mut first, b"application/grpc", false);
    plain(&mut first, "te", "trailers");
    probes(&mut raw, &first, Travel::Whole).await;
    // The next two calls refer to the table: the first to whole entries only, the second also to the name
    // of the entry that was left out.
    let mut second = vec![0x83, 0x86, 0x80 | 64, 0x80 | 63, 0x80 | 62];
    plain(&mut second, "te", "trailers");
    probes(&mut raw, &second, Travel::Whole).await;
    let mut third = vec![0x83, 0x86, 0x80 | 64, 0x0f, 63 - 15];
    text(&mut third, b"/again", false);
    third.push(0x80 | 62);
    plain(&mut third, "te", "trailers");
    probes(&mut raw, &third, Travel::Continued).await;
}

#[tokio::test]
async fn what_is_malformed_is_refused_by_the_server_itself() {
    let served = Served::start(plugin(&Arc::default())).await;
    for bad in [&[0x80_u8][..], &[0x80 | 70], &[0x41, 0x81, 0x00], &[0x3f, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        let mut raw = Raw::open(served.endpoint.path()).await;
        let why = raw.call(bad, Travel::Whole, &[]).await.expect_err("refused");
        assert!(why.starts_with("GOAWAY"), "{bad:x?}: {why}");
    }
    // Other connections are not affected.
    served.call(v1::ProbeRequest {}).await.unwrap();
}
