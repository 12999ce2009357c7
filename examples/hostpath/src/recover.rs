//! The repair at a start, after the last process was killed at any point.

use csi_core::mount::{mounts, thaw};
use csi_core::types::NodeId;
use csi_core::{Result, VolumeId};

use crate::content;
use crate::host::Host;
use crate::kind::Kind;

/// Completes or undoes unfinished operations. The stores have already removed their own unfinished objects.
pub(crate) fn recover(host: &Host) -> Result<()> {
    thaw_images(host)?;
    drop_members_without_group(host)?;
    finish_expansions(host);
    count(host)
}

/// Thaws the filesystems that were frozen for a copy: they stay frozen after the process is killed.
fn thaw_images(host: &Host) -> Result<()> {
    let kernel = csi_core::mount::Host::kernel();
    let table = mounts()?;
    let volumes = host.volumes.all().into_iter();
    let images = volumes.filter(|(_, record)| record.kind != Kind::Directory);
    for (id, record) in images {
        let image = record.kind.content(&host.volumes.place(&id));
        let devices = kernel.devices().loop_devices(&image).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        });
        for entry in table.iter().filter(|entry| devices.iter().any(|device| entry.is_on(device.number))) {
            match thaw(&entry.mount_point) {
                Ok(false) => {}
                Ok(true) => tracing::warn!("thawed {}, which was left frozen", entry.mount_point.display()),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }
    Ok(())
}

/// Deletes members whose group has no record: the group was never finished, or is deleted. A group whose
/// record can't be read exists, and so do its members.
fn drop_members_without_group(host: &Host) -> Result<()> {
    for (id, record) in host.snapshots.all() {
        let group = record.taken.group_snapshot_id();
        if group.is_some_and(|group| matches!(host.groups.find(group.as_str()), Ok(None))) {
            tracing::warn!(id, "removes a snapshot of a group that was not finished or is deleted");
            host.snapshots.remove(&id)?;
        }
    }
    Ok(())
}

/// Updates the record of a volume whose content has grown before its record did.
fn finish_expansions(host: &Host) {
    let kernel = csi_core::mount::Host::kernel();
    for (id, record) in host.volumes.all() {
        // A missing image is damage, which the volume's health reports.
        let Ok(Some(bytes)) = content::size(&kernel, record.kind, &host.volumes.place(&id)) else { continue };
        if bytes > record.created.capacity_bytes() {
            // On a full disk the driver starts nevertheless, so that volumes can be deleted. The retry of the
            // call writes the record.
            let updated = host.volumes.update(&id, |record| {
                record.created.expanded(bytes);
                Ok(())
            });
            match updated {
                Ok(_) => tracing::warn!(id, bytes, "finished an interrupted expansion"),
                Err(error) => tracing::info!(id, bytes, %error, "an expansion is not recorded"),
            }
        }
    }
}

/// Counts the space taken from the pools, and the attachments of each node.
fn count(host: &Host) -> Result<()> {
    let mut attached = Vec::new();
    for (id, record) in host.volumes.all() {
        host.pools.take(&record.pool, record.created.capacity_bytes());
        for node in record.attached.keys() {
            attached.push((NodeId::new(node)?, VolumeId::new(&id)?));
        }
    }
    host.attach_limit.rebuild(attached);
    for (_, record) in host.snapshots.all() {
        host.pools.take(&record.pool, record.taken.size_bytes());
    }
    Ok(())
}
