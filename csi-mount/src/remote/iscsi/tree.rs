//! What the kernel says about iSCSI sessions, in `/sys/class/iscsi_session`, and about their logical units.
//!
//! All reads are of attributes that the kernel answers from memory. The names of a unit are those of its last
//! scan or rescan.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::target::{LunId, Name};
use crate::device::sysfs::{is_same_wwn, scsi_serial};
use crate::{DeviceNumber, Error, Result};

const LIST: &str = "list the iSCSI sessions in";

/// The sessions of this node, read at one time.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) sessions: Vec<Session>,
}

/// A login to a target at one portal.
#[derive(Debug, Clone)]
pub(super) struct Session {
    /// `session3`
    pub(super) name: String,
    /// `host2`
    pub(super) host: String,
    pub(super) iqn: String,
    pub(super) portal: Option<SocketAddr>,
    /// The name of open-iscsi's interface record.
    pub(super) interface: String,
    pub(super) state: String,
    /// The target's number at its host, for a scan.
    pub(super) target: u32,
    pub(super) units: Vec<Unit>,
}

/// A logical unit, as one session shows it.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// Its directory in sysfs.
    pub(super) place: PathBuf,
    pub(super) lun: u64,
    pub(super) state: String,
    /// `sda`; none if it is no disk, or not one yet.
    pub(super) disk: Option<String>,
    pub(super) number: Option<DeviceNumber>,
    /// In bytes.
    pub(super) size: u64,
    /// The world-wide name that the kernel prefers.
    pub(super) wwid: Option<String>,
    /// Its world-wide names, in the kernel's notation.
    pub(super) names: Vec<String>,
    pub(super) serial: Option<String>,
}

impl Session {
    pub(super) fn is_live(&self) -> bool {
        self.state == "LOGGED_IN"
    }
}

impl Unit {
    pub(super) fn is_running(&self) -> bool {
        self.state == "running"
    }

    pub(super) fn has(&self, id: &LunId) -> bool {
        match &id.0 {
            Name::Wwid(wanted) => self.names.iter().any(|name| is_same_wwn(name, wanted)),
            Name::Serial(wanted) => self.serial.as_ref() == Some(wanted),
        }
    }

    /// Who it is, for a message.
    pub(super) fn description(&self) -> String {
        let serial = self.serial.iter().map(|serial| format!("serial:{serial}"));
        let names = self.names.iter().cloned().chain(serial).collect::<Vec<_>>().join(", ");
        if names.is_empty() { "a unit without a name".to_owned() } else { names }
    }
}

impl Tree {
    /// Reads `class/iscsi_session` below this root. A session that goes away meanwhile is left out.
    pub(super) fn read(sys: &Path) -> Result<Self> {
        let class = sys.join("class/iscsi_session");
        let entries = match fs::read_dir(&class) {
            // The module is not loaded.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(|error| Error::os(LIST, &class, error))?,
        };
        let mut sessions = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| Error::os(LIST, &class, error))?.path();
            sessions.extend(session(sys, &path));
        }
        sessions.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { sessions })
    }
}

fn session(sys: &Path, path: &Path) -> Option<Session> {
    let attribute = |name: &str| text(&path.join(name));
    let device = fs::canonicalize(path.join("device")).ok()?;
    let host = device.parent()?.file_name()?.to_str()?.to_owned();
    let (mut portal, mut target, mut units) = (None, None, Vec::new());
    for entry in fs::read_dir(&device).ok()?.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.starts_with("connection") {
            portal = connection(&entry.path().join("iscsi_connection").join(&name)).or(portal);
        } else if let Some(place) = name.strip_prefix("target") {
            target = place.rsplit_once(':').and_then(|(_, number)| number.parse().ok()).or(target);
            let found = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            units.extend(found.filter_map(|entry| unit(sys, entry.path())));
        }
    }
    units.sort_by_key(|unit| unit.lun);
    Some(Session {
        name: path.file_name()?.to_str()?.to_owned(),
        host,
        iqn: attribute("targetname")?,
        portal,
        interface: attribute("ifacename").unwrap_or_default(),
        state: attribute("state")?,
        target: target.or_else(|| attribute("target_id")?.parse().ok()).unwrap_or(0),
        units,
    })
}

/// The portal that was asked for, and not the one to which the target redirects.
fn connection(path: &Path) -> Option<SocketAddr> {
    let ip: IpAddr = text(&path.join("persistent_address"))?.parse().ok()?;
    Some(SocketAddr::new(ip, text(&path.join("persistent_port"))?.parse().ok()?))
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

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
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
