//! Frees on their devices what the filesystems of this node's volumes do not use any more, again and again.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use csi_mount::{Filesystem, Host, MountAttributes};

use crate::admission::Claims;
use crate::blocking::blocking;
use crate::error::Result;
use crate::ids::VolumeId;

/// How much of a device is worked on at a time, and the pause after it: other requests of the device come between.
const PIECE: u64 = 16 << 30;
const PAUSE: Duration = Duration::from_secs(1);

/// A volume that is mounted on this node.
struct Mounted {
    volume: VolumeId,
    at: PathBuf,
    filesystem: Filesystem,
}

/// Works on each volume once in each period, one after the other.
pub(crate) async fn trim_volumes(host: Host, driver: String, claims: Claims, period: Duration) {
    // A new version of the driver starts on all nodes at once.
    tokio::time::sleep(period.mul_f64(random())).await;
    loop {
        let asked = host.clone();
        let name = driver.clone();
        let volumes = blocking(move || mounted(&asked, &name)).await.unwrap_or_default();
        let share = period / (volumes.len() as u32 + 1);
        for volume in volumes {
            match trim(&host, &claims, &volume).await {
                Ok(bytes) => {
                    tracing::info!(volume = %volume.volume, bytes, "freed what its filesystem does not use");
                }
                Err(error) => {
                    tracing::info!(volume = %volume.volume, %error, "could not free what its filesystem does not use");
                }
            }
            tokio::time::sleep(share).await;
        }
        tokio::time::sleep(share).await;
    }
}

async fn trim(host: &Host, claims: &Claims, volume: &Mounted) -> Result<u64> {
    let size = {
        let host = host.clone();
        let at = volume.at.clone();
        blocking(move || Ok(host.block().device_size(&at)?)).await?
    };
    // btrfs frees what no chunk uses in each call.
    let piece = if volume.filesystem == Filesystem::Btrfs { size.max(1) } else { PIECE };
    let mut freed = 0;
    for start in (0..size).step_by(usize::try_from(piece).unwrap_or(usize::MAX)) {
        let host = host.clone();
        let at = volume.at.clone();
        // An unstage would find the mount busy.
        let claimed = claims.volume_on_node(&volume.volume).await;
        let piece = start..start.saturating_add(piece).min(size);
        let trimmed = blocking(move || Ok(host.block().trim(&at, piece)?)).await;
        drop(claimed);
        freed += trimmed?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(freed)
}

/// The driver's volumes with a filesystem that can be written, each at one of its mounts.
fn mounted(host: &Host, driver: &str) -> Result<Vec<Mounted>> {
    let mut devices = BTreeSet::new();
    let mut found = Vec::new();
    for mount in host.mounts().table()? {
        let Ok(filesystem) = mount.fs_type.parse() else { continue };
        if mount.attributes.contains(MountAttributes::RDONLY) {
            continue;
        }
        let owner = host.mounts().marked_owner(&mount.mount_point).ok().flatten();
        let Some(owner) = owner.filter(|owner| owner.driver == driver) else { continue };
        let Ok(volume) = VolumeId::new(owner.volume) else { continue };
        if devices.insert(mount.device.to_string()) {
            found.push(Mounted { volume, at: mount.mount_point, filesystem });
        }
    }
    Ok(found)
}

/// A number from 0 to 1, other in each process.
fn random() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}
