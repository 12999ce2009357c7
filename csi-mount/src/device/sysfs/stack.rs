//! What block devices there are, and what they are built on.

use std::fs;

use super::{Sysfs, names, text};
use crate::error::Result;
use crate::sys::ids::DeviceNumber;

/// A block device: a disk, a partition, a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its name in `/dev`.
    pub(crate) name: String,
    pub(crate) number: DeviceNumber,
}

impl Sysfs {
    /// All block devices but logical volumes of LVM and what is built on these.
    pub(crate) fn blocks_not_on_lvm(&self) -> Result<Vec<Block>> {
        let all = self.root.join("class/block");
        let listed = names(&all)?.into_iter().filter(|name| !self.is_on_lvm(name));
        let block = |name: String| {
            let number = DeviceNumber::parse(&text(&all.join(&name).join("dev"))?)?;
            Some(Block { name: name.replace('!', "/"), number })
        };
        // One that goes away in the meantime is left out.
        Ok(listed.filter_map(block).collect())
    }

    fn is_on_lvm(&self, name: &str) -> bool {
        let Ok(place) = fs::canonicalize(self.root.join("class/block").join(name)) else { return false };
        if text(&place.join("dm/uuid")).is_some_and(|uuid| uuid.starts_with("LVM-")) {
            return true;
        }
        let mut beneath = names(&place.join("slaves")).unwrap_or_default();
        if place.join("partition").exists() {
            let disk = place.parent().and_then(|disk| disk.file_name());
            beneath.extend(disk.map(|disk| disk.to_string_lossy().into_owned()));
        }
        beneath.iter().any(|name| self.is_on_lvm(name))
    }

    /// What a device is known by, also when it has another name or number after a restart: what the disk itself reports,
    /// or else its place. None if it is gone.
    pub(crate) fn lasting_name(&self, number: DeviceNumber) -> Option<String> {
        let place = fs::canonicalize(self.device(number)).ok()?;
        let whole = self.disk(number).ok()?;
        let identity = self.identity(number).ok()?;
        let own = identity.wwn.or(identity.serial).or(identity.by_path);
        let known = own.or_else(|| text(&whole.join("loop/backing_file"))).unwrap_or_else(|| {
            let place = whole.strip_prefix(&self.root).unwrap_or(&whole);
            // The names of disks on a bus can change, and their places there don't. Others have no place.
            let on_bus = place.parent().filter(|bus| !bus.ends_with("virtual/block"));
            on_bus.unwrap_or(place).display().to_string()
        });
        let partition = text(&place.join("partition"));
        Some(partition.map_or(known.clone(), |partition| format!("{known}, partition {partition}")))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_built_on_a_logical_volume_is_left_out_and_the_rest_has_a_lasting_name() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for place in ["class/block", "dev/block"] {
            fs::create_dir_all(root.join(place)).unwrap();
        }
        for (place, number, files, slaves) in [
            ("pci/virtio2/block/vda", "254:0", &[][..], &[][..]),
            ("pci/virtio2/block/vda/vda1", "254:1", &[("partition", "1")], &[]),
            ("pci/virtio3/block/vdb", "254:16", &[("serial", "disk-2")], &[]),
            ("virtual/block/dm-0", "253:0", &[("dm/uuid", "CRYPT-LUKS2-a-b")], &["vda1"]),
            ("virtual/block/dm-1", "253:1", &[("dm/uuid", "LVM-group-volume")], &["dm-0"]),
            ("virtual/block/dm-2", "253:2", &[("dm/uuid", "CRYPT-LUKS2-c-d")], &["dm-1"]),
            ("virtual/block/dm-2/dm-2p1", "259:0", &[("partition", "1")], &[]),
            ("virtual/block/dm-3", "253:3", &[], &["dm-2"]),
            ("virtual/block/loop0", "7:0", &[("loop/backing_file", "/disks/one")], &[]),
            ("virtual/block/md0", "9:0", &[], &["vdb"]),
        ] {
            let name = place.rsplit('/').next().unwrap();
            let place = root.join("devices").join(place);
            for (file, content) in files.iter().chain(&[("dev", number)]) {
                let file = place.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{content}\n")).unwrap();
            }
            slaves.iter().for_each(|slave| fs::create_dir_all(place.join("slaves").join(slave)).unwrap());
            symlink(&place, root.join("class/block").join(name)).unwrap();
            symlink(&place, root.join("dev/block").join(number)).unwrap();
        }
        let root = fs::canonicalize(root).unwrap();
        let sysfs = Sysfs::below(&root);
        let found = sysfs.blocks_not_on_lvm().unwrap();
        let found = found.iter().map(|block| (&*block.name, sysfs.lasting_name(block.number).unwrap()));
        let expected = [
            ("dm-0", "CRYPT-LUKS2-a-b"),
            ("loop0", "/disks/one"),
            ("md0", "devices/virtual/block/md0"),
            ("vda", "devices/pci/virtio2/block"),
            ("vda1", "devices/pci/virtio2/block, partition 1"),
            ("vdb", "disk-2"),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected.map(|(name, known)| (name, known.to_owned())));
        assert_eq!(sysfs.lasting_name(DeviceNumber { major: 1, minor: 1 }), None);
    }
}
