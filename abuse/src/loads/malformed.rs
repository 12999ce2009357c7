//! Messages that are not protobuf.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Load, many};
use crate::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, call, frame};

pub(super) const LOAD: Load = Load {
    name: "malformed",
    what: "{} connections, each of 100 calls with messages that are no protobuf",
    full: 16,
    run: |aim, scale| {
        Box::pin(many(scale.of(16), move || {
            let socket = aim.socket.clone();
            async move {
                let mut stream = frames::open(&socket).await?;
                let block = call("/csi.v1.Node/NodeUnpublishVolume");
                for nth in 0..100 {
                    stream.write_all(&frame(HEADERS, END_HEADERS, 2 * nth + 1, &block)).await?;
                    let message = [&[0, 0, 0, 0, 8][..], &[0xff; 8]].concat();
                    stream.write_all(&frame(DATA, END_STREAM, 2 * nth + 1, &message)).await?;
                }
                let mut answer = [0; 65_536];
                stream.read(&mut answer).await.map(drop)
            }
        }))
    },
};
