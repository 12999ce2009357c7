//! Volumes inside encrypted devices, from a blank device to the end. All tests need a kernel with `dm_mod`
//! and `dm_crypt`. `cargo test` alone does not run them, but `cargo xtask test --kernels` does: it provides
//! these modules.

mod devices;
mod flow_support;

use std::fs;
use std::path::{Path, PathBuf};

use csi_mount::flow::block::{
    FilesystemOrigin, StagePlan, expand, expand_encrypted, opened_device, publish, publish_device, stage,
    stage_device, unpublish, unstage, usage,
};
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    BlockDevice, DeviceAccess, DeviceUse, ErrorKind, Filesystem, Grown, Luks, LuksDiscards, LuksKey,
    LuksPbkdf, Mount, MountAttributes, MountOptions, Outcome, Target,
};
use devices::{Image, MIB, run};

const KEY: &str = "canary-of-the-key";
const DATA: &[u8] = b"canary-of-the-data";

fn key() -> LuksKey {
    LuksKey::new(KEY).unwrap()
}

fn luks() -> Luks {
    Luks::new().pbkdf(LuksPbkdf::Pbkdf2 { iterations: 1000 })
}

fn plan(filesystem: Filesystem) -> StagePlan {
    StagePlan::new(filesystem).encrypted(luks(), key())
}

/// Returns the mappings of the whole machine as `name uuid`. Only one test at a time makes mappings.
fn mappings() -> Vec<String> {
    let block = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
    let of = |path: PathBuf| {
        let read = |file| Some(fs::read_to_string(path.join(file)).ok()?.trim().to_owned());
        Some(format!("{} {}", read("dm/name")?, read("dm/uuid")?))
    };
    block.filter_map(of).collect()
}

struct Volume {
    image: Image,
    staging: Target,
    target: Target,
}

impl Volume {
    fn new(mebibytes: u64) -> Self {
        let image = Image::new(mebibytes);
        let place = |name| Target::new(image.directory().join(name)).unwrap();
        let (staging, target) = (place("s"), place("t"));
        Self { image, staging, target }
    }

    fn stage(&self, plan: &StagePlan) -> csi_mount::Result<csi_mount::flow::block::Staged> {
        stage(self.image.path(), &self.staging, plan)
    }

    /// An encrypted volume with a filesystem and a file in it.
    fn with_data(mebibytes: u64, filesystem: Filesystem) -> Self {
        let volume = Self::new(mebibytes);
        volume.stage(&plan(filesystem)).unwrap();
        fs::write(volume.file(), DATA).unwrap();
        volume.unstage();
        volume
    }

    fn file(&self) -> PathBuf {
        self.staging.path().join("file")
    }

    fn unstage(&self) {
        unstage(&self.staging, Some(self.image.path())).unwrap();
        assert_eq!(self.image.open().in_use().unwrap(), DeviceUse::Free);
        assert_eq!(mappings(), Vec::<String>::new());
    }

    /// Opens the device inside, as a raw stage does.
    fn stage_raw(&self) -> csi_mount::Result<PathBuf> {
        self.stage_raw_with(&luks(), &key())
    }

    fn stage_raw_with(&self, luks: &Luks, key: &LuksKey) -> csi_mount::Result<PathBuf> {
        stage_device(self.image.path(), &self.staging, luks, key, DeviceAccess::ReadWrite)
    }

    /// A volume that is published raw, with its canary at the start.
    fn published() -> Self {
        let volume = Self::new(20);
        let device = volume.stage_raw().unwrap();
        publish_device(&device, &volume.target, DeviceAccess::ReadWrite).unwrap();
        write(volume.target.path(), 0, volume.canary().as_bytes());
        volume
    }

    /// Text that no other volume contains.
    fn canary(&self) -> String {
        format!("canary of {}", self.image.path().display())
    }

    fn holds_its_canary(&self, place: &Path) -> bool {
        fs::read(place).is_ok_and(|bytes| bytes.starts_with(self.canary().as_bytes()))
    }

    fn name_and_uuid(&self) -> (String, String) {
        let all = mappings();
        let [one] = all.as_slice() else { panic!("{all:?}") };
        let (name, uuid) = one.split_once(' ').unwrap();
        (name.to_owned(), uuid.to_owned())
    }
}

