//! The check that a ready-made node plugin makes when it starts: whether the node has what volumes need.

use std::path::PathBuf;

use csi_mount::{Filesystem, Machine, Verdict};

use super::{Node, NodeService};

/// The kubelet's default directory.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// The check of the node that is still to run.
#[derive(Debug)]
pub(crate) struct Fitness {
    kubelet_root: PathBuf,
    filesystems: Vec<Filesystem>,
}

impl Fitness {
    fn of(filesystems: Vec<Filesystem>) -> Self {
        Self { kubelet_root: KUBELET_ROOT.into(), filesystems }
    }

    /// Checks the node and logs the result. No finding keeps the plugin from starting: each can be fixed
    /// while it runs, and a call that needs what is missing reports it.
    pub(crate) fn look(&self, machine: &dyn Machine) {
        let report = machine.self_check(&self.kubelet_root, &self.filesystems);
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

impl<D: Node> NodeService<D> {
    /// Checks the node when the plugin starts, as the ready-made node plugins do, and logs what is missing
    /// for volumes with these filesystems. For a driver's node plugin that is built on the ready-made ones.
    #[must_use]
    pub fn self_check(mut self, filesystems: &[Filesystem]) -> Self {
        self.table.fitness = Some(Fitness::of(filesystems.to_vec()));
        self
    }

    /// Sets the kubelet's directory, if it is not `/var/lib/kubelet`. The ready-made node plugins check it
    /// when they start, and log what prevents pods of this node from seeing their volumes
    /// ([`csi_mount::self_check`]).
    #[must_use]
    pub fn kubelet_root(mut self, path: impl Into<PathBuf>) -> Self {
        if let Some(fitness) = &mut self.table.fitness {
            fitness.kubelet_root = path.into();
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
