//! The machine that a call works on: the kernel, or in a test a simulated node.
//!
//! It belongs to the plugin ([`Plugin::machine`](crate::Plugin::machine)), and is in force while one of the
//! plugin's calls runs, also on the threads of [`blocking`](crate::blocking()).

use std::sync::{Arc, LazyLock};

use csi_mount::{Kernel, Machine};

static KERNEL: LazyLock<Arc<dyn Machine>> = LazyLock::new(|| Arc::new(Kernel));

tokio::task_local! {
    static CURRENT: Arc<dyn Machine>;
}

/// Returns the machine that the running call works on.
///
/// The ready-made node plugins and the methods of requests use it. A driver needs it for what it does itself
/// on the node, for example to attach a loop device; then its tests need neither root nor a kernel:
///
/// ```no_run
/// use std::path::{Path, PathBuf};
/// use csi_core::{Result, blocking, machine, mount::LoopOptions};
///
/// async fn attach(image: PathBuf) -> Result<PathBuf> {
///     blocking(move || Ok(machine().loop_attach(&image, &LoopOptions::new())?.path)).await
/// }
/// ```
///
/// It is [`Kernel`] unless the plugin has another one ([`Plugin::machine`](crate::Plugin::machine)). A task
/// or thread that the driver starts itself has the kernel: pass the machine to it.
pub fn machine() -> Arc<dyn Machine> {
    CURRENT.try_with(Arc::clone).unwrap_or_else(|_| Arc::clone(&KERNEL))
}

/// Completes the future on this machine.
pub(crate) async fn on_machine<F: Future>(machine: Arc<dyn Machine>, work: F) -> F::Output {
    CURRENT.scope(machine, work).await
}

/// Does the work, which is allowed to block, on this machine.
pub(crate) fn with_machine<T>(machine: Arc<dyn Machine>, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(machine, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_and_its_blocking_work_have_the_plugins_machine() {
        let plugins: Arc<dyn Machine> = Arc::new(Kernel);
        let is_plugins = |found: &Arc<dyn Machine>| Arc::ptr_eq(found, &plugins);
        let (here, there) = on_machine(Arc::clone(&plugins), async {
            (machine(), crate::blocking(|| Ok(machine())).await.expect("no error"))
        })
        .await;
        assert!(is_plugins(&here) && is_plugins(&there) && !is_plugins(&machine()));
    }
}
