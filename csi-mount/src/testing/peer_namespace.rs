//! A second mount namespace for a test.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use super::enter_namespace;

type Job = Box<dyn FnOnce() + Send>;

/// A second mount namespace, made from the current thread's, that receives what is mounted on shared
/// mounts.
///
/// Use it for what the host sees of a plugin's mounts, or a pod of the host's.
#[derive(Debug)]
pub struct PeerNamespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl PeerNamespace {
    /// A copy of the calling thread's namespace. Make mounts [shared](super::share) before.
    ///
    /// # Panics
    /// As [`private_mount_namespace`](super::private_mount_namespace).
    pub fn new() -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            enter_namespace();
            ready.send(()).expect("the maker waits");
            queue.into_iter().for_each(|job| job());
        });
        is_ready.recv().expect("enter a mount namespace (needs root)");
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    /// Starts the closure in the namespace; the returned function waits for its result.
    ///
    /// # Panics
    /// The returned function panics if the closure panicked.
    pub fn start<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Box<dyn FnOnce() -> T> {
        let (answer, result) = mpsc::channel();
        let job = move || {
            // The receiver is gone only if its thread panicked, which is reported there.
            let _ = answer.send(catch_unwind(AssertUnwindSafe(run)));
        };
        let jobs = self.jobs.as_ref().expect("the queue lives until drop");
        jobs.send(Box::new(job)).expect("the namespace's thread lives until drop");
        Box::new(move || {
            let result = result.recv().expect("each job is answered");
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Runs the closure in the namespace and returns its result.
    ///
    /// # Panics
    /// With the closure's panic.
    pub fn run<T: Send + 'static>(&self, run: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(run)()
    }
}

impl Default for PeerNamespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PeerNamespace {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, was reported when it happened.
            let _ = thread.join();
        }
    }
}
