//! Opens the device inside an encrypted device.

use super::command::{CRYPTSETUP, run};
use super::format::refuse_small;
use super::untouched::Beneath;
use super::{HEADER, LUKS_TIME_LIMIT, Luks, LuksDiscards, LuksKey};
use crate::device::block_device::{BlockDevice, DeviceAccess};
use crate::device::exclusive::{AlignedBuffer, pieces, with_claim};
use crate::device::mapping::{self, Mapping};
use crate::device::mount_places::MountPlace;
use crate::device::users::{self, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::filesystem::probe::{self, Probe, places};
use crate::filesystem::tool::{Bounds, OpenFile};
use crate::sys::memory;

const OPEN: &str = "open encrypted device";
const GROW: &str = "grow the content of encrypted device";

/// The device to open, and how.
#[derive(Debug)]
pub(crate) struct OpenRequest<'a> {
    pub(crate) device: &'a BlockDevice,
    pub(crate) how: &'a Luks,
    pub(crate) key: &'a LuksKey,
    /// The name of the mapping.
    pub(crate) name: String,
    pub(crate) access: DeviceAccess,
    /// The filesystem to make inside if the device inside is blank; none for raw use.
    pub(crate) filesystem: Option<Filesystem>,
}

/// The device inside.
#[derive(Debug)]
pub(crate) struct OpenedDevice {
    pub(crate) mapping: Mapping,
    /// Distinguishes noise from data inside, if this call opened the device.
    pub(crate) beneath: Option<Beneath>,
}

/// Opens the device inside, unless it is already open.
///
/// A blank device is encrypted first. If nothing was ever written inside, the places that are probed for
/// content are made zero. A mapping that is in use is neither read nor written: its content belongs to its
/// user.
pub(crate) fn device_for(request: &OpenRequest<'_>) -> Result<OpenedDevice> {
    // These checks come before anything is done to the device.
    mapping::control()?;
    CRYPTSETUP.find()?;
    if let Some(mapping) = existing_mapping(request)? {
        return Ok(OpenedDevice { mapping, beneath: None });
    }
    users::refuse(request.device, OPEN, Tolerated::Mounts)?;
    make_headers(request)?;
    let mapping = request.open()?;
    match prepare_inside(request, &mapping) {
        Ok(beneath) => Ok(OpenedDevice { mapping, beneath: Some(beneath) }),
        Err(error) => {
            if let Err(left) = mapping.close() {
                tracing::warn!(%left, "an encrypted device stays open after a failed stage");
            }
            Err(error)
        }
    }
}

/// A mapping of this name that is in use, over this device. A mapping that nobody uses is closed, also if
/// it is half made: it is opened again, with the key and settings of this call.
fn existing_mapping(request: &OpenRequest<'_>) -> Result<Option<Mapping>> {
    let Some(mapping) = Mapping::find(&request.name)? else { return Ok(None) };
    let number = request.device.number();
    let beneath = mapping.beneath();
    if let Some(other) = beneath.filter(|beneath| *beneath != number) {
        let reason = format!("its mapping {} belongs to {other}, not to {number}", request.name);
        return Err(Error::new(ErrorKind::WrongDevice, OPEN, reason)
            .at(request.device.path())
            .hint("unstage the volume that is staged there"));
    }
    mapping.resume()?;
    let is_whole = beneath == Some(number);
    if let Some(place) = mapping.published_at()? {
        if is_whole && request.filesystem.is_none() {
            return Ok(Some(mapping));
        }
        return Err(published(&mapping, &place, request.device));
    }
    if is_whole {
        request.refuse_wrong_key()?;
    }
    let name = mapping.name().to_owned();
    match mapping.close() {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Busy && is_whole => Mapping::find(&name),
        Err(error) => Err(error),
    }
}

