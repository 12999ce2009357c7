//! The loads: each is a client, and a row of [`ALL`].
//!
//! A load runs until it is dropped, and starts each client again when the driver ends its connection. It stays
//! on this machine: it uses a unix socket, and an address of the loopback device.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use csi_core::client::Client;
use csi_core::proto::v1;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::target::Target;

/// A load.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// What it does; `{}` stands for the number of its clients.
    pub(crate) what: &'static str,
    /// The number of clients at full scale.
    pub(crate) full: usize,
    client: fn(Aim) -> Running,
}

type Running = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Rows: the name, the number of clients at full scale, what the load does, and its client.
macro_rules! loads {
    ($($name:literal, $full:literal, $what:literal => $client:ident;)+) => {
        &[$(Load { name: $name, what: $what, full: $full, client: |aim| Box::pin($client(aim)) }),+]
    };
}

pub(crate) const ALL: &[Load] = loads! {
    "none", 0, "nothing, to compare with" => nothing;
    "metrics-unread", 64, "{} connections that pipeline 2000 GET /metrics and read nothing" => metrics_unread;
    "silent", 200, "{} connections to the HTTP port that say nothing" => silent;
    // Twice the number of connections that a driver serves.
    "idle", 2000, "{} idle connections to the socket" => idle;
    // More than the kernel's queue for a driver's accept(2).
    "idle-many", 10_000, "{} idle connections to the socket" => idle;
    "half-preface", 1000, "{} connections to the socket with half a preface" => half_preface;
    "one-byte-headers", 4, "{} connections that send a header block of 256 KiB without an end, byte by byte" =>
        one_byte_headers;
    "resets", 8, "{} connections, each of calls that are reset at once, a thousand at a time" => resets;
    "oversized", 4, "{} clients that send messages of 5 MB" => oversized;
    "malformed", 16, "{} connections, each of 100 calls with messages that are no protobuf" => malformed;
};

/// The size of a load, and its duration.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    divisor: usize,
    pub(crate) lasts: Duration,
}

impl Scale {
    pub(crate) const FULL: Self = Self { divisor: 1, lasts: Duration::from_secs(15) };
    pub(crate) const QUICK: Self = Self { divisor: 10, lasts: Duration::from_secs(1) };

    pub(crate) fn of(self, full: usize) -> usize {
        full.div_ceil(self.divisor)
    }
}

/// The driver that a load is aimed at.
#[derive(Clone)]
pub(crate) struct Aim {
    socket: PathBuf,
    health: Option<SocketAddr>,
}

impl From<&Target> for Aim {
    fn from(target: &Target) -> Self {
        Self { socket: target.endpoint.path().to_owned(), health: target.health }
    }
}

/// The wait of a client that was refused or cut off, before it starts again.
const PAUSE: Duration = Duration::from_millis(50);

impl Load {
    /// Runs its clients at the same time, and starts each again when it ends.
    pub(crate) async fn run(&self, aim: Aim, scale: Scale) {
        let mut clients = JoinSet::new();
        for _ in 0..scale.of(self.full) {
            let aim = aim.clone();
            let client = self.client;
            clients.spawn(async move {
                loop {
                    // Starts again, however it ended.
                    drop(client(aim.clone()).await);
                    sleep(PAUSE).await;
                }
            });
        }
        while clients.join_next().await.is_some() {}
    }
}

/// Reads until the driver ends the connection.
async fn read_all(mut stream: impl AsyncRead + Unpin) -> Result<()> {
    let mut answer = [0; 4096];
    while stream.read(&mut answer).await? > 0 {}
    Ok(())
}

async fn connect_health(aim: &Aim) -> Result<TcpStream> {
    match aim.health {
        Some(address) => TcpStream::connect(address).await,
        None => std::future::pending().await,
    }
}

async fn nothing(_: Aim) -> Result<()> {
    std::future::pending().await
}

/// Sends many requests and reads no answer.
async fn metrics_unread(aim: Aim) -> Result<()> {
    let mut stream = connect_health(&aim).await?;
    stream.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000).as_bytes()).await?;
    // It reads once in an hour.
    sleep(Duration::from_secs(3600)).await;
    stream.read_u8().await.map(drop)
}

/// Connects to the HTTP port and sends nothing.
async fn silent(aim: Aim) -> Result<()> {
    connect_health(&aim).await?.read_u8().await.map(drop)
}

/// Opens a connection to the socket correctly, and then does nothing.
async fn idle(aim: Aim) -> Result<()> {
    read_all(open(&aim.socket).await?).await
}

/// Never sends the complete preface.
async fn half_preface(aim: Aim) -> Result<()> {
    let mut stream = UnixStream::connect(&aim.socket).await?;
    stream.write_all(&PREFACE[..12]).await?;
    read_all(stream).await
}

/// Sends a header block that never ends, byte by byte.
async fn one_byte_headers(aim: Aim) -> Result<()> {
    let mut stream = open(&aim.socket).await?;
    for nth in 0..16 {
        let kind = if nth == 0 { HEADERS } else { CONTINUATION };
        for byte in frame(kind, 0, 1, &[0; 16_384]) {
            stream.write_all(&[byte]).await?;
        }
    }
    Ok(())
}

/// Resets its calls immediately.
async fn resets(aim: Aim) -> Result<()> {
    let mut stream = open(&aim.socket).await?;
    let block = call("/csi.v1.Identity/Probe");
    let mut burst = Vec::new();
    for nth in 0..1000 {
        burst.extend(frame(HEADERS, END_HEADERS, 2 * nth + 1, &block));
        burst.extend(frame(RST_STREAM, 0, 2 * nth + 1, &8_u32.to_be_bytes()));
    }
    stream.write_all(&burst).await?;
    stream.shutdown().await?;
    read_all(stream).await
}

/// Sends a message that is longer than 4 MiB.
async fn oversized(aim: Aim) -> Result<()> {
    let endpoint = aim.socket.display().to_string().parse().map_err(Error::other)?;
    let client = Client::new(&endpoint);
    let volume_id = "x".repeat(5_000_000);
    let request = v1::NodeUnpublishVolumeRequest { volume_id, target_path: "/t".to_owned() };
    client.call(request).await.map(drop).map_err(Error::other)
}

/// Sends messages that are not protobuf, and reads once.
async fn malformed(aim: Aim) -> Result<()> {
    let mut stream = open(&aim.socket).await?;
    let block = call("/csi.v1.Node/NodeUnpublishVolume");
    let message = [&[0, 0, 0, 0, 8][..], &[0xff; 8]].concat();
    for nth in 0..100 {
        stream.write_all(&frame(HEADERS, END_HEADERS, 2 * nth + 1, &block)).await?;
        stream.write_all(&frame(DATA, END_STREAM, 2 * nth + 1, &message)).await?;
    }
    let mut answer = [0; 65_536];
    stream.read(&mut answer).await.map(drop)
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A frame. The payload must be smaller than 16 MiB.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Opens a connection, and sends the preface and the settings.
async fn open(socket: &Path) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
    Ok(stream)
}

/// The header block of a call.
fn call(path: &str) -> Vec<u8> {
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
