//! Calls that are reset immediately.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Load, many};
use crate::frames::{self, END_HEADERS, HEADERS, RST_STREAM, call, frame};

pub(super) const LOAD: Load = Load {
    name: "resets",
    what: "{} connections, each of calls that are reset at once, a thousand at a time",
    full: 8,
    run: |aim, scale| {
        Box::pin(many(scale.of(8), move || {
            let socket = aim.socket.clone();
            async move {
                let mut stream = frames::open(&socket).await?;
                let block = call("/csi.v1.Identity/Probe");
                let mut burst = Vec::new();
                for nth in 0..1000 {
                    burst.extend(frame(HEADERS, END_HEADERS, 2 * nth + 1, &block));
                    burst.extend(frame(RST_STREAM, 0, 2 * nth + 1, &8_u32.to_be_bytes()));
                }
                stream.write_all(&burst).await?;
                let mut answer = [0; 4096];
                while stream.read(&mut answer).await? > 0 {}
                Ok(())
            }
        }))
    },
};
