//! What the kernel reports about the device mapper's devices.

use std::path::Path;

use super::{Sysfs, names, text};
use crate::error::Result;
use crate::sys::ids::DeviceNumber;

/// A device mapper device that is ready for use. On newer kernels, one that is not ready is not in sysfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) number: DeviceNumber,
    pub(crate) name: String,
    /// Identifies the maker, in the maker's own scheme: `CRYPT-LUKS2-…`.
    pub(crate) uuid: String,
    /// In bytes; 0 if its maker was killed before it mapped anything.
    pub(crate) size: u64,
    /// What is read from and written to it waits.
    #[cfg(feature = "lvm")]
    pub(crate) is_suspended: bool,
    /// The device beneath; none if it is gone, or there are several.
    pub(crate) beneath: Option<DeviceNumber>,
}

/// A map of dm-multipath: the disk that several paths lead to.
#[cfg(feature = "remote")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MultipathMap {
    pub(crate) number: DeviceNumber,
    /// The kernel's name: `dm-3`. No other device gets it while the map exists.
    pub(crate) device: String,
    /// `mpath-` and the name of the disk.
    pub(crate) uuid: String,
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) is_suspended: bool,
    /// The numbers and the world-wide names of its paths. Paths that are gone are left out.
    pub(crate) paths: Vec<(DeviceNumber, Option<String>)>,
}

#[cfg(feature = "remote")]
impl Sysfs {
    pub(crate) fn multipath_maps(&self) -> Result<Vec<MultipathMap>> {
        let block = self.root.join("block");
        let devices = names(&block)?.into_iter().filter(|device| device.starts_with("dm-"));
        let map_at = |device: String| {
            let directory = block.join(&device);
            let of = |file: &str| text(&directory.join(file));
            let uuid = of("dm/uuid").filter(|uuid| uuid.starts_with("mpath-"))?;
            let paths = names(&directory.join("slaves")).unwrap_or_default();
            // Through the link, which leads nowhere if the path is gone.
            let paths = paths.iter().filter_map(|path| {
                let number = DeviceNumber::parse(&of(&format!("slaves/{path}/dev"))?)?;
                Some((number, self.identity(number).ok().and_then(|identity| identity.wwn)))
            });
            Some(MultipathMap {
                number: DeviceNumber::parse(&of("dev")?)?,
                uuid,
                size: of("size")?.parse::<u64>().ok()? * 512,
                is_suspended: of("dm/suspended").as_deref() == Some("1"),
                paths: paths.collect(),
                device,
            })
        };
        Ok(devices.filter_map(map_at).collect())
    }
}

impl Sysfs {
    /// All device mapper devices, whatever they map.
    pub(crate) fn all_mapped(&self) -> Result<Vec<Mapped>> {
        let block = self.root.join("block");
        let devices = names(&block)?.into_iter().filter(|device| device.starts_with("dm-"));
        Ok(devices.filter_map(|device| mapped_at(&block.join(device))).collect())
    }

    /// Whether the device mapper is loaded on this node. This check does not load it; a query to it would.
    pub(crate) fn has_mapper(&self) -> bool {
        self.root.join("class/misc/device-mapper").exists()
    }
}

/// None if it goes away in the meantime.
fn mapped_at(directory: &Path) -> Option<Mapped> {
    let of = |file: &str| text(&directory.join(file));
    let slaves = names(&directory.join("slaves")).unwrap_or_default();
    let beneath = match slaves.as_slice() {
        // Through the link, which leads nowhere if the device is gone.
        [one] => of(&format!("slaves/{one}/dev")).and_then(|text| DeviceNumber::parse(&text)),
        _ => None,
    };
    let sectors: u64 = of("size")?.parse().ok()?;
    Some(Mapped {
        number: DeviceNumber::parse(&of("dev")?)?,
        name: of("dm/name")?,
        uuid: of("dm/uuid").unwrap_or_default(),
        size: sectors * 512,
        #[cfg(feature = "lvm")]
        is_suspended: of("dm/suspended").as_deref() == Some("1"),
        beneath,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_mapping_has_a_name_and_the_device_beneath() {
        let directory = tempfile::tempdir().unwrap();
        let block = directory.path().join("block");
        for (device, files) in [
            ("sdb", &[("dev", "8:16")][..]),
            (
                "dm-0",
                &[
                    ("dev", "254:0"),
                    ("size", "2048"),
                    ("dm/name", "a"),
                    ("dm/uuid", "LVM-x"),
                    ("slaves/x", ""),
                ],
            ),
            (
                "dm-1",
                &[
                    ("dev", "254:1"),
                    ("size", "0"),
                    ("dm/name", "b"),
                    ("dm/uuid", "CRYPT-LUKS2-0-b"),
                    ("slaves/x", ""),
                ],
            ),
            (
                "dm-2",
                &[
                    ("dev", "254:2"),
                    ("size", "8"),
                    ("dm/name", "ab"),
                    ("dm/suspended", "1"),
                    ("slaves/x", ""),
                ],
            ),
        ] {
            for (file, content) in files {
                let file = block.join(device).join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{content}\n")).unwrap();
            }
        }
        for device in ["dm-0", "dm-1", "dm-2"] {
            fs::remove_file(block.join(device).join("slaves/x")).unwrap();
        }
        symlink(block.join("sdb"), block.join("dm-0/slaves/sdb")).unwrap();
        symlink(block.join("sdc"), block.join("dm-2/slaves/sdc")).unwrap();
        let sysfs = Sysfs { root: directory.path().to_owned() };
        let number = |major, minor| DeviceNumber { major, minor };
        let all = sysfs.all_mapped().unwrap();
        let live = Mapped {
            number: number(254, 0),
            name: "a".to_owned(),
            uuid: "LVM-x".to_owned(),
            size: 1 << 20,
            #[cfg(feature = "lvm")]
            is_suspended: false,
            beneath: Some(number(8, 16)),
        };
        assert_eq!(all.len(), 3);
        assert_eq!(all[0], live);
        assert_eq!((&*all[1].name, all[1].size, all[1].beneath), ("b", 0, None));
        assert_eq!((&*all[2].name, all[2].beneath), ("ab", None), "its disk is gone");
        assert!(!sysfs.has_mapper());
    }
}
