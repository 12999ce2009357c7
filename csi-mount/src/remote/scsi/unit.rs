//! What the kernel says about logical units, and about the connections that show them; and the deletion of units.
//!
//! All reads are of attributes that the kernel answers from memory. The names of a unit are those of its last
//! scan or rescan.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::LunId;
use crate::device::sysfs::scsi_serial;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask::{self, text};
use crate::remote::detach::{POLL_INTERVAL, claim, while_busy};
use crate::sys::ids::DeviceNumber;

/// The nodes to which commands are sent, by the unit's address.
pub(super) const NODES: &str = "/dev/bsg";

/// A connection of a port of this node to a port of a target (the I_T nexus of SCSI): a session of iSCSI, a
/// remote port of Fibre Channel.
#[derive(Debug, Clone)]
pub(in crate::remote) struct Nexus {
    /// `session3`
    pub(in crate::remote) name: String,
    /// `host2`
    pub(in crate::remote) host: String,
    /// The target's channel and number at its host, for a scan.
    pub(in crate::remote) channel: u32,
    pub(in crate::remote) target: u32,
    /// In the transport's words.
    pub(in crate::remote) state: String,
    /// Whether the transport reaches the target.
    pub(in crate::remote) is_live: bool,
    /// Whether the attachment's number is the unit's number here. If not, the unit is known by its name only.
    pub(in crate::remote) is_asked: bool,
    pub(in crate::remote) units: Vec<Unit>,
}

/// A logical unit, as one connection shows it.
#[derive(Debug, Clone)]
pub(in crate::remote) struct Unit {
    /// Its directory in sysfs.
    pub(in crate::remote) place: PathBuf,
    pub(in crate::remote) lun: u64,
    pub(in crate::remote) state: String,
    /// `sda`; none if it is no disk, or not one yet.
    pub(in crate::remote) disk: Option<String>,
    pub(in crate::remote) number: Option<DeviceNumber>,
    /// In bytes.
    pub(in crate::remote) size: u64,
    /// The world-wide name that the kernel prefers.
    pub(in crate::remote) wwid: Option<String>,
    /// Its world-wide names, in the kernel's notation.
    names: Vec<String>,
    serial: Option<String>,
}

impl Nexus {
    pub(super) fn with_units(&self) -> impl Iterator<Item = (&Self, &Unit)> {
        self.units.iter().map(move |unit| (self, unit))
    }
}

impl Unit {
    pub(in crate::remote) fn is_running(&self) -> bool {
        self.state == "running"
    }

    /// Its node for commands.
    pub(super) fn node(&self) -> PathBuf {
        Path::new(NODES).join(self.place.file_name().unwrap_or_default())
    }

    pub(in crate::remote) fn has(&self, id: &LunId) -> bool {
        id.is_one_of(&self.names, self.serial.as_deref())
    }

    /// Who it is, for a message.
    pub(super) fn description(&self) -> String {
        let serial = self.serial.iter().map(|serial| format!("serial:{serial}"));
        let names = self.names.iter().cloned().chain(serial).collect::<Vec<_>>().join(", ");
        if names.is_empty() { "a unit without a name".to_owned() } else { names }
    }
}

/// A target below a connection's device: its channel and number, and its units.
pub(in crate::remote) struct Target {
    pub(in crate::remote) channel: u32,
    pub(in crate::remote) number: u32,
    pub(in crate::remote) units: Vec<Unit>,
}

/// Reads a SCSI target's directory (`target3:0:1`). Returns `None` for any other directory.
pub(in crate::remote) fn target(sys: &Path, place: &Path) -> Option<Target> {
    let mut address = place.file_name()?.to_str()?.strip_prefix("target")?.split(':').skip(1);
    let channel = address.next()?.parse().ok()?;
    let number = address.next()?.parse().ok()?;
    let found = fs::read_dir(place).into_iter().flatten().flatten();
    let mut units: Vec<Unit> = found.filter_map(|entry| unit(sys, entry.path())).collect();
    units.sort_by_key(|unit| unit.lun);
    Some(Target { channel, number, units })
}

