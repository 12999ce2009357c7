//! The disks of a volume group: lvm reads these and no others.
//!
//! lvm takes whatever looks like a disk of its own for one. A tenant writes what it likes to a raw volume, and a mapping
//! above it, a loop device or a disk of another driver shows that to lvm: metadata with the group's UUID, or a second group
//! of its name. So each command reads the disks that the group had when it was first used. The same file has what is known about
//! their free extents.

use std::fs;
use std::io;
use std::path::Path;

use crate::device::sysfs::Sysfs;
use crate::error::{Error, ErrorKind, Result};
use crate::lvm::report::Report;
use crate::lvm::zeros::Zeros;
use crate::sys::durable;

/// What a volume group is known by from its first use on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) uuid: String,
    pub(super) disks: Vec<KnownDisk>,
    pub(super) zeros: Zeros,
}

/// A disk of a volume group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KnownDisk {
    /// Of the physical volume.
    uuid: String,
    /// The device that it is on.
    device: String,
}

impl Known {
    /// What a report says about the group.
    pub(super) fn of(report: &Report, sysfs: &Sysfs) -> Result<Self> {
        let mut disks = Vec::new();
        for disk in &report.disks {
            let device = disk.number.and_then(|number| sysfs.lasting_name(number)).ok_or_else(|| {
                let reason = format!("its physical volume {} is on no device of this node", disk.uuid);
                Error::new(ErrorKind::Unreadable, USE, reason)
            })?;
            disks.push(KnownDisk { uuid: disk.uuid.clone(), device });
        }
        disks.sort();
        Ok(Self { uuid: report.uuid.clone(), disks, zeros: Zeros::default() })
    }

    /// None before the first use.
    pub(super) fn read(file: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| Error::os("read", file, error))?,
        };
        let known = Self::parse(&text).ok_or_else(|| {
            let error =
                Error::new(ErrorKind::Damaged, "read", "it says nothing about a volume group").at(file);
            error.hint("if the group is whole and complete (`vgs`), remove the file")
        })?;
        Ok(Some(known))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let uuid = lines.next()?.strip_prefix("group ")?.to_owned();
        let mut known = Self { uuid, disks: Vec::new(), zeros: Zeros::default() };
        for line in lines {
            if let Some(disk) = line.strip_prefix("disk ") {
                let (uuid, device) = disk.split_once(' ')?;
                known.disks.push(KnownDisk { uuid: uuid.to_owned(), device: device.to_owned() });
            } else {
                known.zeros.read_line(line)?;
            }
        }
        Some(known)
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let disks = self.disks.iter().map(|disk| format!("disk {} {}\n", disk.uuid, disk.device));
        let text = format!("group {}\n{}{}", self.uuid, disks.collect::<String>(), self.zeros.to_lines());
        let new = file.with_extension("new");
        let written = durable::write(file, &new, text.as_bytes());
        written.map_err(|error| Error::os("remember a volume group in", file, error))
    }
}

/// The settings by which lvm reads only these disks. Before the disks are known: all that can be one, which a logical volume
/// and what is built on one cannot.
///
/// # Errors
/// [`ErrorKind::Unreadable`] if a disk is not attached.
pub(super) fn settings(disks: Option<&[KnownDisk]>, sysfs: &Sysfs) -> Result<String> {
    let all = sysfs.blocks_not_on_lvm()?;
    let mut names: Vec<&str> = Vec::new();
    match disks {
        None => names.extend(all.iter().map(|block| &*block.name)),
        Some(disks) => {
            let known: Vec<_> = all.iter().map(|block| (block, sysfs.lasting_name(block.number))).collect();
            for disk in disks {
                let before = names.len();
                let is_it = |name: &Option<String>| name.as_ref() == Some(&disk.device);
                names.extend(known.iter().filter(|(_, name)| is_it(name)).map(|(block, _)| &*block.name));
                if names.len() == before {
                    let reason = format!("its disk {} ({}) is not attached", disk.device, disk.uuid);
                    return Err(Error::new(ErrorKind::Unreadable, USE, reason));
                }
            }
        }
    }
    let accepted: String = names.iter().map(|name| format!("\"a|^/dev/{name}$|\",")).collect();
    Ok(format!(
        "devices{{use_devicesfile=0 scan_lvs=0 hints=\"none\" filter=[\"a|.*|\"] global_filter=[{accepted}\"r|.*|\"]}}"
    ))
}

/// Refuses a group that has other disks than these.
pub(super) fn judge(report: &Report, disks: &[KnownDisk]) -> Result<()> {
    let mut found: Vec<&str> = report.disks.iter().map(|disk| &*disk.uuid).collect();
    found.sort_unstable();
    let expected: Vec<&str> = disks.iter().map(|disk| &*disk.uuid).collect();
    if found == expected {
        return Ok(());
    }
    let reason = format!("it has the disks {}, and not {}", found.join(", "), expected.join(", "));
    Err(Error::new(ErrorKind::WrongDevice, USE, reason))
}

const USE: &str = "use volume group";
