//! Whether two block devices are the same place of one disk, reached in two ways: paths that multipath did
//! not combine, a disk that came back under another number, a file that is attached twice.

use crate::device::loop_device::LoopDevice;
use crate::device::sysfs::{DeviceIdentity, Sysfs};
use crate::error::Result;
use crate::sys::ids::DeviceNumber;

/// Whether both are the same, according to the identities that they report. Disks without a name count as
/// different.
pub(crate) fn is_same_disk(one: DeviceNumber, other: DeviceNumber) -> Result<bool> {
    let sysfs = Sysfs::system();
    let one = beneath_encryption(&sysfs, one)?;
    let other = beneath_encryption(&sysfs, other)?;
    if one == other || LoopDevice::are_of_one_backing(one, other)? {
        return Ok(true);
    }
    is_same_in(&sysfs, one, other)
}

fn is_same_in(sysfs: &Sysfs, one: DeviceNumber, other: DeviceNumber) -> Result<bool> {
    Ok(sysfs.start(one) == sysfs.start(other) && is_one(&sysfs.identity(one)?, &sysfs.identity(other)?))
}

/// If there is a world-wide name, it decides: a serial number can be that of a controller, or of an array
/// with many disks.
fn is_one(one: &DeviceIdentity, other: &DeviceIdentity) -> bool {
    match (&one.wwn, &other.wwn, &one.serial, &other.serial) {
        (Some(wwn), Some(_), ..) => other.has_wwn(wwn),
        (None, None, Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// The device beneath an encrypted device, which holds nothing but the content of that encrypted device.
fn beneath_encryption(sysfs: &Sysfs, number: DeviceNumber) -> Result<DeviceNumber> {
    if !sysfs.has_mapper() {
        return Ok(number);
    }
    let all = sysfs.all_mapped()?;
    let mapped = all.iter().find(|mapped| mapped.number == number && mapped.uuid.starts_with("CRYPT-"));
    Ok(mapped.and_then(|mapped| mapped.beneath).unwrap_or(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeDisk;
    use crate::testing::disks::FakeDisks;

    #[test]
    fn identities_that_several_disks_can_share_prove_nothing() {
        let disk = |wwn: Option<&str>, serial: Option<&str>| DeviceIdentity {
            wwn: wwn.map(str::to_owned),
            serial: serial.map(str::to_owned),
            ..DeviceIdentity::default()
        };
        for (one, other, expected) in [
            ((Some("naa.5000c5"), None), (Some("naa.5000c5"), None), true),
            ((Some("mpath-35000c500a1b2c3d4"), None), (Some("naa.5000c500a1b2c3d4"), Some("s")), true),
            ((Some("eui.01"), Some("controller")), (Some("eui.02"), Some("controller")), false),
            ((None, Some("vol-1")), (None, Some("vol-1")), true),
            ((None, Some("vol-1")), (None, Some("vol-2")), false),
            ((Some("eui.01"), Some("vol-1")), (None, Some("vol-1")), false),
            ((None, None), (None, None), false),
        ] {
            assert_eq!(is_one(&disk(one.0, one.1), &disk(other.0, other.1)), expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_partition_is_the_same_only_as_the_one_at_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let disks = FakeDisks::new(directory.path());
        let path = |name| FakeDisk::scsi(name, 1).wwid("naa.5000c500a1b2c3d4").size(64 << 20);
        let [one, other] = ["sda", "sdb"].map(|name| disks.add(path(name)));
        let [first, same] = ["sda", "sdb"].map(|name| disks.add_partition(name, 1, 0..1 << 20));
        let second = disks.add_partition("sdb", 2, 1 << 20..2 << 20);
        let is_same =
            |one, other| is_same_in(&Sysfs::below(&directory.path().join("sys")), one, other).unwrap();
        assert!(is_same(one, other) && is_same(first, same));
        assert!(!is_same(first, second) && !is_same(one, second));
    }
}
