//! The numbers by which the kernel knows a mount and a device.

use std::fmt;

/// The kernel's id of a mount, as in the first field of mountinfo.
///
/// It is unique among the existing mounts, and can be reused after an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MountId(pub(crate) u64);

impl fmt::Display for MountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A device number, `major:minor` as in `/proc/self/mountinfo` and `/sys/dev/block`.
///
/// Equal numbers mean the same device while the device is held open. After that the kernel can give the
/// number to another device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct DeviceNumber {
    /// The number of the driver: 7 is a loop device.
    pub major: u32,
    /// The device within its driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// The number with these parts.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Converts a `dev_t`, as in `st_dev` and `st_rdev`; see `makedev(3)`.
    pub(crate) fn from_dev_t(dev: u64) -> Self {
        Self { major: rustix::fs::major(dev), minor: rustix::fs::minor(dev) }
    }

    /// The number as a `dev_t`, for comparison with `st_dev` and `st_rdev`.
    pub(crate) fn dev_t(self) -> u64 {
        rustix::fs::makedev(self.major, self.minor)
    }

    /// Parses `major:minor`, the form in sysfs and mountinfo.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_survive_the_round_trip() {
        for (major, minor) in [(7, 0), (259, 1_048_575), (4095, 300)] {
            let number = DeviceNumber { major, minor };
            assert_eq!(DeviceNumber::from_dev_t(number.dev_t()), number);
            assert_eq!(number.to_string(), format!("{major}:{minor}"));
        }
    }
}
