//! Blocking work, kept off the threads that serve calls, on a bounded number of threads.
//!
//! A burst of calls would otherwise take a thread for each call, and glibc's allocator keeps memory for each
//! thread. Operations and queries have places of their own, so that a probe or the usage of a volume never
//! waits behind filesystems that are created.
//!
//! A thread that has a place takes the next work itself. If each work had a thread of its own, the next one would begin
//! before the last one's thread is idle again, and on a busy machine there would be many.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// The threads that work for operations at a time. A storm of calls is served in the order of arrival.
static OPERATIONS: Places = Places::new(12);
/// The threads that work for queries at a time, which change nothing: Probe, the usage and health of volumes.
static QUERIES: Places = Places::new(4);
/// How long work keeps its place. Longer work, such as a copy or a server that does not answer, goes on
/// beside the places, so that it never keeps other volumes waiting for longer.
const PLACE_LIMIT: Duration = Duration::from_secs(10);

tokio::task_local! {
    static PLACES: &'static Places;
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
    places: &'static Places,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let span = tracing::Span::current();
    let (begins, begun) = oneshot::channel();
    let (ends, mut ended) = oneshot::channel();
    let progress = Arc::new(Progress::default());
    let work = move || {
        // A caller that has left while the work waited does not want it any more.
        if begins.send(()).is_ok() {
            // `move`: the hold on the span ends before the caller goes on, not after its call.
            let done = catch_unwind(AssertUnwindSafe(move || span.in_scope(work)));
            let _ = ends.send(done);
        }
    };
    places.add(Job { work: Box::new(work), progress: Arc::clone(&progress) });
    let stopped = |_| Error::internal(std::io::Error::other("the runtime stops"));
    begun.await.map_err(stopped)?;
    let done = match tokio::time::timeout(PLACE_LIMIT, &mut ended).await {
        Ok(done) => done,
        Err(_) => {
            places.give_away(&progress);
            ended.await
        }
    };
    match done.map_err(stopped)? {
        Ok(done) => done,
        // The panic's text is in the log already, by the panic hook.
        Err(_) => Err(Error::internal(std::io::Error::other("the work panicked"))),
    }
}

/// A bounded number of threads for each runtime, and the work that waits for one. A process has one runtime; those of
/// several tests can be in different mount namespaces, which a thread inherits from the one that makes it.
struct Places {
    most: usize,
    runtimes: Mutex<Vec<(Id, State)>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// The threads that have a place.
    threads: usize,
}

struct Job {
    work: Box<dyn FnOnce() + Send>,
    progress: Arc<Progress>,
}

/// Changed under the lock of the places only.
#[derive(Default)]
struct Progress {
    is_done: AtomicBool,
    /// Its thread has no place any more.
    is_beside: AtomicBool,
}

impl Places {
    const fn new(most: usize) -> Self {
        Self { most, runtimes: Mutex::new(Vec::new()) }
    }

    /// Changes the state of this runtime. No work runs under the lock, so the poison of a panic is ignored.
    fn change<T>(&self, runtime: Id, change: impl FnOnce(&mut State) -> T) -> T {
        let mut runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        let place = runtimes.iter().position(|(id, _)| *id == runtime).unwrap_or_else(|| {
            runtimes.push((runtime, State::default()));
            runtimes.len() - 1
        });
        let (_, state) = &mut runtimes[place];
        let changed = change(state);
        if state.threads == 0 && state.waiting.is_empty() {
            runtimes.swap_remove(place);
        }
        changed
    }

    fn add(&'static self, job: Job) {
        let runtime = Handle::current();
        self.change(runtime.id(), |state| state.waiting.push_back(job));
        self.fill(&runtime);
    }

    /// Starts a thread if a place is free and work waits.
    fn fill(&'static self, runtime: &Handle) {
        let has_place = self.change(runtime.id(), |state| {
            let has_place = state.threads < self.most && !state.waiting.is_empty();
            state.threads += usize::from(has_place);
            has_place
        });
        if has_place {
            let thread = Thread { places: self, runtime: runtime.id(), has_place };
            runtime.spawn_blocking(move || thread.work());
        }
    }

    fn give_away(&'static self, progress: &Progress) {
        let runtime = Handle::current();
        self.change(runtime.id(), |state| {
            if !progress.is_done.load(Ordering::Relaxed) {
                progress.is_beside.store(true, Ordering::Relaxed);
                state.threads -= 1;
            }
        });
        self.fill(&runtime);
    }
}

/// A thread with a place. A runtime that stops drops it before it has begun.
struct Thread {
    places: &'static Places,
    runtime: Id,
    has_place: bool,
}

impl Thread {
    fn work(mut self) {
        while let Some(job) = self.next() {
            (job.work)();
            self.has_place = self.places.change(self.runtime, |_| {
                job.progress.is_done.store(true, Ordering::Relaxed);
                !job.progress.is_beside.load(Ordering::Relaxed)
            });
        }
    }

