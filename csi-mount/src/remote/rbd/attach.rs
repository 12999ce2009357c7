//! The steps of an attach and of a refresh: map the image, check who it is, read a new size.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use super::target::{RbdDisk, RbdTarget};
use super::tree::{Mapping, bus, mappings};
use super::{decide, detach};
use crate::remote::ask;
use crate::remote::attach::{ATTACH, PAUSES, REFRESH, REFRESH_LIMIT, failed};
use crate::sys::device_call::{DeviceCall, MapImage};
use crate::{BlockDevice, Error, ErrorKind, Result};

const MAP: &str = "map";
/// How long the kernel waits for the cluster in each step of a map.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer than the steps of a map, without the wait for an exclusive lock and with it. The kernel has no limit of its
/// own for the wait for a monitor that a client of it had before.
const MAP_LIMITS: [Duration; 2] = [Duration::from_secs(45), Duration::from_secs(75)];
/// How long a mapped image has to become a disk that can be opened.
const DISK_LIMIT: Duration = Duration::from_secs(10);
/// The name of the key in the keyring of the process that maps.
const KEY_NAME: &CStr = c"csi-mount";

pub(in crate::remote) fn validate(sys: &Path, target: &RbdTarget) -> Result<()> {
    let refuse = |kind, reason: &str| Error::new(kind, ATTACH, reason).at(target.disk.to_string());
    if target.monitors.is_empty() {
        return Err(refuse(ErrorKind::InvalidInput, "the target has no monitor"));
    }
    if !bus(sys).is_dir() {
        return Err(refuse(ErrorKind::Unsupported, "this kernel has no client of RBD")
            .hint("load the module `rbd` on the node; a container needs the host's /sys"));
    }
    Ok(())
}

/// Maps the image, unless it is mapped, and opens its disk.
pub(in crate::remote) fn attach(sys: &Path, name: &str, target: &RbdTarget) -> Result<BlockDevice> {
    let disk = &target.disk;
    if decide::one(sys, disk)?.is_none() {
        let before = mappings(sys)?;
        map(sys, target)?;
        if let Some(error) = refuse_other(sys, name, disk, &before)? {
            return Err(error);
        }
    }
    let (start, mut pause) = (Instant::now(), PAUSES[0]);
    loop {
        if let Some(device) = open(sys, disk)? {
            return Ok(device);
        }
        if start.elapsed() > DISK_LIMIT {
            let reason = format!("{disk} is mapped, and no disk came within {DISK_LIMIT:?}");
            return Err(failed(ErrorKind::NotFound, name, reason));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
}

fn open(sys: &Path, disk: &RbdDisk) -> Result<Option<BlockDevice>> {
    let Some(number) = decide::number(sys, disk)? else { return Ok(None) };
    let device = match BlockDevice::from_number(number) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => {
            return Ok(None);
        }
        device => device?,
    };
    // It was unmapped, and its number given to another image, in the meantime.
    let is_same = decide::number(sys, disk)? == Some(number) && device.size()? > 0;
    Ok(is_same.then_some(device))
}

fn map(sys: &Path, target: &RbdTarget) -> Result<()> {
    let switch = switch(sys, "add");
    let what = PathBuf::from(format!("{}/{}", target.disk.pool, target.disk.image));
    let file = OpenOptions::new().write(true).open(&switch);
    let file = file.map_err(|error| Error::os(MAP, &switch, error))?;
    let order = target.order(&KEY_NAME.to_string_lossy(), MOUNT_TIMEOUT);
    let key = target.key().map_or(&[][..], |key| key.bytes());
    let call = MapImage { switch: file.as_fd(), order: order.as_bytes(), key_name: KEY_NAME, key };
    let limit = MAP_LIMITS[usize::from(target.is_exclusive)];
    let answer = ask::ask(MAP, &what, DeviceCall::MapImage(call), limit)?;
    ask::checked(MAP, &what, &answer).map_err(|error| match answer.setting {
        0 => with_meaning(error),
        _ => {
            error.add_reason("the kernel does not take the key").hint("a container needs the call add_key(2)")
        }
    })
}

/// `add` and `remove` have other names where the kernel numbers its disks in one way: by default.
pub(super) fn switch(sys: &Path, verb: &str) -> PathBuf {
    let single = bus(sys).join(format!("{verb}_single_major"));
    if single.exists() { single } else { bus(sys).join(verb) }
}

fn with_meaning(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EKEYREJECTED) => error
            .with_kind(ErrorKind::WrongKey)
            .add_reason("the cluster refuses this user, the key, or the user's access to the pool")
            .hint("check the secret, and the user's capabilities"),
        Some(libc::ENOENT) => error.hint("check whether the cluster has this pool and image"),
        Some(libc::EROFS | libc::EBUSY) => error
            .with_kind(ErrorKind::Busy)
            .add_reason("another client holds the image's exclusive lock")
            .hint("detach the volume from the other node; the lock of a dead node ends after half a minute"),
        Some(libc::ENXIO | libc::EINVAL) => error
            .with_kind(ErrorKind::Unsupported)
            .add_reason("the kernel's client can't use this image")
            .hint("see the kernel's log, and the image's features (`rbd info`)"),
        Some(libc::ETIMEDOUT | libc::EIO | libc::EINTR) => error
            .with_kind(ErrorKind::Unresponsive)
            .add_reason("no monitor or OSD answers")
            .hint("check the monitors' addresses, and the network"),
        _ => error,
    }
}

/// Undoes a map that found another image: the name was given to a new one.
fn refuse_other(sys: &Path, name: &str, disk: &RbdDisk, before: &[Mapping]) -> Result<Option<Error>> {
    if decide::is_mapped(sys, disk)? {
        return Ok(None);
    }
    let is_new = |mapping: &&Mapping| !before.contains(mapping) && has_name_of(mapping, disk);
    let found = mappings(sys)?;
    let Some(other) = found.iter().find(is_new) else {
        let reason = format!("the kernel mapped {disk}, and does not list it");
        return Ok(Some(failed(ErrorKind::NotFound, name, reason)));
    };
    detach::unmap_one(sys, other)?;
    let reason = format!(
        "{}/{} is an image with the id {} in the pool {} of the cluster {}, not {disk}",
        disk.pool, disk.image, other.image_id, other.pool_id, other.fsid
    );
    Ok(Some(failed(ErrorKind::WrongDevice, name, reason)))
}

fn has_name_of(mapping: &Mapping, disk: &RbdDisk) -> bool {
    mapping.pool == disk.pool && mapping.image == disk.image
}

/// The size of the image in the cluster, which the disk then has.
pub(in crate::remote) fn refresh(sys: &Path, name: &str, disk: &RbdDisk) -> Result<u64> {
    let gone = || Error::new(ErrorKind::NotFound, REFRESH, format!("{disk} is not mapped")).at(name);
    let mapping = decide::one(sys, disk)?.ok_or_else(gone)?;
    ask::write(REFRESH, &mapping.place.join("refresh"), b"1", REFRESH_LIMIT)?;
    let device = open(sys, disk)?.ok_or_else(gone)?;
    device.size()
}
