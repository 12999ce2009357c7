//! Connections to the HTTP port that send nothing.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::{Load, many};

pub(super) const LOAD: Load = Load {
    name: "silent",
    what: "{} connections to the HTTP port that say nothing",
    full: 200,
    run: |aim, scale| {
        Box::pin(many(scale.of(200), move || {
            let health = aim.health;
            async move {
                let Some(address) = health else { return std::future::pending().await };
                TcpStream::connect(address).await?.read_u8().await.map(drop)
            }
        }))
    },
};
