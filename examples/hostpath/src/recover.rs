//! What a start makes right after the last process was killed, wherever it was.

use std::fs;
use std::path::Path;

use csi_core::mount::{mounts, thaw};
use csi_core::{NodeId, Result, VolumeId};

use crate::content;
use crate::host::Host;

/// Finishes what was half done, or takes it back. The stores have swept their own halves already.
pub(crate) fn recover(host: &Host) -> Result<()> {
    thaw_images(&host.data)?;
    drop_members_without_group(host)?;
    finish_expansions(host)?;
    count(host)
}

/// A filesystem that was frozen for a cut stays frozen until somebody thaws it.
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
                Ok(true) => tracing::warn!("{} was left frozen, and is thawed", entry.mount_point.display()),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }
    Ok(())
}

/// A group is there when its record is: before that, and after, its members are nobody's. One whose record can't be read is
/// there, and so are its members.
fn drop_members_without_group(host: &Host) -> Result<()> {
    for (id, record) in host.snapshots.all() {
        if record.group.as_ref().is_some_and(|group| matches!(host.groups.find(group), Ok(None))) {
            tracing::warn!(id, "a snapshot of a group that was never finished, or is deleted, goes");
            host.snapshots.remove(&id)?;
        }
    }
    Ok(())
}

/// An image grows before its record says so.
fn finish_expansions(host: &Host) -> Result<()> {
    for (id, record) in host.volumes.all() {
        // One whose image is gone is damaged, which is for its health to tell.
        let Ok(Some(bytes)) = content::size(record.kind, &host.volumes.place(&id)) else { continue };
        if bytes > record.created.capacity_bytes() {
            tracing::warn!(id, bytes, "an expansion that was not finished is");
            host.volumes.update(&id, |record| {
                record.created.expanded(bytes);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// What is taken of the pools, and of the nodes' places.
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
        host.pools.take(&record.pool, record.size_bytes);
    }
    Ok(())
}