    fn next(&mut self) -> Option<Job> {
        if !self.has_place {
            return None;
        }
        let job = self.places.change(self.runtime, |state| {
            let job = state.waiting.pop_front();
            state.threads -= usize::from(job.is_none());
            job
        });
        self.has_place = job.is_some();
        job
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.has_place {
            // Nobody waits for the work of a runtime that stops.
            self.places.change(self.runtime, |state| *state = State::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use std::collections::HashSet;
    use std::thread;

    use tokio::runtime::Builder;
    use tokio::task::{JoinHandle, JoinSet};

    use super::*;

    /// Work in a place, which has begun when this returns, and ends when the sender is dropped.
    async fn begun(places: &'static Places) -> (Sender<()>, JoinHandle<Result<()>>) {
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
        static TWO: Places = Places::new(2);
        let (end, one) = begun(&TWO).await;
        let (other_end, other) = begun(&TWO).await;
        let next = tokio::spawn(in_place(&TWO, || Ok(())));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(threads(&TWO), 2, "the next work has no place");
        assert!(!next.is_finished());

        tokio::time::advance(PLACE_LIMIT).await;
        next.await.expect("no panic").expect("long work gives its place away");
        assert!(!one.is_finished() && !other.is_finished());
        drop((end, other_end));
        for work in [one, other] {
            work.await.expect("no panic").expect("long work goes on to its end");
        }
        all_free(&TWO).await;
    }

    /// How many threads have a place, also those that have not begun yet.
    fn threads(places: &Places) -> usize {
        places.runtimes.lock().expect("no panic").iter().map(|(_, state)| state.threads).sum()
    }

    /// Waits until no thread has a place: each ends after the work that it did last.
    async fn all_free(places: &'static Places) {
        while !places.runtimes.lock().expect("no panic").is_empty() {
            tokio::task::yield_now().await;
        }
    }

    /// A thread that ended after each work would be slow to become idle on a busy machine, and another one would begin.
    #[tokio::test]
    async fn a_thread_takes_the_next_work_itself() {
        static THREE: Places = Places::new(3);
        let held = [begun(&THREE).await, begun(&THREE).await, begun(&THREE).await];
        let mut works = JoinSet::new();
        for _ in 0..300 {
            works.spawn(in_place(&THREE, || {
                thread::yield_now();
                Ok(thread::current().id())
            }));
        }
        let waiting = || THREE.change(Handle::current().id(), |state| state.waiting.len());
        while waiting() < 300 {
            tokio::task::yield_now().await;
        }
        drop(held);
        let threads: HashSet<_> = works.join_all().await.into_iter().map(|id| id.expect("an id")).collect();
        assert!(threads.len() <= 3, "{threads:?}");
        all_free(&THREE).await;
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_its_place_is_free() {
        static ONE: Places = Places::new(1);
        let panicked: Result<()> = in_place(&ONE, || panic!("on purpose")).await;
        assert!(matches!(panicked, Err(Error::Internal(_))), "{panicked:?}");
        assert_eq!(in_place(&ONE, || Ok(1)).await.expect("a place"), 1);
    }

    #[test]
    fn a_thread_works_for_its_own_runtime_only() {
        static ONE: Places = Places::new(1);
        let runtimes =
            [(), ()].map(|()| Builder::new_current_thread().enable_all().build().expect("a runtime"));
        let names = || async {
            let work = || in_place(&ONE, || Ok(Handle::current().id()));
            [work().await.expect("an id"), work().await.expect("an id")]
        };
        thread::scope(|scope| {
            let works = runtimes.each_ref().map(|runtime| scope.spawn(move || runtime.block_on(names())));
            for (work, runtime) in works.into_iter().zip(&runtimes) {
                assert_eq!(work.join().expect("no panic"), [runtime.handle().id(); 2]);
            }
        });
    }

    #[test]
    fn a_runtime_that_stops_leaves_nothing() {
        static ONE: Places = Places::new(1);
        let runtime = Builder::new_current_thread().max_blocking_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (end, ended) = channel::<()>();
        runtime.spawn_blocking(move || ended.recv());
        runtime.spawn(in_place(&ONE, || Ok(())));
        runtime.block_on(tokio::task::yield_now());
        let is_empty = || ONE.runtimes.lock().expect("no panic").is_empty();
        assert!(!is_empty(), "it waits for the one thread");
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        drop(end);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !is_empty() {
            assert!(std::time::Instant::now() < until, "its place is kept");
            thread::yield_now();
        }
        // The thread of a later work never begins.
        let _entered = handle.enter();
        ONE.add(Job { work: Box::new(|| ()), progress: Arc::default() });
        assert!(is_empty(), "its place is kept");
    }

    #[tokio::test]
    async fn queries_have_places_of_their_own() {
        let places = || PLACES.with(|places| std::ptr::from_ref(*places));
        let of_query = with_places(Kind::Query, async { places() }).await;
        let of_operation = with_places(Kind::Operation, async { places() }).await;
        assert_ne!(of_query, of_operation);
    }
}
