//! A tonic server whose caller names a socket's path as the authority, as grpc-go does.

#[path = "../../tests/it/raw/mod.rs"]
mod raw;

use std::io;

use raw::{HTTP, POST, Raw, head_after, plain};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use uds_authority::RepairedStream;

/// A call of the health service.
fn block(authority: &str) -> Vec<u8> {
    let mut first = vec![POST, HTTP];
    plain(&mut first, ":authority", authority);
    head_after(&first, "/grpc.health.v1.Health/Check")
}

/// Serves the health service on a socket, with each connection as `wrap` returns it, and makes a call.
async fn answer<S>(block: &[u8], wrap: fn(UnixStream) -> S) -> Result<Vec<u8>, String>
where
    S: Connected + AsyncRead + AsyncWrite + Unpin + Send + 'static,
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
        answer = async { Raw::open(&socket).await.call(block, &[]).await } => answer,
    }
}

#[tokio::test]
async fn a_bare_path_is_answered() {
    // A message with the status SERVING.
    let serving = Ok(vec![8, 1]);
    for authority in ["%2Frun%2Fapp.sock", "/run/app.sock", "", "localhost"] {
        assert_eq!(answer(&block(authority), RepairedStream::new).await, serving, "{authority:?}");
    }
}

#[tokio::test]
async fn without_the_repair_the_stream_is_reset() {
    let protocol_error = Err("RST_STREAM [0, 0, 0, 1]".to_owned());
    for authority in ["%2Frun%2Fapp.sock", "/run/app.sock", ""] {
        assert_eq!(answer(&block(authority), |stream| stream).await, protocol_error, "{authority:?}");
    }
}

#[tokio::test]
async fn what_is_malformed_is_refused_by_the_server_itself() {
    for bad in [&[0x80_u8][..], &[0x80 | 70], &[0x41, 0x81, 0x00], &[0x3f, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        let refused = answer(bad, RepairedStream::new).await.unwrap_err();
        assert!(refused.starts_with("GOAWAY "), "{bad:x?}: {refused}");
    }
}
