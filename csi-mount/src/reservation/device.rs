//! The registrations of a device, read and changed.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask::{ask, checked, number_of};
use crate::sys::device_call::DeviceCall;
use crate::sys::reservation::{Answer, CHECK_CONDITION, Change, Protocol, Registrations};

const READ: &str = "read the reservations of";
const CHANGE: &str = "change the reservations of";
const READ_LIMIT: Duration = Duration::from_secs(30);
/// The device answers a takeover when it has ended what the other node has sent.
const CHANGE_LIMIT: Duration = Duration::from_secs(120);

/// What is registered and reserved, for tests.
pub fn registrations(device: &BlockDevice) -> Result<Registrations> {
    ReservableDevice::new(device)?.read()
}

/// Makes a change, for tests. Returns false if what is registered does not allow it.
pub fn change(device: &BlockDevice, change: Change) -> Result<bool> {
    ReservableDevice::new(device)?.change(change)
}

/// A device that can have reservations.
#[derive(Debug)]
pub(super) struct ReservableDevice<'d> {
    device: &'d BlockDevice,
    protocol: Protocol,
    /// The node for commands, where it is another one than the device's.
    commands: Option<(PathBuf, File)>,
}

fn unsupported(device: &BlockDevice, reason: &str) -> Error {
    Error::new(ErrorKind::Unsupported, READ, reason).at(device.path())
}

impl<'d> ReservableDevice<'d> {
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for any other device, and for one over several paths.
    pub(super) fn new(device: &'d BlockDevice) -> Result<Self> {
        let place = PathBuf::from(format!("/sys/dev/block/{}", device.number()));
        if place.join("partition").exists() {
            return Err(unsupported(device, "a partition has no reservations: use the whole device"));
        }
        if place.join("dm").exists() {
            let reason =
                "a path that dm-multipath adds later is not registered, so its device is not reserved";
            return Err(unsupported(device, reason));
        }
        let name = fs::canonicalize(&place).map_err(|error| Error::os(READ, &place, error))?;
        if name.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvme")) {
            return Ok(Self { device, protocol: Protocol::Nvme, commands: None });
        }
        let nodes = fs::read_dir(place.join("device/bsg")).into_iter().flatten().flatten();
        let Some(node) = nodes.map(|node| Path::new("/dev/bsg").join(node.file_name())).next() else {
            return Err(unsupported(device, "it is neither a disk of SCSI nor a namespace of NVMe"));
        };
        let file = File::open(&node).map_err(|error| Error::os(READ, &node, error))?;
        Ok(Self { device, protocol: Protocol::Scsi, commands: Some((node, file)) })
    }

    pub(super) fn read(&self) -> Result<Registrations> {
        let (path, fd): (&Path, BorrowedFd<'_>) = match &self.commands {
            Some((path, file)) => (path, file.as_fd()),
            None => (self.device.path(), self.device.as_fd()),
        };
        let answer = ask(READ, path, DeviceCall::Registrations(fd, self.protocol), READ_LIMIT)?;
        match number_of(&answer) {
            libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL => {
                Err(unsupported(self.device, "its storage has no reservations"))
            }
            _ => checked(READ, self.device.path(), &answer),
        }?;
        Ok(Registrations::from_words(answer.words))
    }

    /// Makes a change. Returns false if what is registered does not allow it.
    pub(super) fn change(&self, change: Change) -> Result<bool> {
        let path = self.device.path();
        let call = DeviceCall::ChangeRegistrations(self.device.as_fd(), self.protocol, change);
        let answer = ask(CHANGE, path, call, CHANGE_LIMIT)?;
        match not_carried_out(number_of(&answer)) {
            Some(error) => return Err(error.at(path)),
            None => checked(CHANGE, path, &answer)?,
        }
        match Answer::of_status(answer.setting as i32) {
            Answer::Done => Ok(true),
            Answer::Conflict => Ok(false),
            Answer::Failed(CHECK_CONDITION)
                if matches!(change, Change::Register(_) | Change::Replace(..)) =>
            {
                let reason = "it does not register a key, so its storage can't keep reservations";
                let hint = "the kernel's own target (LIO) needs the directory pr below its dbroot, as /var/target/pr";
                Err(Error::new(ErrorKind::Unsupported, CHANGE, reason).hint(hint).at(path))
            }
            Answer::Failed(status) => {
                let reason = format!("the device, or the path to it, answered with the status {status:#x}");
                Err(Error::new(ErrorKind::Unresponsive, CHANGE, reason).at(path))
            }
        }
    }
}

/// The errors of a change that mean something else than elsewhere.
fn not_carried_out(number: i32) -> Option<Error> {
    match number {
        libc::EOPNOTSUPP | libc::ENOTTY => {
            Some(Error::new(ErrorKind::Unsupported, CHANGE, "its storage has no reservations"))
        }
        libc::EINTR => {
            let reason = "the kernel gave the command up, because the storage did not answer it in time: it waits for writes \
                of another node that it has already";
            let hint = "call again; the time is that of the kernel's parameter nvme_core.io_timeout";
            Some(Error::new(ErrorKind::Unresponsive, CHANGE, reason).hint(hint))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own target for NVMe does not survive a takeover that takes so long, so this is no test with it.
    #[test]
    fn a_takeover_that_the_kernel_gives_up_says_so() {
        let error = not_carried_out(libc::EINTR).unwrap().at("/dev/nvme0n1");
        assert_eq!(error.kind(), ErrorKind::Unresponsive);
        assert!(error.to_string().contains("nvme_core.io_timeout"), "{error}");
        assert!(not_carried_out(libc::EIO).is_none());
    }
}
