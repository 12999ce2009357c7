//! The check that a ready-made node plugin makes when it starts: whether the node has what volumes need.

use std::path::PathBuf;

use csi_mount::{Machine, NodeNeed, Verdict};

use super::{Node, NodeService};
use crate::CurrentMachine;

/// The check of the node that is still to run.
#[derive(Debug)]
pub(crate) struct Fitness {
    kubelet_root: Option<PathBuf>,
    needs: Vec<NodeNeed>,
}

impl Fitness {
    /// Whether volumes are block devices.
    #[cfg(feature = "manifests")]
    pub(crate) fn needs_block_devices(&self) -> bool {
        self.needs.contains(&NodeNeed::BlockDevices)
    }

    /// Checks the node and logs the result. No finding keeps the plugin from starting: each can be fixed
    /// while it runs, and a call that needs what is missing reports it.
    pub(crate) fn look(&self, machine: &CurrentMachine, driver: &str, volume_roots: &[PathBuf]) {
        if self.needs.contains(&NodeNeed::Fuse) {
            log_lost(machine, driver);
        }
        let roots = self.kubelet_root.as_ref().map_or(volume_roots, std::slice::from_ref);
        let report = machine.mounts().self_check(roots, &self.needs);
        match report.verdict() {
            Verdict::Fine => tracing::info!("{report}"),
            _ => {
                for found in report.findings() {
                    match found.verdict {
                        Verdict::Broken => tracing::warn!("self-check: {found}"),
                        Verdict::Degraded => tracing::info!("self-check: {found}"),
                        Verdict::Fine => tracing::debug!("self-check: {found}"),
                    }
                }
            }
        }
    }
}

/// Logs which of the driver's FUSE filesystems lost their daemon while no plugin ran. Only a call brings the
/// secrets that a daemon can need, so none is started here.
fn log_lost(machine: &CurrentMachine, driver: &str) {
    let mounts = machine.mounts().table().unwrap_or_default();
    for mount in mounts.iter().filter(|mount| mount.fs_type.split('.').next() == Some("fuse")) {
        let at = &mount.mount_point;
        if let Ok(Some(owner)) = machine.mounts().marked_owner(at)
            && owner.driver == driver
            && machine.mounts().has_lost_daemon(at).unwrap_or(false)
        {
            tracing::warn!(volume = owner.volume, at = %at.display(), "a FUSE filesystem has lost its daemon \
                before the plugin started; the next publish starts the daemon again");
        }
    }
}

impl<D: Node> NodeService<D> {
    /// Checks the node when the plugin starts, as the ready-made node plugins do, and logs what is missing
    /// of the driver's needs ([`csi_mount::self_check`]). For a driver's node plugin that is built on the
    /// ready-made ones, and for a driver that needs other things than the ready-made one assumes.
    ///
    /// What prevents pods of this node from seeing their volumes is looked for at
    /// [`Plugin::volume_roots`](crate::Plugin::volume_roots).
    #[must_use]
    pub fn self_check(mut self, needs: &[NodeNeed]) -> Self {
        self.table.fitness = Some(Fitness { kubelet_root: None, needs: needs.to_vec() });
        self
    }

    /// Has the check of the node look at this directory, not at
    /// [`Plugin::volume_roots`](crate::Plugin::volume_roots).
    #[must_use]
    pub fn kubelet_root(mut self, path: impl Into<PathBuf>) -> Self {
        if let Some(fitness) = &mut self.table.fitness {
            fitness.kubelet_root = Some(path.into());
        }
        self
    }

    /// Starts without checking the node.
    #[must_use]
    pub fn without_self_check(mut self) -> Self {
        self.table.fitness = None;
        self
    }
}
