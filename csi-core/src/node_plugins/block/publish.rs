//! What a publish of a volume checks before it shows the volume to a workload.

use std::path::Path;

use super::is_volume_at;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Reason, Result};
use crate::node::NodePublishVolumeRequest;
use crate::node_plugins::ownership::owner;
use crate::node_plugins::targets::MountTable;
use crate::types::VolumeId;

/// Refuses to publish from a staging path at which another volume is staged, or none. A volume whose device
/// can't be named any more is known by the mark of the path and by what is mounted there.
pub(super) fn require_staged(
    request: &NodePublishVolumeRequest,
    staging: &Path,
    device: Option<&Path>,
) -> Result<()> {
    let host = request.host();
    let found = host.block().device_of(staging).map_err(|error| not_staged(error, staging))?;
    let is_volume = match device {
        Some(device) => host.devices().number(device).map_err(|error| not_staged(error, staging))? == found,
        None => {
            let owner = owner(&request.volume_id, request.plugin());
            is_volume_at(host, staging, &owner, Some(found), None)?
        }
    };
    if is_volume {
        Ok(())
    } else {
        Err(Error::NotStaged(
            format!("staging_target_path: another volume is staged at {}", staging.display()).into(),
        ))
    }
}

/// Refuses to give a workload the raw device of a filesystem that is mounted: both would write to it.
pub(super) fn refuse_mounted(request: &NodePublishVolumeRequest, device: &Path) -> Result<()> {
    let host = request.host();
    let owner = owner(&request.volume_id, request.plugin());
    match MountTable::read(host)?.filesystem_of(host, host.devices().number(device)?, &owner) {
        Some(path) => Err(Error::InUse(
            format!(
                "volume_capability.block: the volume's filesystem is mounted at {}; unpublish and unstage it first",
                path.display()
            )
            .into(),
        )),
        None => Ok(()),
    }
}

pub(super) fn without_device(volume_id: &VolumeId) -> Error {
    Error::NotStaged(format!("volume {volume_id} is not staged on this node: its device is missing").into())
}

fn not_staged(error: csi_mount::Error, staging: &Path) -> Error {
    Error::NotStaged(Reason::because(
        format!("staging_target_path: no volume is staged at {}: {error}", staging.display()),
        error,
    ))
}
