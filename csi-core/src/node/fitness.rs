//! What a ready-made node plugin looks at when it starts: whether the node is fit for it.

use std::path::PathBuf;

use csi_mount::{Filesystem, Verdict, self_check};

/// Where the kubelet keeps its volumes unless it is told otherwise.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// The look at the node that is due.
#[derive(Debug)]
pub(crate) struct Fitness {
    pub(super) kubelet_root: PathBuf,
    filesystems: Vec<Filesystem>,
}

impl Fitness {
    pub(super) fn of(filesystems: Vec<Filesystem>) -> Self {
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
