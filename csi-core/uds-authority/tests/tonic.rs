//! A tonic server whose caller names a socket's path as the authority, as grpc-go does.

use std::io;
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use uds_authority::RepairedStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The first stream of a client.
const STREAM: u8 = 1;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// A header whose name and value are written out (RFC 7541, section 6.2.2).
fn header(name: &str, value: &str) -> Vec<u8> {
    let mut header = vec![0];
    for text in [name, value] {
        header.push(u8::try_from(text.len()).unwrap());
        header.extend_from_slice(text.as_bytes());
    }
    header
}

/// Asks the health service, and returns the first frame of the answer that has data or resets the stream.
async fn check(socket: &Path, authority: &str) -> (u8, Vec<u8>) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let block = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", "/grpc.health.v1.Health/Check"),
        header(":authority", authority),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ];
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, STREAM, &block.concat()),
        frame(DATA, END_STREAM, STREAM, &[0; 5]),
    ];
    stream.write_all(&sent.concat()).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        let is_answer = matches!(head[3], DATA | RST_STREAM);
        if is_answer && head[8] == STREAM {
            return (head[3], payload);
        }
    }
}

/// Serves the health service on a socket, with each connection as `wrap` returns it.
async fn answer<S>(authority: &str, wrap: fn(UnixStream) -> S) -> (u8, Vec<u8>)
where
    S: Connected + tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("app.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let connections =
        UnixListenerStream::new(listener).map(move |accepted: io::Result<UnixStream>| accepted.map(wrap));
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = Server::builder().add_service(health).serve_with_incoming(connections);
    tokio::select! {
        ended = server => panic!("the server ended: {ended:?}"),
        answer = check(&socket, authority) => answer,
    }
}

#[tokio::test]
async fn a_bare_path_is_answered() {
    // A length-prefixed message with the status SERVING.
    let serving = (DATA, vec![0, 0, 0, 0, 2, 8, 1]);
    for authority in ["%2Frun%2Fapp.sock", "/run/app.sock", "", "localhost"] {
        assert_eq!(answer(authority, RepairedStream::new).await, serving, "{authority:?}");
    }
}

#[tokio::test]
async fn without_the_repair_the_stream_is_reset() {
    let protocol_error = (RST_STREAM, vec![0, 0, 0, 1]);
    for authority in ["%2Frun%2Fapp.sock", "/run/app.sock", ""] {
        assert_eq!(answer(authority, |stream| stream).await, protocol_error, "{authority:?}");
    }
}