/// Whether the image file contains these bytes anywhere. A program searches, because the test's own code is
/// slow on an emulated machine.
fn holds(image: &Image, bytes: &[u8]) -> bool {
    let text = std::str::from_utf8(bytes).unwrap();
    std::process::Command::new("grep").args(["-qaF", text]).arg(image.file()).status().unwrap().success()
}

/// Returns a number that changes with any byte of the image.
fn content(image: &Image) -> String {
    run("cksum", &[image.file().to_str().unwrap()])
}

/// A stage that is refused does not change the device, and leaves nothing open.
fn assert_refused(volume: &Volume, plan: &StagePlan, expected: ErrorKind) -> String {
    let before = content(&volume.image);
    let error = volume.stage(plan).unwrap_err();
    assert_eq!(error.kind(), expected, "{error}");
    assert_eq!(content(&volume.image), before, "{error}");
    assert_eq!(mappings(), Vec::<String>::new(), "{error}");
    assert!(!error.to_string().contains(KEY), "{error}");
    error.to_string()
}

fn programs_of_mapper(arguments: &[&str]) {
    run("dmsetup", &[&["--noudevsync", "--noudevrules"], arguments].concat());
}

#[test]
fn a_volume_lives_inside_an_encrypted_device() {
    lives_inside(Filesystem::Ext4, 20);
}

#[test]
fn a_volume_of_xfs_lives_inside_an_encrypted_device() {
    lives_inside(Filesystem::Xfs, 320);
}

#[test]
fn a_volume_of_btrfs_lives_inside_an_encrypted_device() {
    lives_inside(Filesystem::Btrfs, 160);
}

fn lives_inside(filesystem: Filesystem, mebibytes: u64) {
    private_mount_namespace(|| {
        let volume = Volume::new(mebibytes);
        let staged = volume.stage(&plan(filesystem)).unwrap();
        assert_eq!((staged.outcome, staged.origin), (Outcome::Mounted, FilesystemOrigin::Formatted));
        assert_ne!(staged.device, volume.image.open().number());
        let again = volume.stage(&plan(filesystem)).unwrap();
        assert_eq!((again.outcome, again.origin), (Outcome::AlreadyMounted, FilesystemOrigin::Existing));
        fs::write(volume.file(), DATA).unwrap();
        publish(volume.staging.path(), &volume.target, MountAttributes::RDONLY).unwrap();
        assert_eq!(fs::read(volume.target.path().join("file")).unwrap(), DATA);
        assert_eq!(usage(volume.target.path()).unwrap().1, Some(staged.device));
        let found = opened_device(volume.image.path()).unwrap().unwrap();
        assert_eq!(BlockDevice::open(found).unwrap().number(), staged.device);

        let busy = unstage(&volume.staging, Some(volume.image.path())).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
        assert!(busy.to_string().contains(volume.target.path().to_str().unwrap()), "{busy}");
        unpublish(&volume.target).unwrap();
        volume.unstage();
        volume.unstage();
        for plain in [DATA, KEY.as_bytes()] {
            assert!(!holds(&volume.image, plain), "{filesystem}: it is readable beneath");
        }

        let kept = volume.stage(&plan(filesystem)).unwrap();
        assert_eq!(kept.origin, FilesystemOrigin::Existing);
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
    });
}

#[test]
fn another_key_opens_nothing_and_is_said_by_its_kind() {
    private_mount_namespace(|| {
        let volume = Volume::with_data(20, Filesystem::Ext4);
        let wrong = LuksKey::new("canary-of-another").unwrap();
        let plan_with = StagePlan::new(Filesystem::Ext4).encrypted(luks(), wrong.clone());
        let text = assert_refused(&volume, &plan_with, ErrorKind::WrongKey);
        assert!(!text.contains("canary") && text.contains("key"), "{text}");
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
    });
}

#[test]
fn foreign_data_is_kept() {
    private_mount_namespace(|| {
        // Outside: a filesystem that is not encrypted, and unknown bytes.
        let volume = Volume::new(20);
        run("mkfs.ext4", &["-q", volume.image.path().to_str().unwrap()]);
        let text = assert_refused(&volume, &plan(Filesystem::Ext4), ErrorKind::NotBlank);
        assert!(text.contains("ext4") && text.contains("without encryption"), "{text}");
        for place in [0, 600, 18 * MIB, 20 * MIB - 1] {
            let volume = Volume::new(20);
            volume.image.write(place, b"x");
            assert_refused(&volume, &plan(Filesystem::Ext4), ErrorKind::NotBlank);
        }
        // An encrypted device is not staged as a plain one.
        let volume = Volume::with_data(20, Filesystem::Ext4);
        assert_refused(&volume, &StagePlan::new(Filesystem::Ext4), ErrorKind::NotBlank);
        // Inside: a filesystem other than the requested one, and unknown bytes.
        assert_refused(&volume, &plan(Filesystem::Xfs), ErrorKind::NotBlank);
        for place in [0, 3000, 3 * MIB] {
            let volume = Volume::new(20);
            let device = volume.stage_raw().unwrap();
            write(&device, place, b"somebody's");
            volume.unstage();
            assert_refused(&volume, &plan(Filesystem::Ext4), ErrorKind::NotBlank);
        }
    });
}

