//! Devices that share bytes of a disk: its partitions, and the disk that a partition is on.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::Path;

use super::{Sysfs, names, text};
use crate::sys::ids::DeviceNumber;

/// A device that has bytes in common with another one, or is that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) number: DeviceNumber,
    /// The kernel's name: `sda1`.
    pub(crate) name: OsString,
    /// The common bytes, counted from the start of this device.
    pub(crate) range: Range<u64>,
}

impl Sysfs {
    /// The device itself first, then the partitions of a disk, or the disk of a partition.
    ///
    /// Without `/sys` it is only the device, without a name.
    pub(crate) fn overlaps(&self, number: DeviceNumber) -> Vec<Overlap> {
        let alone = |name| Overlap { number, name, range: 0..u64::MAX };
        let Ok(directory) = fs::canonicalize(self.device(number)) else {
            return vec![alone(OsString::new())];
        };
        let name = directory.file_name().unwrap_or_default().to_owned();
        let mut all = vec![alone(name)];
        if directory.join("partition").exists() {
            let disk = directory.parent().and_then(|disk| overlap_at(disk, bytes_of(&directory)));
            all.extend(disk);
        } else {
            // The kernel names a partition after its disk.
            let disk = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let children = names(&directory).unwrap_or_default().into_iter();
            let named = children.filter(|name| name.starts_with(&disk)).map(|name| directory.join(name));
            let partitions = named.filter(|place| place.join("partition").exists());
            all.extend(partitions.filter_map(|place| overlap_at(&place, 0..u64::MAX)));
        }
        all
    }

    /// The names of the devices that are built on a device: none if it is gone.
    pub(crate) fn holders_at(&self, number: DeviceNumber) -> Vec<String> {
        self.holders(number).unwrap_or_default()
    }

    /// Where on its disk a partition begins, in sectors; a whole disk has no such file.
    pub(crate) fn start(&self, number: DeviceNumber) -> Option<String> {
        text(&self.device(number).join("start"))
    }

    /// Whether the kernel refuses all writes to the device.
    pub(crate) fn is_read_only(&self, number: DeviceNumber) -> bool {
        text(&self.device(number).join("ro")).is_some_and(|text| text == "1")
    }
}

fn overlap_at(directory: &Path, range: Range<u64>) -> Option<Overlap> {
    let number = DeviceNumber::parse(&text(&directory.join("dev"))?)?;
    Some(Overlap { number, name: directory.file_name()?.to_owned(), range })
}

/// The bytes of the disk that a partition covers.
fn bytes_of(partition: &Path) -> Range<u64> {
    let sectors = |file: &str| text(&partition.join(file)).and_then(|text| text.parse::<u64>().ok());
    match (sectors("start"), sectors("size")) {
        (Some(start), Some(size)) => start * 512..(start + size) * 512,
        _ => 0..u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_disk_and_its_partitions_share_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("dev/block")).unwrap();
        for (place, number, files) in [
            ("sda", "8:0", &[("ro", "0")][..]),
            ("sda/sda1", "8:1", &[("partition", "1"), ("start", "8"), ("size", "16"), ("ro", "1")]),
            ("sda/sda2", "8:2", &[("partition", "2"), ("start", "24"), ("size", "8")]),
            ("sda/queue", "0:0", &[]),
        ] {
            let place = root.join("devices").join(place);
            fs::create_dir_all(&place).unwrap();
            for (file, content) in files.iter().chain(&[("dev", number)]) {
                fs::write(place.join(file), format!("{content}\n")).unwrap();
            }
            symlink(&place, root.join("dev/block").join(number)).unwrap();
        }
        let sysfs = Sysfs { root: root.to_owned() };
        let number = |minor| DeviceNumber { major: 8, minor };
        let of = |minor| {
            let all = sysfs.overlaps(number(minor)).into_iter();
            all.map(|overlap| (overlap.number.minor, overlap.name.into_string().unwrap(), overlap.range))
        };
        let whole = 0..u64::MAX;
        let disk: Vec<_> = of(0).collect();
        assert_eq!(
            disk,
            [
                (0, "sda".to_owned(), whole.clone()),
                (1, "sda1".to_owned(), whole.clone()),
                (2, "sda2".to_owned(), whole.clone()),
            ]
        );
        let partition: Vec<_> = of(1).collect();
        assert_eq!(partition, [(1, "sda1".to_owned(), whole.clone()), (0, "sda".to_owned(), 4096..12288)]);
        assert_eq!(of(9).collect::<Vec<_>>(), [(9, String::new(), whole)], "sysfs does not have it");
        assert!(sysfs.is_read_only(number(1)) && !sysfs.is_read_only(number(0)));
    }
}
