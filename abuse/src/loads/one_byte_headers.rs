//! Header blocks that never end, sent byte by byte.

use tokio::io::AsyncWriteExt;

use super::{Load, many};
use crate::frames::{self, CONTINUATION, HEADERS, frame};

pub(super) const LOAD: Load = Load {
    name: "one-byte-headers",
    what: "{} connections that send a header block of 256 KiB without an end, byte by byte",
    full: 4,
    run: |aim, scale| {
        Box::pin(many(scale.of(4), move || {
            let socket = aim.socket.clone();
            async move {
                let mut stream = frames::open(&socket).await?;
                for nth in 0..16 {
                    let kind = if nth == 0 { HEADERS } else { CONTINUATION };
                    for byte in frame(kind, 0, 1, &[0; 16_384]) {
                        stream.write_all(&[byte]).await?;
                    }
                }
                Ok(())
            }
        }))
    },
};
