//! The loads: each is a file with one function, and a row of [`ALL`].
//!
//! A load runs until it is dropped, and begins again what the driver ends. It stays on this machine: a unix socket, and
//! an address of the loopback device.

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
    /// What it does; `{}` stands for how many.
    pub(crate) what: &'static str,
    /// How many, in full.
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

/// How much of a load, and for how long.
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

/// Where a load goes.
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

/// How long a client waits that was refused or cut off, before it begins again.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs so many of these clients at a time, each again and again.
async fn many<F: Future<Output = std::io::Result<()>> + Send + 'static>(
    count: usize,
    client: impl Fn() -> F + Clone + Send + 'static,
) {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        clients.spawn(async move {
            loop {
                // Whatever ends it: it begins again.
                drop(client().await);
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    while clients.join_next().await.is_some() {}
}
