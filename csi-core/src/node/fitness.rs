//! What a ready-made node plugin looks at when it starts: whether the node is fit for it.

use std::path::PathBuf;

use csi_mount::{Filesystem, Verdict, self_check};

use super::{Node, NodeService};

/// Where the kubelet keeps its volumes unless it is told otherwise.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// The look at the node that is due.
#[derive(Debug)]
pub(crate) struct Fitness {
    kubelet_root: PathBuf,
    filesystems: Vec<Filesystem>,
}

impl Fitness {
    fn of(filesystems: Vec<Filesystem>) -> Self {
        Self { kubelet_root: KUBELET_ROOT.into(), filesystems }
    }

    /// Looks, and says in the log what was found. Nothing of it keeps the plugin from starting: each may be mended
    /// while it runs, and a call that needs it says so itself.
    pub(crate) fn look(&self) {
        let report = self_check(&self.kubelet_root, &self.filesystems);
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
    /// Has the node looked at when the plugin starts, as the ready-made node plugins do, and said in the log what is
    /// missing for volumes with these filesystems: for a node plugin that is made of those.
    #[must_use]
    pub fn self_check(mut self, filesystems: &[Filesystem]) -> Self {
        self.table.fitness = Some(Fitness::of(filesystems.to_vec()));
        self
    }

    /// Where the kubelet keeps its volumes, if it is not `/var/lib/kubelet`: the ready-made node plugins look at it when
    /// they start, and say in the log what keeps pods of this node from seeing their volumes
    /// ([`csi_mount::self_check`]).
    #[must_use]
    pub fn kubelet_root(mut self, path: impl Into<PathBuf>) -> Self {
        if let Some(fitness) = &mut self.table.fitness {
            fitness.kubelet_root = path.into();
        }
        self
    }

    /// Starts without a look at the node.
    #[must_use]
    pub fn without_self_check(mut self) -> Self {
        self.table.fitness = None;
        self
    }
}
