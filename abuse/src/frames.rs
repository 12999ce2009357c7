//! HTTP/2 as a client writes it that breaks the protocol.

use std::path::Path;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame. The payload must be smaller than 16 MiB.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Opens a connection, and sends the preface and the settings.
pub(crate) async fn open(socket: &Path) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
    Ok(stream)
}

/// The header block of a call.
pub(crate) fn call(path: &str) -> Vec<u8> {
    // POST and http, by their index in the static table.
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(":path", path), ("content-type", "application/grpc"), ("te", "trailers")] {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}
