//! The loads: each is a file with one function, and a row of [`ALL`].
//!
//! A load runs until it is dropped, and starts again whatever the driver ends. It stays on this machine: it
//! uses a unix socket, and an address of the loopback device.

mod half_preface;
mod idle;
mod malformed;
mod metrics_unread;
mod no_load;
mod one_byte_headers;
mod oversized;
mod resets;
mod silent;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use crate::target::Target;

/// A load.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// What it does; `{}` stands for the number.
    pub(crate) what: &'static str,
    /// The number at full scale.
    pub(crate) full: usize,
    pub(crate) run: fn(Aim, Scale) -> Running,
}

pub(crate) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) const ALL: &[Load] = &[
    no_load::LOAD,
    metrics_unread::LOAD,
    silent::LOAD,
    idle::LOAD,
    idle::LOAD_OF_MANY,
    half_preface::LOAD,
    one_byte_headers::LOAD,
    resets::LOAD,
    oversized::LOAD,
    malformed::LOAD,
];

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

/// Runs this number of clients at the same time, and starts each again when it ends.
async fn many<F: Future<Output = std::io::Result<()>> + Send + 'static>(
    count: usize,
    client: impl Fn() -> F + Clone + Send + 'static,
) {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        clients.spawn(async move {
            loop {
                // Starts again, however it ended.
                drop(client().await);
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    while clients.join_next().await.is_some() {}
}
