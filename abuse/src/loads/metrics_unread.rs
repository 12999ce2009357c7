//! Scrapers that send many requests and read no answer.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Load, many};

/// The number of requests from each scraper.
const REQUESTS: usize = 2000;

pub(super) const LOAD: Load = Load {
    name: "metrics-unread",
    what: "{} connections that pipeline 2000 GET /metrics and read nothing",
    full: 64,
    run: |aim, scale| {
        Box::pin(many(scale.of(64), move || {
            let health = aim.health;
            async move {
                let Some(address) = health else { return std::future::pending().await };
                let mut stream = TcpStream::connect(address).await?;
                stream
                    .write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(REQUESTS).as_bytes())
                    .await?;
                // It reads once in an hour.
                tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
                stream.read_u8().await.map(drop)
            }
        }))
    },
};
