//! The device inside an encrypted device: a dm-crypt mapping, identified by what the kernel reports and not
//! by any state of this crate. Finding and closing a mapping needs no key and no program.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::device::block_device::BlockDevice;
use crate::device::sysfs::{Mapped, Sysfs};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::device_mapper::{self, Status};
use crate::sys::hash::fnv1a;
use crate::sys::ids::DeviceNumber;

const CLOSE: &str = "close encrypted device";
const FIND: &str = "find the mapping of an encrypted device";
/// Where the content of a device that this crate encrypts begins: the headers are before it.
pub(crate) const LUKS_HEADER: u64 = 16 << 20;
/// The prefix of all mapping names of this crate.
const PREFIX: &str = "csi-";
/// How long a program can have a mapping open before it counts as in use: udev opens each new one.
const BUSY_RETRY_LIMIT: Duration = Duration::from_secs(2);

/// A mapping that this crate made: complete, or half made if its maker was killed.
#[derive(Debug)]
pub(crate) struct Mapping {
    name: String,
    number: DeviceNumber,
    is_suspended: bool,
    /// In bytes; 0 if it is half made.
    size: u64,
    beneath: Option<DeviceNumber>,
}

/// The mapping name for a staging path: the same in every process and version.
pub(crate) fn name_for(staging: &Path) -> String {
    format!("{PREFIX}{:016x}", fnv1a(staging.as_os_str().as_bytes()))
}

impl Mapping {
    /// The mapping with this name.
    ///
    /// # Errors
    ///
    /// [`Busy`](ErrorKind::Busy) if the name belongs to something else.
    pub(crate) fn find(name: &str) -> Result<Option<Self>> {
        let sysfs = Sysfs::system();
        // A query would load the device mapper's module.
        if !sysfs.has_mapper() {
            return Ok(None);
        }
        let status = device_mapper::status(control()?.as_fd(), name)
            .map_err(|error| Error::os(FIND, node(name), error))?;
        let Some(Status { uuid, number, is_suspended }) = status else { return Ok(None) };
        if !is_ours(name, &uuid) {
            let reason = format!("the name belongs to another mapping ({uuid:?})");
            return Err(Error::new(ErrorKind::Busy, FIND, reason).at(node(name)));
        }
        let ready = sysfs.all_mapped()?.into_iter().find(|mapped| mapped.number == number);
        let (size, beneath) = ready.map_or((0, None), |mapped| (mapped.size, mapped.beneath));
        Ok(Some(Self { name: name.to_owned(), number, is_suspended, size, beneath }))
    }

    pub(crate) fn find_by_number(number: DeviceNumber) -> Result<Option<Self>> {
        Self::find_where(|mapped| mapped.number == number)
    }

    pub(crate) fn find_over(number: DeviceNumber) -> Result<Option<Self>> {
        Ok(Self::find_where(|mapped| mapped.beneath == Some(number))?.filter(|mapping| mapping.size > 0))
    }

    fn find_where(is_wanted: impl Fn(&Mapped) -> bool) -> Result<Option<Self>> {
        let all = Sysfs::system().all_mapped()?;
        let ours = all.into_iter().find(|mapped| is_ours(&mapped.name, &mapped.uuid) && is_wanted(mapped));
        ours.map_or(Ok(None), |mapped| Self::find(&mapped.name))
    }

    pub(crate) fn number(&self) -> DeviceNumber {
        self.number
    }

    #[cfg(feature = "luks")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    #[cfg(feature = "luks")]
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The encrypted device; none if it is gone, or the mapping is half made.
    pub(crate) fn beneath(&self) -> Option<DeviceNumber> {
        self.beneath
    }

