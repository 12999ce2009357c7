//! Connections to the socket that are opened correctly and then do nothing.

use tokio::io::AsyncReadExt;

use super::{Aim, Load, Running, many};
use crate::frames;

/// Twice the number of connections that a driver serves.
const SOME: usize = 2000;
/// More than the kernel's queue for a driver's accept(2).
const MANY: usize = 10_000;

pub(super) const LOAD: Load = Load {
    name: "idle",
    what: "{} idle connections to the socket",
    full: SOME,
    run: |aim, scale| run(aim, scale.of(SOME)),
};

pub(super) const LOAD_OF_MANY: Load = Load {
    name: "idle-many",
    what: "{} idle connections to the socket",
    full: MANY,
    run: |aim, scale| run(aim, scale.of(MANY)),
};

fn run(aim: Aim, count: usize) -> Running {
    Box::pin(many(count, move || {
        let socket = aim.socket.clone();
        async move {
            let mut stream = frames::open(&socket).await?;
            let mut answer = [0; 512];
            while stream.read(&mut answer).await? > 0 {}
            Ok(())
        }
    }))
}
