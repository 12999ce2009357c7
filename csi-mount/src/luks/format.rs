//! Headers on a device that is proven blank.

use super::command::{CRYPTSETUP, run};
use super::{HEADER, Luks, LuksKey, LuksPbkdf};
use crate::check::utf8;
use crate::format::look_again;
use crate::intent::{self, Intent, Made, Uuid, hyphenated};
use crate::{BlankProof, BlockDevice, Error, ErrorKind, Probe, Result};

const FORMAT: &str = "encrypt";
/// Headers, and room for something.
const LEAST: u64 = HEADER + (1 << 20);

impl Luks {
    /// Makes the device that the proof is for an encrypted one: `cryptsetup luksFormat`.
    ///
    /// It keeps the rules of [`Format::run`](crate::Format::run): it looks once more under the device's lock, leaves a record
    /// first, by which a run that is killed can be begun anew ([`Probe::Interrupted`]), and looks for the headers
    /// afterwards. What is inside is not written: it reads as noise.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](ErrorKind::InvalidInput): a sector size or cost that can't be.
    /// - [`NotBlank`](ErrorKind::NotBlank), [`Unreadable`](ErrorKind::Unreadable),
    ///   [`WrongDevice`](ErrorKind::WrongDevice): the device changed since the proof. It was not written to.
    /// - [`Busy`](ErrorKind::Busy): in use, or locked by another program.
    /// - [`ReadOnly`](ErrorKind::ReadOnly): the device refuses writes.
    /// - [`OutOfRange`](ErrorKind::OutOfRange): the device has less than 17 MiB.
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory), [`MissingTool`](ErrorKind::MissingTool),
    ///   [`ToolFailed`](ErrorKind::ToolFailed), [`Unresponsive`](ErrorKind::Unresponsive): of `cryptsetup`.
    pub fn format(&self, proof: BlankProof<'_>, key: &LuksKey) -> Result<()> {
        let device = proof.device();
        let uuid = intent::random_uuid(device)?;
        let arguments = self.format_line(device, uuid)?;
        CRYPTSETUP.find()?;
        refuse_small(device, LEAST)?;

        let _lock = device.lock()?;
        let rubble = look_again(device)?;
        intent::begin(device, Intent { made: Made::Luks, uuid: Some(uuid) }, &rubble)?;
        tracing::info!(device = %device.path().display(), "encrypt");
        run(FORMAT, device.path(), &arguments, Some(key), self.bounds())?;
        device.verify()?;
        match device.probe() {
            Probe::Container(found) if found.is_luks() => intent::erase(device).map(drop),
            found => {
                let reason = format!("cryptsetup reported success, but the device holds {found}");
                Err(Error::new(ErrorKind::ToolFailed, FORMAT, reason).at(device.path()))
            }
        }
    }

    fn format_line(&self, device: &BlockDevice, uuid: Uuid) -> Result<Vec<String>> {
        let wrong = |reason: &str| Error::new(ErrorKind::InvalidInput, FORMAT, reason).at(device.path());
        let mut line = vec!["luksFormat".to_owned(), "--type=luks2".to_owned()];
        line.push(format!("--uuid={}", hyphenated(uuid)));
        line.push(format!("--offset={}", HEADER / 512));
        match self.pbkdf {
            LuksPbkdf::Argon2id { memory, iterations } => {
                if !(32 << 10..=4 << 30).contains(&memory) || iterations < 4 {
                    return Err(wrong("Argon2id takes 32 KiB to 4 GiB of memory, and 4 iterations or more"));
                }
                line.push("--pbkdf=argon2id".to_owned());
                line.push(format!("--pbkdf-memory={}", memory >> 10));
                line.push("--pbkdf-parallel=1".to_owned());
                line.push(format!("--pbkdf-force-iterations={iterations}"));
            }
            LuksPbkdf::Pbkdf2 { iterations } => {
                if iterations < 1000 {
                    return Err(wrong("PBKDF2 takes 1000 iterations or more"));
                }
                line.push("--pbkdf=pbkdf2".to_owned());
                line.push(format!("--pbkdf-force-iterations={iterations}"));
            }
        }
        match self.sector_size {
            None => {}
            Some(size @ (512 | 1024 | 2048 | 4096)) if device.size()?.is_multiple_of(size.into()) => {
                line.push(format!("--sector-size={size}"));
            }
            Some(512 | 1024 | 2048 | 4096) => {
                return Err(wrong("the device's size is not a multiple of the sector size"));
            }
            Some(_) => return Err(wrong("a sector has 512, 1024, 2048 or 4096 bytes")),
        }
        line.push(utf8(device.path(), FORMAT)?.to_owned());
        Ok(line)
    }
}

/// A device has to have room for what is to be inside.
pub(super) fn refuse_small(device: &BlockDevice, least: u64) -> Result<()> {
    let size = device.size()?;
    if size >= least {
        return Ok(());
    }
    let reason = format!("encrypted, {least} bytes are needed, and the device has {size}");
    Err(Error::new(ErrorKind::OutOfRange, FORMAT, reason).at(device.path()))
}
