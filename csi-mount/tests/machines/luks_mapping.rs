//! Mappings of encrypted devices that another volume, a killed program or a lost disk leaves. All tests need a
//! kernel with `dm_mod` and `dm_crypt`. `cargo test` alone does not run them, but `cargo xtask test --kernels`
//! does: it provides these modules.

use std::fs;
use std::path::{Path, PathBuf};

use csi_mount::internal::flow::block::{stage, unstage};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{ErrorKind, Filesystem, Mount, Target};

use crate::luks_support::{DATA, Volume, dmsetup, mappings, plan};
use crate::mount_support;

#[test]
fn a_mapping_over_another_device_is_refused() {
    private_mount_namespace(|| {
        let volume = Volume::with_data(20, Filesystem::Ext4);
        let other = Volume::new(20);
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        // First mounted, then only open.
        for expected in [ErrorKind::AlreadyMounted, ErrorKind::WrongDevice] {
            let error = stage(other.image.path(), &volume.staging, &plan(Filesystem::Ext4)).unwrap_err();
            assert_eq!(error.kind(), expected, "{error}");
            assert!(other.image.is_zero());
            let error = unstage(&volume.staging, Some(other.image.path())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
            csi_mount::unmount(&volume.staging).unwrap();
        }
        let (name, _) = volume.name_and_uuid();
        volume.unstage();
        // A mapping with the same name that is not ours.
        dmsetup(&["create", &name, "--table", "0 8 error"]);
        let error = volume.stage(&plan(Filesystem::Ext4)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        dmsetup(&["remove", &name]);
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        volume.unstage();
    });
}

/// Mappings that killed programs leave: suspended, without a table, or open and not mounted.
#[test]
fn an_incomplete_mapping_is_removed_or_made_again() {
    private_mount_namespace(|| {
        let volume = Volume::with_data(20, Filesystem::Ext4);
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        let (name, uuid) = volume.name_and_uuid();
        // The mapping is suspended: a filesystem on it can't be unmounted before it is resumed.
        dmsetup(&["suspend", "--nolockfs", "--noflush", &name]);
        volume.unstage();
        // Newer kernels list such a mapping only in device mapper's own list.
        let half = || dmsetup(&["create", &name, "--notable", "--uuid", &uuid]);
        half();
        volume.unstage();
        half();
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
        // Open, and not mounted.
        let device = volume.stage_raw().unwrap();
        assert_eq!(device, volume.stage_raw().unwrap());
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
    });
}

/// A disk that is pulled out while it is staged.
#[test]
fn a_lost_device_leaves_no_mapping() {
    private_mount_namespace(|| {
        let disk = Disk::new();
        let place = tempfile::tempdir().unwrap();
        let staging = Target::new(place.path().join("s")).unwrap();
        stage(&disk.node, &staging, &plan(Filesystem::Ext4)).unwrap();
        fs::write(staging.path().join("file"), DATA).unwrap();
        disk.pull_out();
        assert_eq!(mappings().len(), 1);
        for _ in 0..2 {
            unstage(&staging, Some(&disk.node)).unwrap();
            assert_eq!(mappings(), Vec::<String>::new());
        }
    });
}

/// A disk in memory (`null_blk`) that can disappear while it is in use.
struct Disk {
    node: PathBuf,
    config: PathBuf,
}

impl Disk {
    fn new() -> Self {
        let config = Target::new("/sys/kernel/config").unwrap();
        Mount::new("configfs", "test").at(&config).unwrap();
        let config = config.path().join("nullb/csi0");
        fs::create_dir(&config).unwrap();
        let before = Self::all();
        for (file, value) in [("size", "20"), ("memory_backed", "1"), ("power", "1")] {
            fs::write(config.join(file), value).unwrap();
        }
        let new: Vec<PathBuf> = Self::all().into_iter().filter(|disk| !before.contains(disk)).collect();
        let [disk] = new.as_slice() else { panic!("{new:?}") };
        Self { node: Path::new("/dev").join(disk.file_name().unwrap()), config }
    }

    fn all() -> Vec<PathBuf> {
        fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path()).collect()
    }

    fn pull_out(&self) {
        fs::write(self.config.join("power"), "0").unwrap();
        mount_support::eventually("the disk goes", || !self.node.exists());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        fs::remove_dir(&self.config).unwrap();
    }
}
