//! The check that a ready-made node plugin makes when it starts: whether the node has what volumes need.

use std::path::PathBuf;

use csi_mount::{Host, NodeNeed, Verdict};

/// The check of the node that is still to run.
#[derive(Debug)]
pub(crate) struct Fitness {
    needs: Vec<NodeNeed>,
    /// Whether the plugin's FUSE programs have pods of their own, if the plugin is [`FuseNode`](crate::FuseNode).
    #[cfg_attr(not(feature = "manifests"), allow(dead_code, reason = "only manifests are refused by it"))]
    pub(crate) has_fuse_pods: Option<bool>,
}

impl Fitness {
    pub(super) fn new(needs: &[NodeNeed]) -> Self {
        Self { needs: needs.to_vec(), has_fuse_pods: None }
    }

    #[cfg(feature = "manifests")]
    pub(crate) fn needs_block_devices(&self) -> bool {
        self.needs.contains(&NodeNeed::BlockDevices)
    }

    /// Whether no FUSE program of the plugin runs in a pod of its own.
    #[cfg(feature = "manifests")]
    pub(crate) fn lacks_fuse_pods(&self) -> bool {
        self.has_fuse_pods == Some(false) || !self.needs.contains(&NodeNeed::Fuse)
    }

    /// Checks the node and logs the result. No finding keeps the plugin from starting: each can be fixed
    /// while it runs, and a call that needs what is missing reports it.
    pub(crate) fn look(&self, host: &Host, driver: &str, volume_roots: &[PathBuf]) {
        if self.needs.contains(&NodeNeed::Fuse) {
            log_lost(host, driver);
        }
        let report = host.mounts().preflight(volume_roots, &self.needs);
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
fn log_lost(host: &Host, driver: &str) {
    let mounts = host.mounts().table().unwrap_or_default();
    for mount in mounts.iter().filter(|mount| mount.fs_type.split('.').next() == Some("fuse")) {
        let at = &mount.mount_point;
        if let Ok(Some(owner)) = host.mounts().marked_owner(at)
            && owner.driver == driver
            && host.mounts().has_lost_daemon(at).unwrap_or(false)
        {
            tracing::warn!(volume = owner.volume, at = %at.display(), "a FUSE filesystem has lost its daemon \
                before the plugin started; the next publish starts the daemon again");
        }
    }
}
