//! The machine that a call works on: the kernel, or in a test a simulated node.
//!
//! It belongs to the plugin ([`Plugin::machine`](crate::Plugin::machine)), and is in force while one of the
//! plugin's calls runs, also on the threads of [`blocking`](crate::blocking()).

use std::sync::Arc;

use csi_mount::{
    BlockSteps, DeviceSteps, DirectorySteps, EphemeralSteps, FuseSteps, Kernel, Machine, MountQuestions,
    SharedSteps,
};

tokio::task_local! {
    static CURRENT: CurrentMachine;
}

/// Returns the machine that the running call works on.
///
/// The ready-made node plugins and the methods of requests use it. A driver needs it for what it does itself
/// on the node, for example to attach a loop device; then its tests need neither root nor a kernel:
///
/// ```no_run
/// use std::path::{Path, PathBuf};
/// use csi_core::{Result, blocking, machine, mount::{LoopOptions, Machine}};
///
/// async fn attach(image: PathBuf) -> Result<PathBuf> {
///     blocking(move || Ok(machine().devices().loop_attach(&image, &LoopOptions::new())?.path)).await
/// }
/// ```
///
/// It is [`Kernel`] unless the plugin has another one ([`Plugin::machine`](crate::Plugin::machine)). A task
/// or thread that the driver starts itself has the kernel: pass the machine to it.
pub fn machine() -> CurrentMachine {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// The machine of a call, as [`machine()`] returns it. A clone is the same machine.
///
/// The kernel is called directly and not through `dyn Machine`, so that a driver links only the kinds of
/// storage that it uses.
#[derive(Debug, Clone, Default)]
pub struct CurrentMachine(Option<Arc<dyn Machine>>);

impl CurrentMachine {
    /// The machine of a plugin that does not work on the kernel.
    pub(crate) fn other(machine: impl Machine) -> Self {
        Self(Some(Arc::new(machine)))
    }
}

impl Machine for CurrentMachine {
    fn mounts(&self) -> &dyn MountQuestions {
        self.0.as_ref().map_or(&Kernel, |other| other.mounts())
    }

    fn directories(&self) -> &dyn DirectorySteps {
        self.0.as_ref().map_or(&Kernel, |other| other.directories())
    }

    fn devices(&self) -> &dyn DeviceSteps {
        self.0.as_ref().map_or(&Kernel, |other| other.devices())
    }

    fn block(&self) -> &dyn BlockSteps {
        self.0.as_ref().map_or(&Kernel, |other| other.block())
    }

    fn shared(&self) -> &dyn SharedSteps {
        self.0.as_ref().map_or(&Kernel, |other| other.shared())
    }

    fn fuse(&self) -> &dyn FuseSteps {
        self.0.as_ref().map_or(&Kernel, |other| other.fuse())
    }

    fn ephemeral(&self) -> &dyn EphemeralSteps {
        self.0.as_ref().map_or(&Kernel, |other| other.ephemeral())
    }
}

/// Completes the future on this machine.
pub(crate) async fn on_machine<F: Future>(machine: CurrentMachine, work: F) -> F::Output {
    CURRENT.scope(machine, work).await
}

/// Does the work, which is allowed to block, on this machine.
pub(crate) fn with_machine<T>(machine: CurrentMachine, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(machine, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_and_its_blocking_work_have_the_plugins_machine() {
        let plugins = CurrentMachine::other(Kernel);
        let is_plugins = |found: &CurrentMachine| match (&found.0, &plugins.0) {
            (Some(found), Some(plugins)) => Arc::ptr_eq(found, plugins),
            _ => false,
        };
        let (here, there) = on_machine(plugins.clone(), async {
            (machine(), crate::blocking(|| Ok(machine())).await.expect("no error"))
        })
        .await;
        assert!(is_plugins(&here) && is_plugins(&there) && !is_plugins(&machine()));
    }
}
