//! A client that writes its own HTTP/2 frames, to send what other implementations send.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
/// The payload of RST_STREAM: CANCEL.
const CANCEL: [u8; 4] = [0, 0, 0, 8];
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Indexed fields: the method and the scheme.
pub const POST: u8 = 0x83;
pub const HTTP: u8 = 0x86;
/// A server that never answers fails a test, and does not let it hang.
const PATIENCE: Duration = Duration::from_secs(120);

pub type Header = (Vec<u8>, Vec<u8>);

pub struct Raw {
    stream: UnixStream,
    decoder: loona_hpack::Decoder<'static>,
    next: u32,
}

impl Raw {
    pub async fn open(path: &Path) -> Self {
        // The file of a socket is there a moment before somebody listens.
        let connecting = async {
            loop {
                match UnixStream::connect(path).await {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                        sleep(Duration::from_millis(5)).await;
                    }
                    connected => return connected.expect("a socket"),
                }
            }
        };
        let mut stream = timeout(PATIENCE, connecting).await.expect("somebody listens");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut raw = Self { stream, decoder: loona_hpack::Decoder::new(), next: 1 };
        raw.send(SETTINGS, 0, 0, &[]).await;
        raw
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        // A server that closed the connection gave its reason before; the reader finds it.
        drop(self.stream.write_all(&frame(kind, flags, stream, payload)).await);
    }

    async fn receive(&mut self) -> Result<(u8, u8, u32, Vec<u8>), String> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.map_err(|error| format!("the connection: {error}"))?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await.unwrap();
        Ok((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
    }

    /// Makes a unary call with this header block and message. Returns the answer's message, or an error
    /// that says what ended the call.
    pub async fn call(&mut self, block: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
        let stream = self.next;
        self.next += 2;
        self.send(HEADERS, END_HEADERS, stream, block).await;
        let data = [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat();
        self.send(DATA, END_STREAM, stream, &data).await;
        timeout(PATIENCE, self.answer(stream)).await.expect("an answer in time")
    }

    /// Whether the server still has the connection open. Data that it sent meanwhile is dropped.
    pub fn is_open(&mut self) -> bool {
        loop {
            let mut rest = [0; 4096];
            match self.stream.try_read(&mut rest) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }

    /// Begins a call and does not send its message.
    pub async fn begin(&mut self, block: &[u8]) {
        self.send(HEADERS, END_HEADERS, self.next, block).await;
        self.next += 2;
    }

    /// Begins this many calls and gives each up, all of it in one write.
    pub async fn give_up(&mut self, block: &[u8], calls: u32) {
        let mut bytes = Vec::new();
        for _ in 0..calls {
            bytes.extend(frame(HEADERS, END_HEADERS, self.next, block));
            bytes.extend(frame(RST_STREAM, 0, self.next, &CANCEL));
            self.next += 2;
        }
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Makes a unary call and gives it up, all of it in one write.
    pub async fn call_and_give_up(&mut self, block: &[u8], message: &[u8]) {
        let data = [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat();
        let frames: [(u8, u8, &[u8]); 3] =
            [(HEADERS, END_HEADERS, block), (DATA, END_STREAM, &data), (RST_STREAM, 0, &CANCEL)];
        let frames = frames.map(|(kind, flags, payload)| frame(kind, flags, self.next, payload));
        self.next += 2;
        self.stream.write_all(&frames.concat()).await.unwrap();
    }

    async fn answer(&mut self, stream: u32) -> Result<Vec<u8>, String> {
        let mut answer = Vec::new();
        loop {
            let (kind, flags, of, payload) = self.receive().await?;
            match kind {
                SETTINGS if flags == 0 => self.send(SETTINGS, 1, 0, &[]).await,
                // A GOAWAY without an error only says that no new calls are accepted.
                GOAWAY if payload[4..8] != [0; 4] => return Err(format!("GOAWAY {payload:?}")),
                RST_STREAM if of == stream => return Err(format!("RST_STREAM {payload:?}")),
                DATA if of == stream => answer.extend_from_slice(&payload),
                HEADERS => {
                    let headers = self.decoder.decode(&payload).expect("good headers");
                    if of == stream && flags & END_STREAM != 0 {
                        let status = value(&headers, "grpc-status");
                        if status != "0" {
                            return Err(format!("status {status}: {}", value(&headers, "grpc-message")));
                        }
                        return Ok(answer.get(5..).unwrap_or_default().to_vec());
                    }
                }
                _ => {}
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn value(headers: &[Header], name: &str) -> String {
    let found = headers.iter().find(|(found, _)| found == name.as_bytes());
    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

/// A literal field without Huffman code, not added to the table.
pub fn plain(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        block.push(text.len() as u8);
        block.extend_from_slice(text.as_bytes());
    }
}

/// The header block of a call, without an authority.
pub fn head(path: &str) -> Vec<u8> {
    head_after(&[POST, HTTP], path)
}

/// The header block of a call, with other pseudo-header fields before its path.
pub fn head_after(first: &[u8], path: &str) -> Vec<u8> {
    let mut block = first.to_vec();
    plain(&mut block, ":path", path);
    plain(&mut block, "content-type", "application/grpc");
    plain(&mut block, "te", "trailers");
    block
}

/// The header block of GetInfo as the kubelet 1.36.2 sends it. The authority is percent-encoded, in Huffman
/// code, and added to the table before five other fields.
pub fn kubelet_get_info() -> Vec<u8> {
    let hex = "8386459c62ba2d98d558598c84d83498f52fb4b31909b06931ea63115392a94f41b55458534d6a8b0928b5092d8a8b0f5b\
               632d054aa2c35d16cc6a91158598c84d9e9516192da6b5cbe474d741573d932d61665d07275f5f8b1d75d0620d263d4c4d65\
               647a8b9acac8b4c7602bbafaecff40027465864d833505b11f408e9acac8b0c842d6958b510f21aa9b839bd9ab40899acac8\
               b24d494f6a7f867df7df7436ff";
    let digits: Vec<u8> = hex.bytes().map(|digit| (digit as char).to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A later call of the kubelet on the same connection: the authority is a reference to the table.
pub fn kubelet_again(path: &str) -> Vec<u8> {
    head_after(&[POST, HTTP, 0x80 | (62 + 5)], path)
}