    /// The device inside.
    ///
    /// # Errors
    ///
    /// [`WrongDevice`](ErrorKind::WrongDevice) if the mapping was closed in the meantime, or is another one
    /// now.
    pub(crate) fn device(&self) -> Result<BlockDevice> {
        let device = BlockDevice::from_number(self.number)?;
        // While it is open it keeps its number; before, the number could become another volume's.
        match Self::find(&self.name)? {
            Some(now) if (now.number, now.beneath) == (self.number, self.beneath) => Ok(device),
            now => {
                let reason = format!("it was {self:?} and is {now:?}: another process closes and opens it");
                Err(Error::new(ErrorKind::WrongDevice, FIND, reason).at(node(&self.name)))
            }
        }
    }

    /// Where the device inside is published raw: such a mapping belongs to its user.
    #[cfg(feature = "luks")]
    pub(crate) fn published_at(&self) -> Result<Option<crate::device::mount_places::MountPlace>> {
        crate::device::mount_places::bound_at(self.number)
    }

    /// Resumes the mapping if it was left in the middle of a change: until then every read and write waits.
    pub(crate) fn resume(&self) -> Result<()> {
        if !self.is_suspended {
            return Ok(());
        }
        const RESUME: &str = "resume encrypted device";
        device_mapper::resume(control()?.as_fd(), &self.name)
            .map_err(|error| Error::os(RESUME, node(&self.name), error))
    }

    /// Closes the mapping. It succeeds if the mapping is already gone.
    ///
    /// # Errors
    ///
    /// [`Busy`](ErrorKind::Busy) if somebody has it open.
    pub(crate) fn close(&self) -> Result<()> {
        let control = control()?;
        let end = Instant::now() + BUSY_RETRY_LIMIT;
        loop {
            match device_mapper::remove(control.as_fd(), &self.name) {
                Ok(()) | Err(nix::Error::ENXIO) => break,
                Err(nix::Error::EBUSY) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(Error::os(CLOSE, node(&self.name), error)),
            }
        }
        // `cryptsetup` made the node if no udev did.
        match std::fs::remove_file(node(&self.name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(%error, mapping = self.name, "the node of a closed mapping could not be \
                    removed");
            }
            _ => {}
        }
        Ok(())
    }
}

/// The UUID shows that `cryptsetup` made the mapping, and for which name.
fn is_ours(name: &str, uuid: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 16
        && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        && uuid.starts_with("CRYPT-LUKS")
        && uuid.ends_with(&format!("-{name}"))
}

fn node(name: &str) -> PathBuf {
    Path::new("/dev/mapper").join(name)
}

/// Opens the device mapper's control node.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) if the kernel has no device mapper.
pub(crate) fn control() -> Result<File> {
    const CONTROL: &str = "/dev/mapper/control";
    const ASK: &str = "open the device mapper";
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(CONTROL, flags, Mode::empty()) {
        Ok(control) => Ok(control.into()),
        Err(error) => {
            let failed = Error::os(ASK, CONTROL, error);
            Err(match failed.kind() {
                ErrorKind::NotFound => failed.with_kind(ErrorKind::Unsupported).hint(
                    "load the modules dm_mod and dm_crypt on the node; a container needs the host's /dev",
                ),
                _ => failed,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_every_version() {
        assert_eq!(name_for(Path::new("/target")), "csi-e2e6a944b2d2df2f");
        assert_ne!(name_for(Path::new("/target")), name_for(Path::new("/targeu")));
    }

    #[test]
    fn only_what_this_crate_made_is_ours() {
        let name = "csi-e2e6a944b2d2df2f";
        for (name, uuid, expected) in [
            (name, "CRYPT-LUKS2-0123-csi-e2e6a944b2d2df2f", true),
            (name, "CRYPT-LUKS1-0123-csi-e2e6a944b2d2df2f", true),
            (name, "CRYPT-LUKS2-0123-other", false),
            (name, "CRYPT-PLAIN-csi-e2e6a944b2d2df2f", false),
            (name, "LVM-0123", false),
            (name, "", false),
            ("csi-data", "CRYPT-LUKS2-0123-csi-data", false),
            ("e2e6a944b2d2df2f", "CRYPT-LUKS2-0123-e2e6a944b2d2df2f", false),
        ] {
            assert_eq!(is_ours(name, uuid), expected, "{name} {uuid}");
        }
    }
}
