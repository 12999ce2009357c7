//! A volume group on loop devices, for tests on a machine of their own: they need the kernel's device mapper, and lvm2
//! looks at all disks of the machine.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use csi_mount::lvm::{LvmLayout, LvmOptions, LvmRequest, LvmVolume, VolumeGroup};

use crate::devices::{Image, MIB, run};

pub(crate) const DRIVER: &str = "local.example.org";
/// The size of an extent.
pub(crate) const EXTENT: u64 = 4 * MIB;

/// A volume group; it is removed with all that is in it.
pub(crate) struct Bed {
    pub(crate) images: Vec<Image>,
    pub(crate) name: String,
}

/// Runs lvm2 as an administrator does.
pub(crate) fn lvm(arguments: &[&str]) -> String {
    let fixed = ["DM_DISABLE_UDEV=1", "LVM_SUPPRESS_FD_WARNINGS=1", "lvm"];
    let settings = ["--config", "activation{monitoring=0}"];
    let (command, rest) = arguments.split_first().unwrap();
    run("env", &[&fixed[..], &[command], &settings, rest].concat())
}

impl Bed {
    /// A volume group on disks of these sizes in mebibytes, without the 4 MiB that each needs for itself.
    pub(crate) fn new(disks: &[u64]) -> Self {
        // What a failed test leaves does not matter to the next one.
        let name = format!("data{}", std::process::id());
        let images: Vec<Image> = disks.iter().map(|mebibytes| Image::new(mebibytes + 4)).collect();
        let paths: Vec<&str> = images.iter().map(|image| image.path().to_str().unwrap()).collect();
        lvm(&[&["vgcreate", "--yes", &name], &paths[..]].concat());
        Self { images, name }
    }

    /// Adds a thin pool, which fails when it is full.
    pub(crate) fn with_pool(self, pool: &str, mebibytes: u64) -> Self {
        let size = format!("{mebibytes}m");
        let metadata = ["--poolmetadatasize", "4m"];
        lvm(&[
            &["lvcreate", "--yes", "--type", "thin-pool", "-L", &size, "-n", pool],
            &metadata[..],
            &[&self.name],
        ]
        .concat());
        lvm(&["lvchange", "--errorwhenfull", "y", &self.volume(pool)]);
        self
    }

    /// A logical volume, as lvm2's commands name it.
    pub(crate) fn volume(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    pub(crate) fn open(&self) -> VolumeGroup {
        self.open_with(LvmOptions::new(DRIVER))
    }

    pub(crate) fn open_with(&self, options: LvmOptions) -> VolumeGroup {
        VolumeGroup::open(&self.name, options).unwrap()
    }

    /// The names of all logical volumes, whoever made them.
    pub(crate) fn logical_volumes(&self) -> Vec<String> {
        let listed = lvm(&["lvs", "--noheadings", "-o", "lv_name", &self.name]);
        listed.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let remove = || drop(lvm(&["vgremove", "--yes", "--force", &self.name]));
        if std::thread::panicking() {
            // So that the next test has a chance.
            drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(remove)));
        } else {
            remove();
        }
    }
}

pub(crate) fn thin(pool: &str) -> LvmLayout {
    LvmLayout::Thin(pool.to_owned())
}

pub(crate) fn thick(group: &VolumeGroup, name: &str, bytes: u64) -> LvmVolume {
    group.create(&LvmRequest::new(name, bytes)).unwrap()
}

/// Works with a volume's device, and deactivates it afterwards.
pub(crate) fn with_device<T>(group: &VolumeGroup, volume: &str, work: impl FnOnce(&Path) -> T) -> T {
    let device = group.activate(volume).unwrap();
    let done = work(device.path());
    drop(device);
    group.deactivate(volume).unwrap();
    done
}

/// Writes the text at the start, in the middle and at the end of a volume.
pub(crate) fn mark(group: &VolumeGroup, volume: &str, text: &str) {
    let bytes = group.find(&csi_mount::lvm::LvmName::Volume(volume.into())).unwrap().unwrap().bytes;
    with_device(group, volume, |path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        for place in [0, 16 * MIB + 512, bytes / 2, bytes - 4096] {
            file.write_all_at(text.as_bytes(), place.min(bytes - 4096)).unwrap();
        }
        file.sync_all().unwrap();
    });
}

/// Whether a device or file has the text anywhere. A program searches, because the test's own code is slow on an
/// emulated machine.
pub(crate) fn has(path: &Path, text: &str) -> bool {
    let file = File::open(path).unwrap();
    let status = std::process::Command::new("grep").args(["-qaF", text]).stdin(file).status().unwrap();
    status.success()
}

pub(crate) fn volume_has(group: &VolumeGroup, volume: &str, text: &str) -> bool {
    with_device(group, volume, |path| has(path, text))
}

/// A number from the environment of the tests.
pub(crate) fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// A script, made executable by the shell that is its first word.
pub(crate) fn script(path: &Path, text: &str) -> Vec<String> {
    fs::write(path, text).unwrap();
    vec!["/bin/sh".to_owned(), path.display().to_string()]
}
