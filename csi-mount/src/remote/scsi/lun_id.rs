//! The name of a logical unit.

use std::fmt;

use crate::device::expected::ExpectedDevice;
use crate::device::sysfs::{bare_wwn, is_same_wwn};
use crate::error::{Error, ErrorKind, Result};

const READ: &str = "read the name of a logical unit";
/// No name of SCSI is longer.
const MAX: usize = 255;

fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, READ, reason)
}

/// The name of a logical unit that does not change: a logical unit number (LUN) can be given to another
/// volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunId(Name);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Wwid(String),
    Serial(String),
}

impl LunId {
    /// The world-wide name (VPD page 83), in any notation: `naa.6001405…`, `wwn-0x6001405…`, `36001405…`,
    /// `eui.…`, `t10.…`. Each name of the unit counts, not only the one that the kernel prefers.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if it is empty, has control characters, or only zeros.
    pub fn wwid(text: &str) -> Result<Self> {
        let text = valid(text, "world-wide name")?;
        if bare_wwn(&text).bytes().all(|letter| letter == b'0') {
            return Err(invalid(format!("{text:?} is not a world-wide name")));
        }
        Ok(Self(Name::Wwid(text)))
    }

    /// The unit's serial number (VPD page 80).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if it is empty or has control characters.
    pub fn serial(text: &str) -> Result<Self> {
        Ok(Self(Name::Serial(valid(text, "serial number")?)))
    }

    /// The name without its kind.
    pub(in crate::remote) fn name(&self) -> &str {
        match &self.0 {
            Name::Wwid(name) | Name::Serial(name) => name,
        }
    }

    /// The page of vital product data that has the name, as sysfs calls it.
    pub(super) fn page(&self) -> &'static str {
        match &self.0 {
            Name::Wwid(_) => "vpd_pg83",
            Name::Serial(_) => "vpd_pg80",
        }
    }

    /// What identifies a disk with this name, by the one world-wide name that the kernel prefers.
    pub(in crate::remote) fn expected(&self) -> ExpectedDevice {
        match &self.0 {
            Name::Wwid(name) => ExpectedDevice::new().wwn(name),
            Name::Serial(name) => ExpectedDevice::new().serial(name),
        }
    }

    /// Whether a unit with these names and this serial number has this name.
    pub(super) fn is_one_of(&self, names: &[String], serial: Option<&str>) -> bool {
        match &self.0 {
            Name::Wwid(wanted) => names.iter().any(|name| is_same_wwn(name, wanted)),
            Name::Serial(wanted) => serial == Some(wanted),
        }
    }

    pub(in crate::remote) fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("wwid", name) => Self::wwid(name).ok(),
            ("serial", name) => Self::serial(name).ok(),
            _ => None,
        }
    }
}

/// `wwid:…` or `serial:…`.
impl fmt::Display for LunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Name::Wwid(name) => write!(f, "wwid:{name}"),
            Name::Serial(name) => write!(f, "serial:{name}"),
        }
    }
}

fn valid(text: &str, what: &str) -> Result<String> {
    let text = text.trim();
    let is_valid = (1..=MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    if !is_valid {
        return Err(invalid(format!("{text:?} is not a {what}")));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for id in [LunId::wwid("naa.6001405").unwrap(), LunId::serial(" a b ").unwrap()] {
            assert_eq!(LunId::parse(&id.to_string()), Some(id));
        }
        for wrong in ["", "  ", "naa.000", "0x0", "a\nb"] {
            assert!(LunId::wwid(wrong).is_err(), "{wrong}");
        }
    }
}
