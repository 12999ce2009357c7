//! Blocking work, kept off the threads that serve calls, on a bounded number of threads.
//!
//! A burst of calls would otherwise take a thread for each call, and glibc's allocator keeps memory for each
//! thread. Operations and queries have places of their own, so that a probe or the usage of a volume never
//! waits behind filesystems that are created.

use std::future::Future;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::error::{Error, Result};

/// The threads that work for operations at a time. A storm of calls is served in the order of arrival.
static OPERATIONS: Semaphore = Semaphore::const_new(12);
/// The threads that work for queries at a time, which change nothing: Probe, the usage and health of volumes.
static QUERIES: Semaphore = Semaphore::const_new(4);
/// How long work keeps its place. Longer work, such as a copy or a server that does not answer, goes on
/// beside the places, so that it never keeps other volumes waiting for longer.
const PLACE_LIMIT: Duration = Duration::from_secs(10);

tokio::task_local! {
    static PLACES: &'static Semaphore;
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Operation,
    Query,
}

/// Runs a call; its blocking work has the places of this kind.
pub(crate) async fn with_places<T>(kind: Kind, call: impl Future<Output = T>) -> T {
    let places = match kind {
        Kind::Operation => &OPERATIONS,
        Kind::Query => &QUERIES,
    };
    PLACES.scope(places, call).await
}

/// Runs `work`, which is allowed to block, on a separate thread, and waits for it.
///
/// Use it for system calls, programs and files, and for everything in `csi-mount`. At most 12 threads work for
/// operations at a time, and 4 for calls that change nothing; more work waits in the order of its arrival. Work
/// that takes longer than 10 s no longer counts.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> csi_core::Result<()> {
/// let here = csi_core::blocking(|| Ok(std::env::current_dir()?)).await?;
/// # drop(here);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of `work`, and [`Error::Internal`] when it panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let places = PLACES.try_with(|places| *places).unwrap_or(&OPERATIONS);
    in_place(places, work).await
}

async fn in_place<T: Send + 'static>(
    places: &Semaphore,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let span = tracing::Span::current();
    let place = places.acquire().await.map_err(Error::internal)?;
    let mut task = tokio::task::spawn_blocking(move || span.in_scope(work));
    let joined = match tokio::time::timeout(PLACE_LIMIT, &mut task).await {
        Ok(joined) => joined,
        Err(_) => {
            drop(place);
            task.await
        }
    };
    match joined {
        Ok(done) => done,
        Err(error) => Err(Error::internal(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    /// Work in a place, which has begun when this returns, and ends when the sender is dropped.
    async fn begun(places: &'static Semaphore) -> (Sender<()>, JoinHandle<Result<()>>) {
        let (end, ended) = channel::<()>();
        let (started, has_started) = oneshot::channel();
        let work = tokio::spawn(in_place(places, move || {
            let _ = started.send(());
            let _ = ended.recv();
            Ok(())
        }));
        has_started.await.expect("the work begins");
        (end, work)
    }

    #[tokio::test(start_paused = true)]
    async fn work_waits_for_a_place_and_long_work_gives_its_place_away() {
        static TWO: Semaphore = Semaphore::const_new(2);
        let (end, one) = begun(&TWO).await;
        let (other_end, other) = begun(&TWO).await;
        let next = tokio::spawn(in_place(&TWO, || Ok(())));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!next.is_finished() && TWO.available_permits() == 0, "the next work has no place");

        tokio::time::advance(PLACE_LIMIT).await;
        next.await.expect("no panic").expect("long work gives its place away");
        assert!(!one.is_finished() && !other.is_finished());
        drop((end, other_end));
        for work in [one, other] {
            work.await.expect("no panic").expect("long work goes on to its end");
        }
        assert_eq!(TWO.available_permits(), 2);
    }

    #[tokio::test]
    async fn queries_have_places_of_their_own() {
        let places = || PLACES.with(|places| std::ptr::from_ref(*places));
        let of_query = with_places(Kind::Query, async { places() }).await;
        let of_operation = with_places(Kind::Operation, async { places() }).await;
        assert_ne!(of_query, of_operation);
    }
}
