//! The temporary directory of a run, and taking away whatever a run made: mounts, loop devices, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use csi_mount::{Detach, ErrorKind, LoopDevice, MountEntry, Target, Unmount, mounts};

/// The folder of a driver's volumes, within the driver's own.
pub(crate) const STORAGE: &str = "storage";
/// What fits a socket's address (unix(7)), less what comes after the temporary directory.
const PLACE_MAX: usize = 107 - "/block/csi.sock".len();
/// How long a loop device may be busy after its users are gone.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(20);

/// What a sweep found and took away.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) mounts: usize,
    pub(crate) loop_devices: usize,
}

/// Makes the directory of a run.
///
/// # Errors
/// When there can't be one in the directory for temporary files.
pub(crate) fn make_place() -> Result<PathBuf, String> {
    let parent = std::env::temp_dir();
    // The kernel's own name for it, as mounts are listed.
    let parent = parent
        .canonicalize()
        .map_err(|error| format!("TMPDIR, {}: {error}; name a directory that exists", parent.display()))?;
    let template = parent.join("quickstart.XXXXXX");
    if template.as_os_str().len() > PLACE_MAX || template.to_str().is_none() {
        return Err(format!(
            "TMPDIR, {}: a socket's path has 107 bytes at most, and is UTF-8; name a shorter directory, /tmp say",
            parent.display()
        ));
    }
    nix::unistd::mkdtemp(&template)
        .map_err(|error| format!("TMPDIR, {}: can't make a directory in it: {error}", parent.display()))
}

/// Takes away all that is mounted below the place, all loop devices over files in it, and the place itself.
///
/// Nobody works in it any more. Doing it again is harmless.
///
/// # Errors
/// What is left, and why. Files are not touched while anything is mounted.
pub(crate) fn sweep(place: &Path) -> Result<Swept, String> {
    let left = |error: &dyn std::fmt::Display| format!("{} is left: {error}", place.display());
    let mounts = unmount_all(place).map_err(|error| left(&error))?;
    let mut loop_devices = 0;
    for file in backing_files(place).map_err(|error| left(&error))? {
        loop_devices += detach_all(&file).map_err(|error| left(&error))?;
    }
    Target::new(place).and_then(|place| place.remove_tree()).map_err(|error| left(&error))?;
    Ok(Swept { mounts, loop_devices })
}

/// What is mounted below the place, the newest last.
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

/// The loop devices over files of the place, and those over these.
pub(crate) fn loop_devices(place: &Path) -> Result<Vec<LoopDevice>, String> {
    let mut devices = Vec::new();
    for file in backing_files(place).map_err(|error| error.to_string())? {
        for device in LoopDevice::find(&file).map_err(|error| error.to_string())? {
            devices.extend(LoopDevice::find(device.path()).map_err(|error| error.to_string())?);
            devices.push(device);
        }
    }
    Ok(devices)
}

/// The files that loop devices may be attached to.
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

/// What is in a directory; nothing if it is not one.
fn entries(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match fs::read_dir(directory) {
        Ok(found) => found.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Detaches every loop device of a file, those over them first. A filesystem that was just unmounted may hold one for a
/// moment.
fn detach_all(file: &Path) -> csi_mount::Result<usize> {
    let end = Instant::now() + PATIENCE;
    let mut count = 0;
    loop {
        match try_detach_all(file, &mut count) {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => sleep(TICK),
            result => return result.map(|()| count),
        }
    }
}

fn try_detach_all(file: &Path, count: &mut usize) -> csi_mount::Result<()> {
    for device in LoopDevice::find(file)? {
        try_detach_all(device.path(), count)?;
        device.detach()?;
        *count += 1;
    }
    Ok(())
}
