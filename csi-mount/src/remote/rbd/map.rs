//! The calls that wait for a cluster: map and unmap, each made by a child process, with a limit.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use super::mapping::{Mapping, bus, mappings};
use super::target::RbdTarget;
use crate::device::users;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask;
use crate::remote::detach::{DETACH, OPENERS_LIMIT, POLL_INTERVAL};
use crate::sys::device_call::{DeviceCall, MapImage};

const MAP: &str = "map";
/// How long the kernel waits for the cluster in each step of a map.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer than the steps of a map, without the wait for an exclusive lock and with it. The kernel has no limit of its
/// own for the wait for a monitor that a client of it had before.
const MAP_LIMITS: [Duration; 2] = [Duration::from_secs(45), Duration::from_secs(75)];
const UNMAP: &str = "unmap";
/// How long the kernel has to give the lock back, and to tell the cluster that it does not watch the image any more.
const UNMAP_LIMIT: Duration = Duration::from_secs(60);
/// The name of the key in the keyring of the process that maps.
const KEY_NAME: &CStr = c"csi-mount";

pub(super) fn map(sys: &Path, target: &RbdTarget) -> Result<()> {
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

/// `add` and `remove` have other names where the kernel numbers its disks in one way: by default.
fn switch(sys: &Path, verb: &str) -> PathBuf {
    let single = bus(sys).join(format!("{verb}_single_major"));
    if single.exists() { single } else { bus(sys).join(verb) }
}

/// Unmaps an image that was flushed.
///
/// The kernel refuses it while anything has the disk open: the check of the users, and this step, can't be torn
/// apart. It is never forced.
pub(super) fn unmap(sys: &Path, mapping: &Mapping) -> Result<()> {
    let switch = switch(sys, "remove");
    let start = Instant::now();
    // Its number can be another image's as soon as it is gone.
    while mappings(sys)?.contains(mapping) {
        match ask::write(UNMAP, &switch, mapping.id.as_bytes(), UNMAP_LIMIT) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if start.elapsed() > OPENERS_LIMIT {
                    return Err(busy(mapping, error));
                }
            }
            // An earlier unmap is not finished yet.
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error.at(&mapping.place)),
        }
        if start.elapsed() > UNMAP_LIMIT {
            let reason = format!("it is still being unmapped after {UNMAP_LIMIT:?}");
            return Err(Error::new(ErrorKind::Unresponsive, UNMAP, reason).at(&mapping.place));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn busy(mapping: &Mapping, error: Error) -> Error {
    let users = mapping.number.and_then(|number| users::identified_users(&[number]).ok()).unwrap_or_default();
    match &users[..] {
        [] => error.with_kind(ErrorKind::Busy).at(&mapping.place),
        users => users::in_use_error(DETACH, &mapping.name(), users),
    }
}
