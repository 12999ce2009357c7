//! The repair at a start, after the last process was killed at any point.

use std::fs;
use std::path::Path;

use csi_core::mount::{mounts, thaw};
use csi_core::{NodeId, Result, VolumeId};

use crate::content;
use crate::host::Host;

/// Completes or undoes unfinished operations. The stores have already removed their own unfinished objects.
pub(crate) fn recover(host: &Host) -> Result<()> {
    thaw_images(&host.data)?;
    drop_members_without_group(host)?;
    finish_expansions(host)?;
    count(host)
}

/// Thaws the filesystems that were frozen for a copy: they stay frozen after the process is killed.
fn thaw_images(data: &Path) -> Result<()> {
    for entry in mounts()? {
        let source = Path::new(&entry.source);
        let Some(name) =
            source.strip_prefix("/dev").ok().and_then(Path::to_str).filter(|name| name.starts_with("loop"))
        else {
            continue;
        };
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim_end()).starts_with(data) {
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

/// Updates the record of a volume whose image has grown before its record did.
fn finish_expansions(host: &Host) -> Result<()> {
    for (id, record) in host.volumes.all() {
        // A missing image is damage, which the volume's health reports.
        let Ok(Some(bytes)) = content::size(record.kind, &host.volumes.place(&id)) else { continue };
        if bytes > record.created.capacity_bytes() {
            tracing::warn!(id, bytes, "finished an interrupted expansion");
            host.volumes.update(&id, |record| {
                record.created.expanded(bytes);
                Ok(())
            })?;
        }
    }
    Ok(())
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