fn unit(sys: &Path, place: PathBuf) -> Option<Unit> {
    let mut address = place.file_name()?.to_str()?.split(':');
    let (Some(_), Some(_), Some(_), Some(lun), None) =
        (address.next(), address.next(), address.next(), address.next(), address.next())
    else {
        return None;
    };
    let lun = lun.parse().ok()?;
    let mut disks = fs::read_dir(place.join("block")).into_iter().flatten().flatten();
    let disk = disks.next().and_then(|disk| disk.file_name().into_string().ok());
    let block = disk.as_ref().map(|disk| sys.join("block").join(disk));
    let of_block = |file: &str| text(&block.as_ref()?.join(file));
    let mut names = fs::read(place.join("vpd_pg83")).map(|page| designators(&page)).unwrap_or_default();
    let wwid = text(&place.join("wwid")).filter(|name| !name.is_empty());
    names.extend(wwid.clone().filter(|name| !names.contains(name)));
    Some(Unit {
        lun,
        state: text(&place.join("state"))?,
        number: of_block("dev").and_then(|number| DeviceNumber::parse(&number)),
        size: of_block("size").and_then(|size| size.parse::<u64>().ok()).unwrap_or(0) * 512,
        wwid,
        names,
        serial: scsi_serial(&place.join("vpd_pg80")),
        disk,
        place,
    })
}

/// The names of the unit in its device identification page (SPC, VPD page 83), in the kernel's notation.
fn designators(page: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = page.get(4..).unwrap_or_default();
    while let [_, kind, _, length, after @ ..] = rest {
        let Some((value, next)) = after.split_at_checked(usize::from(*length)) else { break };
        rest = next;
        // Of the unit, and not of its port or target.
        if kind & 0x30 != 0 {
            continue;
        }
        let hex = || value.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = || String::from_utf8_lossy(value).trim_matches([' ', '\0']).to_owned();
        names.extend(match kind & 0xf {
            1 => Some(format!("t10.{}", text())),
            2 => Some(format!("eui.{}", hex())),
            3 => Some(format!("naa.{}", hex())),
            8 => Some(text()),
            _ => None,
        });
    }
    names
}

const DELETE: &str = "delete a path with";
const DELETE_LIMIT: Duration = Duration::from_secs(30);

/// Deletes a unit, if it is no disk that somebody uses. What the target has stays as it is.
pub(super) fn delete(unit: &Unit) -> Result<()> {
    let held = while_busy(|| unit.number.map(claim).transpose())?;
    let switch = unit.place.join("delete");
    let end = Instant::now() + DELETE_LIMIT;
    let deleted = ask::write(DELETE, &switch, b"1", DELETE_LIMIT);
    drop(held);
    deleted?;
    while unit.place.exists() {
        if Instant::now() > end {
            let reason = format!("it still exists after {DELETE_LIMIT:?}");
            return Err(Error::new(ErrorKind::Unresponsive, DELETE, reason).at(switch));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_unit_are_read_and_others_are_not() {
        let mut page = vec![0, 0x83, 0, 0];
        for (kind, value) in [
            (0x03, &[0x60, 1, 0x40, 5][..]),
            (0x13, &[0x50, 0, 0, 1]),
            (0x02, &[1, 2]),
            (0x01, b"LIO-ORG vol "),
            (0x08, b"naa.6001\0\0"),
            (0x04, &[0, 0, 0, 1]),
            (0x28, b"iqn.target"),
        ] {
            page.extend([1, kind, 0, value.len() as u8]);
            page.extend(value);
        }
        assert_eq!(designators(&page), ["naa.60014005", "eui.0102", "t10.LIO-ORG vol", "naa.6001"]);
        for length in 0..page.len() {
            designators(&page[..length]);
        }
    }
}
