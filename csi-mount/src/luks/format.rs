//! Writes LUKS headers to a device that is proven blank.

use std::os::fd::AsFd as _;

use super::command::{CRYPTSETUP, run};
use super::{HEADER, Luks, LuksKey, LuksPbkdf};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::format::disk_image::DiskImage;
use crate::filesystem::format::record::FormatKind;
use crate::filesystem::format::refuse_unwritable;
use crate::filesystem::probe::{BlankProof, Probe};
use crate::sys::ioctl::{self, Topology};

const FORMAT: &str = "encrypt";
/// The headers, and 1 MiB of content.
const MIN_SIZE_BYTES: u64 = HEADER + (1 << 20);
/// Room for key slots in KiB: everything before the content except 1 MiB, a hole for the record of a format,
/// whose manifest takes a thirtieth of them.
const KEY_SLOTS: u64 = (HEADER >> 10) - 1024;

impl Luks {
    /// Encrypts the device that the proof is for: `cryptsetup luksFormat`.
    ///
    /// It follows the rules of [`Format::run`](crate::Format::run): `cryptsetup` makes the headers in
    /// memory. They are copied under the device's lock, over zeros only, the first sector last. A run that
    /// is killed can be started again ([`Probe::Interrupted`]). The content is not written: it reads as
    /// noise.
    pub(crate) fn format(&self, proof: BlankProof<'_>, key: &LuksKey) -> Result<()> {
        let device = proof.device();
        let mut arguments = self.format_line(device)?;
        CRYPTSETUP.find()?;
        refuse_small(device, MIN_SIZE_BYTES)?;

        let _lock = device.lock()?;
        refuse_unwritable(device)?;
        let image = DiskImage::for_device(device, FORMAT)?;
        tracing::info!(device = %device.path().display(), "encrypt");
        arguments.push(image.open_file().path());
        run(FORMAT, image.open_file(), &arguments, Some(key), self.bounds())?;
        image.write_to_device(FormatKind::Luks, None)?;
        device.verify()?;
        match device.probe() {
            Probe::Container(found) if found.is_luks() => Ok(()),
            found => {
                let reason = format!("the headers were written, but the device holds {found}");
                Err(Error::new(ErrorKind::Io, FORMAT, reason).at(device.path()))
            }
        }
    }

    /// The command line without the device.
    fn format_line(&self, device: &BlockDevice) -> Result<Vec<String>> {
        let wrong = |reason: &str| Error::new(ErrorKind::InvalidInput, FORMAT, reason).at(device.path());
        let mut line = vec!["luksFormat".to_owned(), "--type=luks2".to_owned()];
        line.push(format!("--luks2-keyslots-size={KEY_SLOTS}k"));
        line.push(format!("--offset={}", HEADER / 512));
        match self.pbkdf {
            LuksPbkdf::Argon2id { memory, iterations } => {
                if !(32 << 10..=4 << 30).contains(&memory) || iterations < 4 {
                    return Err(wrong("Argon2id needs 32 KiB to 4 GiB of memory, and 4 iterations or more"));
                }
                line.push("--pbkdf=argon2id".to_owned());
                line.push(format!("--pbkdf-memory={}", memory >> 10));
                line.push("--pbkdf-parallel=1".to_owned());
                line.push(format!("--pbkdf-force-iterations={iterations}"));
            }
            LuksPbkdf::Pbkdf2 { iterations } => {
                if iterations < 1000 {
                    return Err(wrong("PBKDF2 needs 1000 iterations or more"));
                }
                line.push("--pbkdf=pbkdf2".to_owned());
                line.push(format!("--pbkdf-force-iterations={iterations}"));
            }
        }
        let size = device.size()?;
        let sector = match self.sector_size {
            Some(sector @ (512 | 1024 | 2048 | 4096)) if size.is_multiple_of(sector.into()) => sector,
            Some(512 | 1024 | 2048 | 4096) => {
                return Err(wrong("the device's size is not a multiple of the sector size"));
            }
            Some(_) => return Err(wrong("the sector size is not 512, 1024, 2048 or 4096 bytes")),
            None => {
                let failed = |error| Error::os("read the sector sizes of", device.path(), error);
                sector_for(ioctl::topology(device.as_fd()).map_err(failed)?, size)
            }
        };
        line.push(format!("--sector-size={sector}"));
        Ok(line)
    }
}

/// The unit of encryption that `cryptsetup` chooses by itself for a disk. For a file it can't find out the
/// sector sizes.
fn sector_for(topology: Topology, size: u64) -> u32 {
    let logical = topology.logical_sector;
    let physical = topology.physical_sector;
    let sector = if (1024..=4096).contains(&physical) && physical.is_multiple_of(logical) {
        physical
    } else {
        logical
    };
    if sector <= 4096 && size.is_multiple_of(sector.into()) { sector } else { 512 }
}

/// Refuses a device that has no room for the content.
pub(super) fn refuse_small(device: &BlockDevice, least: u64) -> Result<()> {
    let size = device.size()?;
    if size >= least {
        return Ok(());
    }
    let reason = format!("an encrypted volume needs {least} bytes, and the device has {size}");
    Err(Error::new(ErrorKind::OutOfRange, FORMAT, reason).at(device.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sector_size_fits_the_disk() {
        for (logical_sector, physical_sector, size, expected) in [
            (512, 512, 1 << 30, 512),
            (512, 4096, 1 << 30, 4096),
            (512, 4096, (1 << 30) + 512, 512),
            (4096, 4096, 1 << 30, 4096),
            (512, 16_384, 1 << 30, 512),
        ] {
            let topology = Topology {
                logical_sector,
                physical_sector,
                minimum_io: 0,
                optimal_io: 0,
                is_misaligned: false,
            };
            assert_eq!(sector_for(topology, size), expected, "{topology:?}");
        }
    }
}
