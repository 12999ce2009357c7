//! The temporary directory of a run, and the removal of all that a run made: mounts, loop devices, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use csi_mount::{Detach, ErrorKind, Host, LoopPath, MountEntry, Target, Unmount, mounts};

/// The folder of a driver's volumes, inside the driver's own folder.
pub(crate) const STORAGE: &str = "storage";
/// The longest socket path (unix(7)), minus the part after the temporary directory.
const PLACE_MAX: usize = 107 - "/block/csi.sock".len();
/// How long to wait for a loop device that stays busy after its users are gone.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(20);

/// What a sweep found and removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CleanedUp {
    pub(crate) mounts: usize,
    pub(crate) loop_devices: usize,
}

/// Creates the directory of a run.
///
/// # Errors
/// When the directory for temporary files can't hold it.
pub(crate) fn make_place() -> Result<PathBuf, String> {
    let parent = std::env::temp_dir();
    // The canonical path, as the mount table shows it.
    let parent = parent
        .canonicalize()
        .map_err(|error| format!("TMPDIR, {}: {error}; use an existing directory", parent.display()))?;
    let template = parent.join("quickstart.XXXXXX");
    if template.as_os_str().len() > PLACE_MAX || template.to_str().is_none() {
        return Err(format!(
            "TMPDIR, {}: a socket's path must be UTF-8 and have at most 107 bytes; use a shorter directory \
             such as /tmp",
            parent.display()
        ));
    }
    nix::unistd::mkdtemp(&template)
        .map_err(|error| format!("TMPDIR, {}: can't create a directory in it: {error}", parent.display()))
}

/// Removes all mounts below `place`, all loop devices over files in it, and `place` itself.
///
/// No process works in `place` any more. A second call is harmless.
///
/// # Errors
/// Says what is left, and why. Files are not touched while anything is mounted.
pub(crate) fn sweep(place: &Path) -> Result<CleanedUp, String> {
    let left = |error: &dyn std::fmt::Display| format!("{} is left: {error}", place.display());
    let mounts = unmount_all(place).map_err(|error| left(&error))?;
    let mut loop_devices = 0;
    for file in backing_files(place).map_err(|error| left(&error))? {
        loop_devices += detach_all(&file).map_err(|error| left(&error))?;
    }
    Target::new(place).and_then(|place| place.remove_tree()).map_err(|error| left(&error))?;
    Ok(CleanedUp { mounts, loop_devices })
}

/// The mounts below `place`, the newest last.
pub(crate) fn mounts_below(place: &Path) -> csi_mount::Result<Vec<MountEntry>> {
    let mut found = mounts()?;
    found.retain(|entry| entry.mount_point.starts_with(place));
    Ok(found)
}

fn unmount_all(place: &Path) -> csi_mount::Result<usize> {
    let found = mounts_below(place)?;
    for entry in found.iter().rev() {
        Unmount::new().detach(Detach::IfBusy).at(&Target::new(&entry.mount_point)?)?;
    }
    Ok(found.len())
}

/// The loop devices over files in `place`, and the loop devices over those devices.
pub(crate) fn loop_devices(place: &Path) -> Result<Vec<LoopPath>, String> {
    let host = Host::kernel();
    let found = |file: &Path| host.devices().loop_devices(file).map_err(|error| error.to_string());
    let mut devices = Vec::new();
    for file in backing_files(place).map_err(|error| error.to_string())? {
        for device in found(&file)? {
            devices.extend(found(&device.path)?);
            devices.push(device);
        }
    }
    Ok(devices)
}

/// The files that loop devices can be attached to.
fn backing_files(place: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for driver in entries(place)? {
        for entry in entries(&driver.join(STORAGE))? {
            if entry.symlink_metadata()?.is_file() {
                files.push(entry);
            }
        }
    }
    Ok(files)
}

/// The entries of a directory; none if the path does not exist or is not a directory.
fn entries(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match fs::read_dir(directory) {
        Ok(found) => found.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Detaches all loop devices of a file, the devices over them first. A filesystem that was just unmounted can
/// keep its device busy for a moment.
fn detach_all(file: &Path) -> csi_mount::Result<usize> {
    let end = Instant::now() + DETACH_TIMEOUT;
    let mut count = 0;
    loop {
        match try_detach_all(file, &mut count) {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => sleep(TICK),
            result => return result.map(|()| count),
        }
    }
}

fn try_detach_all(file: &Path, count: &mut usize) -> csi_mount::Result<()> {
    let host = Host::kernel();
    for device in host.devices().loop_devices(file)? {
        try_detach_all(&device.path, count)?;
    }
    *count += host.devices().loop_detach(file)?;
    Ok(())
}
