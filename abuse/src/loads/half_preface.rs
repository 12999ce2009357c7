//! Connections to the socket that never send the complete preface.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{Load, many};
use crate::frames::PREFACE;

pub(super) const LOAD: Load = Load {
    name: "half-preface",
    what: "{} connections to the socket with half a preface",
    full: 1000,
    run: |aim, scale| {
        Box::pin(many(scale.of(1000), move || {
            let socket = aim.socket.clone();
            async move {
                let mut stream = UnixStream::connect(&socket).await?;
                stream.write_all(&PREFACE[..12]).await?;
                let mut answer = [0; 512];
                while stream.read(&mut answer).await? > 0 {}
                Ok(())
            }
        }))
    },
};
