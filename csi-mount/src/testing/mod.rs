//! Mount namespaces for tests, and [`SimulatedNode`], which needs no kernel. Whatever a test mounts in a
//! namespace is gone when its thread ends.
//!
//! Only with the `testing` feature. Mount namespaces belong to threads, so each test of one process can
//! have its own. Inside, use `/proc/thread-self` instead of `/proc/self`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};

mod disks;
mod simulated;

pub use crate::sys::features::Feature;
pub use disks::{FakeDisk, FakeDisks, FoundDisk};
pub use simulated::SimulatedNode;

/// Runs the closure on its own thread, in its own mount namespace, and returns its result.
///
/// The namespace receives mounts from the one it was made in and sends none back. Threads that the closure
/// starts are in it too.
///
/// # Panics
/// With the closure's own panic, and when the process is not allowed to make a namespace: run the tests as
/// root, or with `unshare --user --map-root-user`.
pub fn private_mount_namespace<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_namespace();
            run()
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Makes a mount of this namespace shared, so that mounts on it propagate to its peers, as the kubelet's
/// root does.
///
/// # Panics
/// When nothing is mounted there.
pub fn share(mount: &std::path::Path) {
    mount_change(mount, MountPropagationFlags::SHARED).expect("make the mount shared");
}

/// Runs the closure as on a kernel that lacks these features. This affects only the current thread.
pub fn without_features<T>(features: &[Feature], run: impl FnOnce() -> T) -> T {
    crate::sys::features::without(features, run)
}

/// Returns the parts of a device that [`probe`](crate::BlockDevice::probe) reads, in its order, so that a
/// test can read the same parts without it.
pub fn probe_reads(device: &crate::BlockDevice) -> Vec<std::ops::Range<u64>> {
    crate::filesystem::probe::reads(device)
}

/// `PTRACE_LISTEN`, for a process that the calling thread has seized and a signal has stopped: the process
/// stays stopped, and its parent sees the stop.
///
/// # Errors
/// As `ptrace(2)`.
pub fn ptrace_listen(process: i32) -> std::io::Result<()> {
    crate::sys::ptrace::listen(process)
}

type Answer = Box<dyn Any + Send>;
type Job = Box<dyn FnOnce() -> Answer + Send>;
type Queued = (Job, mpsc::Sender<thread::Result<Answer>>);

/// A second mount namespace, made from the current thread's, that receives what is mounted on shared
/// mounts.
///
/// Use it for what the host sees of a plugin's mounts, or a pod of the host's.
#[derive(Debug)]
pub struct PeerNamespace {
    jobs: Option<mpsc::Sender<Queued>>,
    thread: Option<JoinHandle<()>>,
}

impl PeerNamespace {
    /// A copy of the calling thread's namespace. Make mounts [shared](share) before.
    ///
    /// # Panics
    /// As [`private_mount_namespace`].
    pub fn new() -> Self {
        let (jobs, queue) = mpsc::channel::<Queued>();
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            enter_namespace();
            ready.send(()).expect("the maker waits");
            for (job, answer) in queue {
                // The receiver is gone only if its thread panicked, which is reported there.
                let _ = answer.send(catch_unwind(AssertUnwindSafe(job)));
            }
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
        let job: Job = Box::new(move || Box::new(run()));
        let jobs = self.jobs.as_ref().expect("the queue lives until drop");
        jobs.send((job, answer)).expect("the namespace's thread lives until drop");
        Box::new(move || match result.recv().expect("each job is answered") {
            Ok(value) => *value.downcast().expect("the job's own type"),
            Err(panic) => resume_unwind(panic),
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

fn enter_namespace() {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
        panic!("create a mount namespace: {error}; run as root, or under `unshare --user --map-root-user`");
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .expect("stop sending mounts to the host");
}
