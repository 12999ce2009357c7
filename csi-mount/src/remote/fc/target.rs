//! What a driver says about a volume: which logical unit at which ports.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::device::expected::ExpectedDevice;
use crate::device::sysfs::bare_wwn;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::scsi::LunId;

/// How long an attach waits for the disk by default.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The name of a port of Fibre Channel, a world-wide port name (WWPN).
///
/// It is parsed from 16 hexadecimal digits, with `0x` in front or colons between the bytes.
///
/// ```
/// use csi_mount::remote::Wwpn;
///
/// # fn main() -> csi_mount::Result<()> {
/// let port: Wwpn = "50:06:01:60:3b:20:41:9a".parse()?;
/// assert_eq!(port, "0x500601603B20419A".parse()?);
/// assert_eq!(port.to_string(), "0x500601603b20419a");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wwpn(u64);

impl FromStr for Wwpn {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.trim().trim_start_matches("0x").replace(':', "");
        let is_name = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_name.then(|| u64::from_str_radix(&digits, 16).ok()).flatten();
        number.filter(|number| *number != 0).map(Self).ok_or_else(|| {
            let reason = format!("{text:?} is not the name of a port: 16 hexadecimal digits, not all zero");
            Error::new(ErrorKind::InvalidInput, "read the name of a Fibre Channel port", reason)
        })
    }
}

/// As in sysfs: `0x500601603b20419a`.
impl fmt::Display for Wwpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// A logical unit as a record names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) struct FcDisk {
    pub(in crate::remote) ports: Vec<Wwpn>,
    /// Empty: all of this node.
    pub(in crate::remote) initiators: Vec<Wwpn>,
    pub(in crate::remote) lun: u64,
    pub(in crate::remote) id: LunId,
}

impl FcDisk {
    /// Whether both are the same unit with the same number. Ports can be added to an attachment.
    pub(in crate::remote) fn is_same(&self, other: &Self) -> bool {
        self.lun == other.lun && self.id == other.id
    }

    /// Whether a unit of both with the same number would be the same one.
    pub(in crate::remote) fn has_address_of(&self, other: &Self) -> bool {
        let has_common = |one: &[Wwpn], other: &[Wwpn]| one.iter().any(|port| other.contains(port));
        let is_anywhere = self.initiators.is_empty() || other.initiators.is_empty();
        self.lun == other.lun
            && has_common(&self.ports, &other.ports)
            && (is_anywhere || has_common(&self.initiators, &other.initiators))
    }

    /// Adds the ports of an earlier attach: paths can exist there.
    pub(in crate::remote) fn add_ports_of(&mut self, earlier: &Self) {
        let missing = |port: &&Wwpn| !self.ports.contains(port);
        let missing: Vec<Wwpn> = earlier.ports.iter().filter(missing).copied().collect();
        self.ports.extend(missing);
    }
}

pub(in crate::remote) fn list(ports: &[Wwpn]) -> String {
    ports.iter().map(Wwpn::to_string).collect::<Vec<_>>().join(",")
}

pub(in crate::remote) fn parse_list(text: &str) -> Option<Vec<Wwpn>> {
    text.split(',').filter(|port| !port.is_empty()).map(|port| port.parse().ok()).collect()
}

/// A logical unit that is reached over Fibre Channel.
///
/// ```
/// use csi_mount::remote::FcTarget;
///
/// # fn main() -> csi_mount::Result<()> {
/// let target = FcTarget::new(3, "naa.60014051234567890abcdef012345678")?
///     .port("0x500601603b20419a".parse()?)
///     .port("0x500601613b20419a".parse()?);
/// # drop(target);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct FcTarget {
    pub(in crate::remote) disk: FcDisk,
    pub(super) is_single_path_allowed: bool,
    pub(super) wait_limit: Duration,
}

impl FcTarget {
    /// The logical unit with this number and this world-wide name (VPD page 83, in any notation: `naa.6001405…`,
    /// `36001405…`). A unit with another name is never returned. The number is the one in the last part of
    /// `lsscsi`'s address, and the same at each port. It needs at least one [`port`](Self::port).
    ///
    /// A serial number is not enough: the kernel shows the units of all storage systems, and each system numbers
    /// its own.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if `wwid` is not a world-wide name.
    pub fn new(lun: u64, wwid: &str) -> Result<Self> {
        // One notation, so that records and locks compare.
        let id = LunId::wwid(wwid).and_then(|_| LunId::wwid(&bare_wwn(wwid)))?;
        let disk = FcDisk { ports: Vec::new(), initiators: Vec::new(), lun, id };
        Ok(Self { disk, is_single_path_allowed: false, wait_limit: WAIT_LIMIT })
    }

    /// Adds a port of the target. The LUN is scanned at each port that this node reaches; one is enough. Paths
    /// over other ports, which the kernel has found by itself, belong to the volume too.
    pub fn port(mut self, wwpn: Wwpn) -> Self {
        if !self.disk.ports.contains(&wwpn) {
            self.disk.ports.push(wwpn);
        }
        self
    }

    /// Adds a port of this node: the LUN is then scanned over these ports only. By default over all. It is for
    /// storage systems that give each port of the node other numbers.
    pub fn initiator(mut self, wwpn: Wwpn) -> Self {
        if !self.disk.initiators.contains(&wwpn) {
            self.disk.initiators.push(wwpn);
        }
        self
    }

    /// Also uses a disk with one path and no multipath map: where multipathd does not run or makes no map. A
    /// second path that comes later is not used while the volume is attached.
    pub fn allow_single_path(mut self) -> Self {
        self.is_single_path_allowed = true;
        self
    }

    /// Sets how long an attach waits for a port, and for the disk. The default is 30 seconds.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// What identifies the disk, for [`StagePlan::expect`](crate::flow::block::StagePlan::expect): the stage
    /// then asks the device again who it is. The name must then be the one that the kernel prefers
    /// (`/sys/block/sdX/device/wwid`).
    pub fn expected(&self) -> ExpectedDevice {
        self.disk.id.expected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ports_are_checked() {
        let port: Wwpn = "500601603b20419a".parse().unwrap();
        for same in ["0x500601603b20419a", "50:06:01:60:3B:20:41:9A", " 500601603B20419A\n"] {
            assert_eq!(same.parse::<Wwpn>().unwrap(), port, "{same}");
        }
        for wrong in
            ["", "0x", "500601603b20419", "500601603b20419a0", "0000000000000000", "+00601603b20419a"]
        {
            let error = wrong.parse::<Wwpn>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wrong}");
        }
        let low: Wwpn = "0000000000000001".parse().unwrap();
        assert_eq!(low.to_string(), "0x0000000000000001");
        assert_eq!(parse_list(&list(&[port, low])), Some(vec![port, low]));
        assert_eq!((parse_list(""), parse_list("x")), (Some(vec![]), None));
    }

    #[test]
    fn one_unit_has_one_name() {
        let names = ["naa.60014051234567890abcdef012345678", "wwn-0x60014051234567890ABCDEF012345678"];
        let [one, other] = names.map(|name| FcTarget::new(3, name).unwrap().disk);
        assert_eq!(one, other);
        assert!(FcTarget::new(3, "naa.0").is_err() && FcTarget::new(3, "").is_err());
    }
}
