//! An encrypted volume and the machine's mappings, for the tests that need a device mapper.

use std::fs;
use std::path::{Path, PathBuf};

use csi_mount::internal::DeviceQuestions as _;
use csi_mount::internal::flow::block::{StagePlan, publish_device, stage, stage_device, unstage};
use csi_mount::{DeviceAccess, DeviceUse, ErrorKind, Filesystem, Luks, LuksKey, LuksPbkdf, Target};

use crate::devices::{Image, run};

pub(crate) const KEY: &str = "canary-of-the-key";
pub(crate) const DATA: &[u8] = b"canary-of-the-data";

pub(crate) fn key() -> LuksKey {
    LuksKey::new(KEY).unwrap()
}

pub(crate) fn luks() -> Luks {
    Luks::new().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1000 })
}

pub(crate) fn plan(filesystem: Filesystem) -> StagePlan {
    StagePlan::new(filesystem).encrypted(luks(), key())
}

/// Returns the mappings of the whole machine as `name uuid`. Only one test at a time makes mappings.
pub(crate) fn mappings() -> Vec<String> {
    let block = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
    let of = |path: PathBuf| {
        let read = |file| Some(fs::read_to_string(path.join(file)).ok()?.trim().to_owned());
        Some(format!("{} {}", read("dm/name")?, read("dm/uuid")?))
    };
    block.filter_map(of).collect()
}

pub(crate) struct Volume {
    pub(crate) image: Image,
    pub(crate) staging: Target,
    pub(crate) target: Target,
}

impl Volume {
    pub(crate) fn new(mebibytes: u64) -> Self {
        let image = Image::new(mebibytes);
        let place = |name| Target::new(image.directory().join(name)).unwrap();
        let staging = place("s");
        let target = place("t");
        Self { image, staging, target }
    }

    pub(crate) fn stage(&self, plan: &StagePlan) -> csi_mount::Result<csi_mount::flow::block::Staged> {
        stage(self.image.path(), &self.staging, plan)
    }

    /// An encrypted volume with a filesystem and a file in it.
    pub(crate) fn with_data(mebibytes: u64, filesystem: Filesystem) -> Self {
        let volume = Self::new(mebibytes);
        volume.stage(&plan(filesystem)).unwrap();
        fs::write(volume.file(), DATA).unwrap();
        volume.unstage();
        volume
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.staging.path().join("file")
    }

    pub(crate) fn unstage(&self) {
        unstage(&self.staging, Some(self.image.path())).unwrap();
        assert_eq!(self.image.open().in_use().unwrap(), DeviceUse::Free);
        assert_eq!(mappings(), Vec::<String>::new());
    }

    /// Opens the device inside, as a raw stage does.
    pub(crate) fn stage_raw(&self) -> csi_mount::Result<PathBuf> {
        self.stage_raw_with(&luks(), &key())
    }

    pub(crate) fn stage_raw_with(&self, luks: &Luks, key: &LuksKey) -> csi_mount::Result<PathBuf> {
        stage_device(self.image.path(), &self.staging, luks, key, DeviceAccess::ReadWrite)
    }

    /// A volume that is published raw, with its canary at the start.
    pub(crate) fn published() -> Self {
        let volume = Self::new(20);
        let device = volume.stage_raw().unwrap();
        publish_device(&device, &volume.target, DeviceAccess::ReadWrite).unwrap();
        write(volume.target.path(), 0, volume.canary().as_bytes());
        volume
    }

    /// Text that no other volume contains.
    pub(crate) fn canary(&self) -> String {
        format!("canary of {}", self.image.path().display())
    }

    pub(crate) fn holds_its_canary(&self, place: &Path) -> bool {
        fs::read(place).is_ok_and(|bytes| bytes.starts_with(self.canary().as_bytes()))
    }

    pub(crate) fn name_and_uuid(&self) -> (String, String) {
        let all = mappings();
        let [one] = all.as_slice() else { panic!("{all:?}") };
        let (name, uuid) = one.split_once(' ').unwrap();
        (name.to_owned(), uuid.to_owned())
    }
}

/// Whether the image file contains these bytes anywhere. A program searches, because the test's own code is
/// slow on an emulated machine.
pub(crate) fn holds(image: &Image, bytes: &[u8]) -> bool {
    let text = std::str::from_utf8(bytes).unwrap();
    std::process::Command::new("grep").args(["-qaF", text]).arg(image.file()).status().unwrap().success()
}

/// Returns a number that changes with any byte of the image.
pub(crate) fn content(image: &Image) -> String {
    run("cksum", &[image.file().to_str().unwrap()])
}

/// A stage that is refused does not change the device, and leaves nothing open.
pub(crate) fn assert_refused(volume: &Volume, plan: &StagePlan, expected: ErrorKind) -> String {
    let before = content(&volume.image);
    let error = volume.stage(plan).unwrap_err();
    assert_eq!(error.kind(), expected, "{error}");
    assert_eq!(content(&volume.image), before, "{error}");
    assert_eq!(mappings(), Vec::<String>::new(), "{error}");
    assert!(!error.to_string().contains(KEY), "{error}");
    error.to_string()
}

pub(crate) fn dmsetup(arguments: &[&str]) {
    run("dmsetup", &[&["--noudevsync", "--noudevrules"], arguments].concat());
}
/// Writes bytes at a place of a device.
pub(crate) fn write(device: &Path, place: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::OpenOptions::new().write(true).open(device).unwrap();
    file.write_all_at(bytes, place).unwrap();
    file.sync_all().unwrap();
}