fn published(mapping: &Mapping, place: &MountPlace, device: &BlockDevice) -> Error {
    let reason = format!("the device number {} is already published raw at {place}", mapping.number());
    Error::new(ErrorKind::Busy, OPEN, reason).at(device.path()).hint("unpublish it first")
}

fn make_headers(request: &OpenRequest<'_>) -> Result<()> {
    let device = request.device;
    let least = HEADER + request.filesystem.map_or(1 << 20, Filesystem::min_size);
    let proof = match device.probe() {
        Probe::Container(found) if found.is_luks() => return Ok(()),
        found @ (Probe::Blank(_) | Probe::Interrupted(_)) if request.how.never_format => {
            return Err(probe::content_missing(OPEN, device, found));
        }
        Probe::Blank(proof) => proof,
        Probe::Interrupted(format) => {
            tracing::warn!(device = %device.path().display(), "starting an interrupted format again");
            format.into_proof()
        }
        other => {
            let refusal = other.refusal(OPEN, device);
            return Err(match refusal.kind() {
                ErrorKind::NotBlank => refusal
                    .hint("check whether this is the volume's device: its content was written without encryption; the device was not changed"),
                _ => refusal,
            });
        }
    };
    if request.access == DeviceAccess::ReadOnly {
        return Err(unformatted_error(device));
    }
    refuse_small(device, least)?;
    request.how.format(proof, request.key)
}

fn unformatted_error(device: &BlockDevice) -> Error {
    let reason = "the device is blank, and a read-only stage does not format it";
    Error::new(ErrorKind::ReadOnly, OPEN, reason)
        .at(device.path())
        .hint("check whether this is the volume's device; only a stage for writing encrypts it")
}

impl OpenRequest<'_> {
    /// Checks the key, so that an existing mapping is not closed with a key that can't open it again.
    fn refuse_wrong_key(&self) -> Result<()> {
        let on = OpenFile::from_device(self.device);
        let line = ["open", "--test-passphrase", "--type=luks", &on.path()].map(str::to_owned);
        let tested = run(OPEN, on, &line, Some(self.key), self.how.bounds());
        match tested {
            // Other problems of the device are found and reported when it is opened.
            Err(error) if error.kind() != ErrorKind::ToolFailed => Err(error),
            _ => Ok(()),
        }
    }

    fn open(&self) -> Result<Mapping> {
        let mut line = vec!["open".to_owned(), "--type=luks".to_owned()];
        if self.access == DeviceAccess::ReadOnly {
            line.push("--readonly".to_owned());
        }
        if self.how.discards == LuksDiscards::Passed {
            line.push("--allow-discards".to_owned());
        }
        self.device.verify()?;
        let on = OpenFile::from_device(self.device);
        line.extend([on.path(), self.name.clone()]);
        run(OPEN, on, &line, Some(self.key), self.how.bounds())?;
        match Mapping::find(&self.name)? {
            Some(mapping) if mapping.beneath() == Some(self.device.number()) && mapping.size() > 0 => {
                Ok(mapping)
            }
            found => {
                let reason = format!("cryptsetup reported success, but the kernel has {found:?}");
                Err(Error::new(ErrorKind::WrongDevice, OPEN, reason).at(self.device.path()))
            }
        }
    }
}