fn write(device: &Path, place: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::OpenOptions::new().write(true).open(device).unwrap();
    file.write_all_at(bytes, place).unwrap();
    file.sync_all().unwrap();
}

/// A device that another program encrypted, with either LUKS version, is opened. A filesystem is created
/// inside if nothing was ever written there.
#[test]
fn what_another_program_encrypted_is_used() {
    private_mount_namespace(|| {
        for version in ["--type=luks1", "--type=luks2"] {
            let volume = Volume::new(20);
            let file = volume.image.directory().join("key");
            fs::write(&file, KEY).unwrap();
            let file = format!("--key-file={}", file.display());
            let path = volume.image.path().to_str().unwrap();
            let cost = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
            run("cryptsetup", &["luksFormat", "--batch-mode", &file, version, cost[0], cost[1], path]);
            let staged = volume.stage(&plan(Filesystem::Ext4)).unwrap();
            assert_eq!(staged.origin, FilesystemOrigin::Formatted, "{version}");
            fs::write(volume.file(), DATA).unwrap();
            volume.unstage();
            assert_eq!(volume.stage(&plan(Filesystem::Ext4)).unwrap().origin, FilesystemOrigin::Existing);
            assert_eq!(fs::read(volume.file()).unwrap(), DATA);
            volume.unstage();
        }
    });
}

