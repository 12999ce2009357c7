//! A tmpfs of the kit's own at a target, which no driver made and no driver may unmount.

use std::path::Path;

use crate::context::TestContext;
use crate::failure::{Failure, Outcome};

/// The source of the mount, by which a later run knows it.
#[cfg(target_os = "linux")]
const SOURCE: &str = "csi-conformance";

#[cfg(target_os = "linux")]
pub(crate) fn mount(place: &Path) -> Outcome {
    let mounted = csi_mount::Target::new(place).and_then(|target| {
        target.create_dir()?;
        csi_mount::Mount::new("tmpfs", SOURCE).at(&target)
    });
    mounted.map_err(|error| Failure::new("the kit's own tmpfs", error.to_string()))?;
    Ok(())
}

#[cfg(target_os = "linux")]
pub(crate) fn unmount(place: &Path) -> Outcome {
    let cleared = csi_mount::Target::new(place).and_then(|target| {
        csi_mount::unmount(&target)?;
        target.remove()
    });
    cleared.map_err(|error| Failure::new("the kit's own tmpfs unmounted", error.to_string()))?;
    Ok(())
}

/// Unmounts what a test that was stopped, or a run that was killed, left below the directory of targets. Returns what
/// is still there.
#[cfg(target_os = "linux")]
pub(crate) fn unmount_left(ctx: &TestContext, prefix: &str) -> Vec<String> {
    let directory = ctx.settings.target.as_ref().filter(|_| ctx.sees_mounts());
    let Some(directory) = directory.and_then(|path| path.canonicalize().ok()) else { return vec![] };
    let mounts = csi_mount::mounts().unwrap_or_default();
    let own = mounts.iter().filter(|entry| {
        let place = &entry.mount_point;
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let is_place = place.parent() == Some(&directory) && name.starts_with(prefix);
        is_place && entry.fs_type == "tmpfs" && entry.source == SOURCE
    });
    let left = own.filter_map(|entry| unmount(&entry.mount_point).err());
    left.map(|failure| failure.actual).collect()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn mount(place: &Path) -> Outcome {
    Err(Box::new(Failure::new("the kit's own tmpfs", format!("none for {}", place.display()))))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unmount(_: &Path) -> Outcome {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unmount_left(_: &TestContext, _: &str) -> Vec<String> {
    vec![]
}