/// Zeroes never-written blocks, which decrypt to noise: what the probe reads, or both ends of the device for raw use.
///
/// This is done only on a mapping that this call has opened, after a second check under its lock while it
/// is held exclusively. A call that is killed in between leaves noise and zeros, which again count as noise
/// that nobody wrote.
fn prepare_inside(request: &OpenRequest<'_>, mapping: &Mapping) -> Result<Beneath> {
    let inside = mapping.device()?;
    if let Some(place) = mapping.published_at()? {
        // Somebody else closed the mapping of a published device; that device's user would now have this
        // volume.
        return Err(published(mapping, &place, request.device));
    }
    let beneath = Beneath::new(request.device.number(), offset_of(mapping, request.how.bounds())?)?;
    if !beneath.is_unwritten_noise(&inside)? {
        return Ok(beneath);
    }
    if request.how.never_format {
        return Err(probe::content_missing(OPEN, request.device, "nothing inside"));
    }
    if request.access == DeviceAccess::ReadOnly {
        return Err(unformatted_error(request.device));
    }
    let size = inside.size()?;
    let ranges: Vec<_> = match request.filesystem {
        Some(_) => probe::ends(size).into_iter().chain(places::between(size).flatten()).collect(),
        None => probe::ends(size).to_vec(),
    };
    let _lock = inside.lock()?;
    with_claim(&inside, OPEN, |disk| {
        if !beneath.is_unwritten_noise(&inside)? {
            return Ok(());
        }
        let buffer = &mut AlignedBuffer::new();
        ranges.into_iter().flat_map(pieces).try_for_each(|range| disk.zero(&range, buffer))?;
        disk.flush()
    })?;
    Ok(beneath)
}

/// Where in the encrypted device the device inside begins, in bytes.
fn offset_of(mapping: &Mapping, bounds: Bounds) -> Result<u64> {
    const ASK: &str = "read the status of encrypted device";
    let node = BlockDevice::from_number(mapping.number())?;
    let output = run(
        ASK,
        OpenFile::from_device(&node),
        &["status".to_owned(), mapping.name().to_owned()],
        None,
        bounds,
    )?;
    offset_in(&output.text).ok_or_else(|| {
        let reason = "cryptsetup does not print where its content begins";
        Error::new(ErrorKind::ToolFailed, ASK, reason).at(node.path())
    })
}

/// Parses `  offset:  32768 sectors`, or `[512-byte units]`.
fn offset_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.trim().strip_prefix("offset:"))?;
    let sectors: u64 = line.split_whitespace().next()?.parse().ok()?;
    sectors.checked_mul(512)
}

/// Grows the device inside to the whole size of the encrypted device, which has grown.
///
/// # Errors
///
/// [`WrongKey`](ErrorKind::WrongKey) if it must grow and there is no key, or the wrong one: the kernel
/// keeps its copy of the key where no process can read it.
pub(crate) fn grow(mapping: &Mapping, key: Option<&LuksKey>) -> Result<()> {
    mapping.resume()?;
    let Some(beneath) = mapping.beneath() else {
        let reason = "the encrypted device is not present";
        return Err(Error::new(ErrorKind::NotFound, GROW, reason).at(mapping.device()?.path()));
    };
    let beneath = BlockDevice::from_number(beneath)?;
    let bounds = Bounds { time: LUKS_TIME_LIMIT, memory: Some(memory::program_memory_limit()) };
    let room = beneath.size()?.saturating_sub(offset_of(mapping, bounds)?);
    // 4096 is the largest sector: less room than one more sector is no room.
    if mapping.size() >= room - room % 4096 {
        return Ok(());
    }
    let Some(key) = key else {
        let reason = "the device has grown, and its content can grow only with its key";
        return Err(Error::new(ErrorKind::WrongKey, GROW, reason)
            .at(beneath.path())
            .hint("pass the key, or wait: the content grows when it is staged again"));
    };
    let line = ["resize".to_owned(), mapping.name().to_owned()];
    run(GROW, OpenFile::from_device(&beneath), &line, Some(key), bounds).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_read_from_each_version() {
        for text in [
            "/dev/mapper/x is active.\n  type:    LUKS2\n  offset:  32768 sectors\n  size:  1\n",
            "/dev/mapper/x is active and is in use.\n  offset:  32768 [512-byte units] (16777216 [bytes])\n",
        ] {
            assert_eq!(offset_in(text), Some(HEADER));
        }
        for text in ["", "  offset:\n", "  offset: none\n", "  offset: 99999999999999999999\n"] {
            assert_eq!(offset_in(text), None, "{text}");
        }
    }
}
