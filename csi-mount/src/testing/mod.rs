//! Mount namespaces for tests, and [`SimulatedNode`], which needs no kernel. Whatever a test mounts in a
//! namespace is gone when its thread ends.
//!
//! Only with the `testing` feature. Mount namespaces belong to threads, so each test of one process can
//! have its own. Inside, use `/proc/thread-self` instead of `/proc/self`.

use std::panic::resume_unwind;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};

pub(crate) mod disks;
pub(crate) mod peer_namespace;
pub(crate) mod simulated;

pub use disks::FakeDisk;
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

fn enter_namespace() {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
        panic!("create a mount namespace: {error}; run as root, or under `unshare --user --map-root-user`");
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .expect("stop sending mounts to the host");
}
