//! Claims for work of the driver's own.

use std::fmt;
use std::sync::Arc;

use super::table::{Admission, Permit};
use super::{Claim, Key};
use crate::ids::{SnapshotId, VolumeId};

/// Claims volumes and snapshots for the driver's own work, so that no operation runs on them meanwhile: from
/// a background task (a scrub, a rebalance), or from an additional gRPC service.
/// [`Plugin::claims`](crate::Plugin::claims) returns it.
///
/// While a claim is held, an operation that needs the same thing is ABORTED, and its caller retries. So hold
/// a claim for seconds, not for minutes. Claims last until the end of the process, not beyond it. A stop
/// waits for held claims, as long as the grace period allows.
///
/// A driver's method already holds the claims of its own RPC (docs/admission.md): it waits forever if it
/// claims its own volume.
///
/// ```
/// # async fn scrub_blocks(_: &csi_core::VolumeId) {}
/// use csi_core::{Claims, Plugin, VolumeId};
///
/// async fn scrub(claims: Claims, volumes: Vec<VolumeId>) {
///     for volume in volumes {
///         let claim = claims.volume(&volume).await;
///         scrub_blocks(&volume).await;
///         drop(claim);
///     }
/// }
///
/// let plugin = Plugin::new("driver.csi.example.org", "1");
/// let claims = plugin.claims();
/// # let _ = scrub(claims, vec![]);
/// ```
#[derive(Clone)]
pub struct Claims(pub(crate) Arc<Admission>);

impl Claims {
    /// Waits until no operation of the controller runs on the volume, and claims it alone. Limit the time
    /// with [`tokio::time::timeout`]. Operations that start meanwhile can come first.
    pub async fn volume(&self, volume_id: &VolumeId) -> Claimed {
        self.wait_for(Key::Volume(volume_id.as_str().to_owned())).await
    }

    /// Waits until no operation of this node runs on the volume, and claims it alone on this node. The
    /// controller's operations are not excluded.
    pub async fn volume_on_node(&self, volume_id: &VolumeId) -> Claimed {
        self.wait_for(Key::NodeVolume(volume_id.as_str().to_owned())).await
    }

    /// Waits until the snapshot is neither deleted nor copied, and claims it alone.
    pub async fn snapshot(&self, snapshot_id: &SnapshotId) -> Claimed {
        self.wait_for(Key::Snapshot(snapshot_id.as_str().to_owned())).await
    }

    async fn wait_for(&self, key: Key) -> Claimed {
        Claimed { _permit: self.0.wait_for(vec![Claim::alone(key)]).await }
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").finish_non_exhaustive()
    }
}

/// A claim that is held until it is dropped.
#[must_use = "the claim is released when this is dropped"]
pub struct Claimed {
    _permit: Permit,
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").finish_non_exhaustive()
    }
}