#[test]
fn a_mapping_over_another_device_is_refused() {
    private_mount_namespace(|| {
        let (volume, other) = (Volume::with_data(20, Filesystem::Ext4), Volume::new(20));
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
        programs_of_mapper(&["create", &name, "--table", "0 8 error"]);
        let error = volume.stage(&plan(Filesystem::Ext4)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        programs_of_mapper(&["remove", &name]);
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        volume.unstage();
    });
}

/// Mappings that killed programs leave: suspended, without a table, or open and not mounted.
#[test]
fn half_a_mapping_is_taken_down_or_made_anew() {
    private_mount_namespace(|| {
        let volume = Volume::with_data(20, Filesystem::Ext4);
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        let (name, uuid) = volume.name_and_uuid();
        // The mapping is suspended: a filesystem on it can't be unmounted before it is resumed.
        programs_of_mapper(&["suspend", "--nolockfs", "--noflush", &name]);
        volume.unstage();
        // Newer kernels list such a mapping only in device mapper's own list.
        let half = || programs_of_mapper(&["create", &name, "--notable", "--uuid", &uuid]);
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

#[test]
fn read_only_nothing_is_written_and_nothing_made() {
    private_mount_namespace(|| {
        let read_only =
            |filesystem| plan(filesystem).options(MountOptions::parse(["noload"]).unwrap().read_only());
        let volume = Volume::new(20);
        assert_refused(&volume, &read_only(Filesystem::Ext4), ErrorKind::ReadOnly);
        volume.stage_raw().unwrap();
        volume.unstage();
        let volume = Volume::with_data(20, Filesystem::Ext4);
        let before = content(&volume.image);
        volume.stage(&read_only(Filesystem::Ext4)).unwrap();
        let device = BlockDevice::open(opened_device(volume.image.path()).unwrap().unwrap()).unwrap();
        assert!(device.is_read_only().unwrap());
        drop(device);
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
        assert_eq!(content(&volume.image), before);
    });
}

#[test]
fn ext4_grows_with_the_key_and_not_without() {
    grows(Filesystem::Ext4, 20, 50);
}

#[test]
fn xfs_grows_with_the_key_and_not_without() {
    grows(Filesystem::Xfs, 320, 400);
}

fn grows(filesystem: Filesystem, from: u64, to: u64) {
    private_mount_namespace(|| {
        let volume = Volume::with_data(from, filesystem);
        volume.stage(&plan(filesystem)).unwrap();
        let staging = volume.staging.path();
        let Grown::Unchanged { size } = expand(staging).unwrap() else { panic!("it grew") };
        volume.image.grow_to(to);
        let wrong = LuksKey::new("canary-of-another").unwrap();
        for error in [expand(staging).unwrap_err(), expand_encrypted(staging, &wrong).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
            assert!(!error.to_string().contains("canary"), "{error}");
        }
        let grown = expand_encrypted(staging, &key()).unwrap();
        assert!(matches!(grown, Grown::Grown { from, .. } if from == size), "{grown:?}");
        assert!(grown.size() > (to - 18) * MIB && grown.size() <= (to - 16) * MIB, "{grown:?}");
        println!("{filesystem}: {grown:?}");
        let again = Grown::Unchanged { size: grown.size() };
        assert_eq!(expand_encrypted(staging, &key()).unwrap(), again);
        assert_eq!(expand(staging).unwrap(), again, "nothing is left to grow: no key is needed");
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();

        // It also grows at the next stage.
        volume.image.grow_to(to + 40);
        let staged = volume.stage(&plan(filesystem)).unwrap();
        let grown = staged.grown.unwrap().size();
        assert!(grown > (to + 22) * MIB, "{grown}");
        assert_eq!(fs::read(volume.file()).unwrap(), DATA);
        volume.unstage();
    });
}

#[test]
fn raw_it_is_the_device_inside_that_is_published() {
    private_mount_namespace(|| {
        let volume = Volume::new(20);
        let device = volume.stage_raw().unwrap();
        assert_eq!(Some(&device), opened_device(volume.image.path()).unwrap().as_ref());
        let start = fs::read(&device).unwrap();
        assert!(start == vec![0; 4 << 20], "somebody may find something there");
        publish_device(&device, &volume.target, DeviceAccess::ReadWrite).unwrap();
        write(volume.target.path(), 0, DATA);
        assert_eq!(unstage(&volume.staging, None).unwrap_err().kind(), ErrorKind::Busy);
        unpublish(&volume.target).unwrap();
        volume.unstage();
        assert!(!holds(&volume.image, DATA));

        let device = volume.stage_raw().unwrap();
        publish_device(&device, &volume.target, DeviceAccess::ReadOnly).unwrap();
        assert!(fs::read(volume.target.path()).unwrap().starts_with(DATA));
        volume.image.grow_to(30);
        let at = volume.target.path();
        assert_eq!(expand(at).unwrap_err().kind(), ErrorKind::WrongKey);
        assert_eq!(expand_encrypted(at, &key()).unwrap(), Grown::Unchanged { size: 14 * MIB });
        unpublish(&volume.target).unwrap();
        volume.unstage();
    });
}

/// After a restart of the driver no process has the devices open. If they were closed, one device could come
/// back with the number of the other, whose node is in a pod.
#[test]
fn what_is_published_raw_is_not_closed_by_another_stage() {
    private_mount_namespace(|| {
        let volumes = [Volume::published(), Volume::published()];
        let (before, wrong) = (mappings(), LuksKey::new("canary-of-another").unwrap());
        let open = volumes.each_ref().map(|volume| opened_device(volume.image.path()).unwrap().unwrap());
        // The device is already open, so its key is not checked.
        for key in [&wrong, &key()] {
            for (volume, open) in volumes.iter().zip(&open).rev() {
                assert_eq!(volume.stage_raw_with(&luks(), key).unwrap(), *open);
                assert_eq!(mappings(), before);
            }
        }
        for volume in &volumes {
            let error = volume.stage(&plan(Filesystem::Ext4)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            assert!(error.to_string().contains(volume.target.path().to_str().unwrap()), "{error}");
            assert_eq!(mappings(), before, "{error}");
            assert!(volume.holds_its_canary(volume.target.path()));
        }
        for volume in &volumes {
            unpublish(&volume.target).unwrap();
            unstage(&volume.staging, Some(volume.image.path())).unwrap();
        }
        assert_eq!(mappings(), Vec::<String>::new());
    });
}

/// Another program closed the device. The pod's node would lead to the next device with that number.
#[test]
fn no_volume_is_opened_under_a_number_that_is_published() {
    private_mount_namespace(|| {
        let (gone, volume) = (Volume::published(), Volume::new(20));
        let (name, _) = gone.name_and_uuid();
        programs_of_mapper(&["remove", &name]);
        for volume in [&gone, &volume] {
            let error = volume.stage_raw().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            assert!(error.to_string().contains(gone.target.path().to_str().unwrap()), "{error}");
            assert_eq!(mappings(), Vec::<String>::new(), "{error}");
        }
        unpublish(&gone.target).unwrap();
        let device = gone.stage_raw().unwrap();
        assert!(gone.holds_its_canary(&device));
        gone.unstage();
        volume.stage(&plan(Filesystem::Ext4)).unwrap();
        volume.unstage();
    });
}

/// A workload can discard its data. The device then reads as if nothing had ever been written there. Stage
/// must still not write to it while a process has it open.
#[test]
fn what_somebody_has_open_is_not_written_to_by_another_stage() {
    private_mount_namespace(|| {
        let luks = luks().discards(LuksDiscards::Passed);
        let volume = Volume::new(20);
        let device = volume.stage_raw_with(&luks, &key()).unwrap();
        // If it is published read-only, a loop device has it open. Otherwise its user has it open.
        publish_device(&device, &volume.target, DeviceAccess::ReadOnly).unwrap();
        for is_published in [true, false] {
            let user = fs::File::open(&device).unwrap();
            if !is_published {
                unpublish(&volume.target).unwrap();
            }
            run("blkdiscard", &[device.to_str().unwrap()]);
            let (before, open) = (content(&volume.image), mappings());
            assert_eq!(volume.stage_raw_with(&luks, &key()).unwrap(), device);
            assert_eq!(content(&volume.image), before, "published: {is_published}");
            assert_eq!(mappings(), open);
            drop(user);
        }
        // No process has it open now, so stage makes it read as zeros again.
        let device = volume.stage_raw_with(&luks, &key()).unwrap();
        assert!(fs::read(&device).unwrap() == vec![0; 4 << 20]);
        volume.unstage();
    });
}

/// Another node can also use the device, and write at places that stage does not read. So stage writes
/// nothing where it reads zeros.
#[test]
fn what_reads_as_zeros_is_not_written_to_by_another_stage() {
    private_mount_namespace(|| {
        let volume = Volume::new(20);
        volume.stage_raw().unwrap();
        let number = volume.image.open().number();
        let written = || {
            let statistics = fs::read_to_string(format!("/sys/dev/block/{number}/stat")).unwrap();
            statistics.split_whitespace().nth(6).unwrap().to_owned()
        };
        let before = written();
        for _ in 0..2 {
            volume.unstage();
            volume.stage_raw().unwrap();
        }
        volume.unstage();
        let device =
            stage_device(volume.image.path(), &volume.staging, &luks(), &key(), DeviceAccess::ReadOnly);
        assert!(fs::read(device.unwrap()).unwrap() == vec![0; 4 << 20]);
        assert_eq!(written(), before);
        volume.unstage();
        assert_eq!(volume.stage(&plan(Filesystem::Ext4)).unwrap().origin, FilesystemOrigin::Formatted);
        volume.unstage();
    });
}

#[test]
fn another_key_closes_nothing() {
    private_mount_namespace(|| {
        let volume = Volume::new(20);
        let device = volume.stage_raw().unwrap();
        write(&device, 0, DATA);
        let before = mappings();
        let wrong = LuksKey::new("canary-of-another").unwrap();
        let error = volume.stage_raw_with(&luks(), &wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
        assert_eq!(mappings(), before, "{error}");
        assert!(fs::read(&device).unwrap().starts_with(DATA));
        volume.unstage();
    });
}

#[test]
fn discards_pass_only_if_that_is_asked_for() {
    private_mount_namespace(|| {
        let volume = Volume::with_data(20, Filesystem::Ext4);
        for (discards, passes) in [(LuksDiscards::Dropped, false), (LuksDiscards::Passed, true)] {
            let plan = StagePlan::new(Filesystem::Ext4).encrypted(luks().discards(discards), key());
            let staged = volume.stage(&plan).unwrap();
            let limit = format!("/sys/dev/block/{}/queue/discard_max_bytes", staged.device);
            let limit = fs::read_to_string(limit).unwrap();
            assert_eq!(limit.trim() != "0", passes, "{discards:?}: {limit}");
            volume.unstage();
        }
    });
}

/// A disk that is pulled out while it is staged.
#[test]
fn a_device_that_is_gone_leaves_no_mapping() {
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
        flow_support::eventually("the disk goes", || !self.node.exists());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        fs::remove_dir(&self.config).unwrap();
    }
}
