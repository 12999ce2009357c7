//! SCSI disks, NVMe disks and a multipath disk, as the kernel's own drivers present them.
//!
//! An ordinary kernel does not have these drivers. The tests run where `cargo xtask test --kernels` provides
//! them, and not with `cargo test` alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{FilesystemOrigin, StagePlan, stage, unstage};
use csi_mount::internal::{DeviceIdentity, DeviceQuestions as _, Probe};
use csi_mount::{BlockDevice, DeviceUse, ErrorKind, ExpectedDevice, Filesystem, Host, Mount, Rescan, Target};

use crate::devices::{Image, MIB, refused, run, wait};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Hosts of `scsi_debug`, all with the same disk of 8 MiB in memory. The driver exists once, so only one test
/// at a time uses it.
struct Scsi {
    _alone: MutexGuard<'static, ()>,
}

impl Scsi {
    fn new(hosts: usize) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let scsi = Self { _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) };
        scsi.set("opts", "0");
        scsi.set("virtual_gb", "0");
        scsi.set("vpd_use_hostno", "0");
        scsi.set_hosts(0);
        scsi.set_hosts(hosts);
        if let Some(path) = scsi.disks().first() {
            fs::write(path, vec![0; 8 << 20]).unwrap();
        }
        scsi
    }

    fn set(&self, name: &str, value: &str) {
        let file = format!("/sys/bus/pseudo/drivers/scsi_debug/{name}");
        fs::write(&file, value)
            .unwrap_or_else(|error| panic!("{file}: {error}; this needs the module scsi_debug"));
    }

    fn set_hosts(&self, hosts: usize) {
        while self.disks().len() > hosts {
            let before = self.disks().len();
            self.set("add_host", "-1");
            eventually("a disk goes", || (self.disks().len() < before).then_some(()));
        }
        for host in self.disks().len()..hosts {
            self.set("add_host", "1");
            eventually("a disk comes", || (self.disks().len() > host).then_some(()));
        }
    }

    /// Returns the nodes of the disks.
    fn disks(&self) -> Vec<String> {
        let is_ours = |name: &String| {
            let model = fs::read_to_string(format!("/sys/block/{name}/device/model")).unwrap_or_default();
            model.trim() == "scsi_debug" && BlockDevice::open(format!("/dev/{name}")).is_ok()
        };
        let all = fs::read_dir("/sys/block").unwrap().flatten();
        let mut names: Vec<_> =
            all.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_ours).collect();
        names.sort();
        names.into_iter().map(|name| format!("/dev/{name}")).collect()
    }
}

impl Drop for Scsi {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.set_hosts(0);
        }
    }
}

fn identity(path: &str) -> (String, String) {
    let DeviceIdentity { serial, wwn, .. } = BlockDevice::open(path).unwrap().identity().unwrap();
    (serial.expect("a serial number"), wwn.expect("a world-wide name"))
}

#[test]
fn a_scsi_disk_is_recognized_and_waited_for_by_its_identity() {
    let scsi = Scsi::new(1);
    let path = scsi.disks().remove(0);
    let (serial, wwn) = identity(&path);
    let host = Host::kernel();
    let devices = host.devices();
    println!("{path}: serial {serial}, wwn {wwn}");
    let by_serial = ExpectedDevice::new().serial(&serial);
    let digits = wwn.strip_prefix("naa.").expect("of the kind NAA");
    let by_wwn = |prefix: &str| ExpectedDevice::new().wwn(format!("{prefix}{digits}"));
    for expected in [by_serial.clone(), by_wwn("naa."), by_wwn("wwn-0x"), by_wwn("scsi-3")] {
        assert_eq!(
            wait(&expected.clone().wait_limit(LONG)).unwrap().path(),
            Path::new(&path),
            "{expected:?}"
        );
        // A link to another disk does not mislead the wait.
        let other = Image::new(8);
        let link = other.directory().join("by-id");
        symlink(other.path(), &link).unwrap();
        assert_eq!(devices.wait_at(&expected.clone().wait_limit(LONG), &link).unwrap(), Path::new(&path));

        scsi.set_hosts(0);
        assert!(devices.find(&expected).unwrap().is_none());
        refused(wait(&expected.clone().wait_limit(SHORT)), ErrorKind::NotFound);
        assert_eq!(
            devices.wait_at(&expected.clone().wait_limit(SHORT), &link).unwrap_err().kind(),
            ErrorKind::WrongDevice
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&expected.clone().wait_limit(LONG)).unwrap());
            scsi.set_hosts(1);
            assert_eq!(identity(waiting.join().unwrap().path().to_str().unwrap()).0, serial);
        });
    }
}

#[test]
fn a_scsi_disk_has_its_new_size_after_a_rescan() {
    let scsi = Scsi::new(1);
    let device = BlockDevice::open(scsi.disks().remove(0)).unwrap();
    assert_eq!(device.size().unwrap(), 8 * MIB);
    scsi.set("virtual_gb", "1");
    let large = ExpectedDevice::new().serial(device.identity().unwrap().serial.unwrap()).min_size(1 << 30);
    let error = refused(wait(&large.clone().wait_limit(SHORT)), ErrorKind::OutOfRange);
    assert!(error.to_string().contains("rescan"), "{error}");
    assert_eq!(device.rescan().unwrap(), Rescan::Requested);
    assert_eq!(wait(&large.clone().wait_limit(LONG)).unwrap().size().unwrap(), 1 << 30);
    assert_eq!(device.size().unwrap(), 1 << 30);
}

#[test]
fn a_scsi_disk_with_a_bad_sector_is_not_formatted() {
    let scsi = Scsi::new(1);
    let path = scsi.disks().remove(0);
    let directory = tempfile::tempdir().unwrap();
    let staging = Target::new(directory.path().join("staging")).unwrap();
    let plan = StagePlan::new(Filesystem::Ext4);
    // Medium errors, from sector 0x1234 on.
    scsi.set("opts", "2");
    let device = BlockDevice::open(&path).unwrap();
    let Probe::Unreadable { offset, .. } = device.probe() else { panic!("{}", device.probe()) };
    assert_eq!(offset, 0x1234 * 512 / 4096 * 4096);
    refused(stage(&path, &staging, &plan), ErrorKind::Unreadable);
    scsi.set("opts", "0");
    assert!(matches!(device.probe(), Probe::Blank(_)), "it was written to");
    assert_eq!(stage(&path, &staging, &plan).unwrap().origin, FilesystemOrigin::Formatted);
    unstage(&staging, Some(path.as_ref())).unwrap();
}

/// A multipath device over two paths, set up as `multipathd` does.
struct Multipath;

impl Multipath {
    fn new(paths: &[String], wwn: &str) -> Self {
        let digits = wwn.strip_prefix("naa.").unwrap();
        let numbers = paths.iter().map(|path| format!("{} 1 ", BlockDevice::open(path).unwrap().number()));
        let table = format!(
            "0 {} multipath 0 0 1 1 round-robin 0 {} 1 {}",
            8 * MIB / 512,
            paths.len(),
            numbers.collect::<String>()
        );
        let uuid = format!("mpath-3{digits}");
        let words = ["--noudevsync", "--noudevrules", "create", "mpatha", "--uuid", &uuid, "--table", &table];
        run("dmsetup", &words);
        Self
    }
}

impl Drop for Multipath {
    fn drop(&mut self) {
        run("dmsetup", &["--noudevsync", "--noudevrules", "remove", "mpatha"]);
    }
}

#[test]
fn a_disk_with_several_paths_is_opened_as_its_multipath_device() {
    let scsi = Scsi::new(2);
    let paths = scsi.disks();
    let (serial, wwn) = identity(&paths[0]);
    assert_eq!(identity(&paths[1]), (serial.clone(), wwn.clone()), "two paths to one disk");
    let both = [ExpectedDevice::new().serial(serial), ExpectedDevice::new().wwn(&wwn)];
    for expected in &both {
        let error = refused(wait(&expected.clone().wait_limit(SHORT)), ErrorKind::WrongDevice);
        assert!(error.to_string().contains("2 disks"), "{error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let staging = Target::new(directory.path().join("staging")).unwrap();
    let multipath = Multipath::new(&paths, &wwn);
    for expected in both {
        let device = wait(&expected.clone().wait_limit(LONG)).unwrap();
        assert!(device.path().to_str().unwrap().starts_with("/dev/dm-"), "{device:?}");
        let plan = StagePlan::new(Filesystem::Ext4).expect(expected);
        let staged = stage("/dev/disk/by-id/no-such-link", &staging, &plan).unwrap();
        assert_eq!(staged.device, device.number());
        unstage(&staging, Some(device.path())).unwrap();
        for path in &paths {
            let path = BlockDevice::open(path).unwrap();
            assert_eq!(path.in_use().unwrap(), DeviceUse::InUse);
            let holders = path.holders().unwrap();
            assert!(device.path().ends_with(&holders[0]), "{holders:?}");
        }
        scsi.set("virtual_gb", "1");
        assert_eq!(device.rescan().unwrap(), Rescan::Requested);
        for path in &paths {
            assert_eq!(BlockDevice::open(path).unwrap().size().unwrap(), 1 << 30, "{path}");
        }
        scsi.set("virtual_gb", "0");
        device.rescan().unwrap();
    }
    drop(multipath);
}

/// An NVMe controller over loopback, with a loop device as its only namespace.
struct Nvme {
    image: Image,
}

const SUBSYSTEM: &str = "/sys/kernel/config/nvmet/subsystems/csi";
const PORT: &str = "/sys/kernel/config/nvmet/ports/1";
const SERIAL: &str = "csi0123456789";
const UUID: &str = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

impl Nvme {
    fn new() -> Self {
        let image = Image::new(32);
        Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
        let set = |place: String, value: &str| {
            fs::write(&place, value).unwrap_or_else(|error| panic!("{place}: {error}"));
        };
        fs::create_dir(SUBSYSTEM).unwrap();
        set(format!("{SUBSYSTEM}/attr_allow_any_host"), "1");
        set(format!("{SUBSYSTEM}/attr_serial"), SERIAL);
        fs::create_dir(format!("{SUBSYSTEM}/namespaces/1")).unwrap();
        set(format!("{SUBSYSTEM}/namespaces/1/device_path"), image.path().to_str().unwrap());
        set(format!("{SUBSYSTEM}/namespaces/1/device_uuid"), UUID);
        set(format!("{SUBSYSTEM}/namespaces/1/enable"), "1");
        fs::create_dir(PORT).unwrap();
        set(format!("{PORT}/addr_trtype"), "loop");
        symlink(SUBSYSTEM, format!("{PORT}/subsystems/csi")).unwrap();
        set("/dev/nvme-fabrics".to_owned(), "transport=loop,nqn=csi");
        Self { image }
    }
}

impl Drop for Nvme {
    fn drop(&mut self) {
        fs::write("/sys/class/nvme/nvme0/delete_controller", "1").unwrap();
        fs::remove_file(format!("{PORT}/subsystems/csi")).unwrap();
        fs::write(format!("{SUBSYSTEM}/namespaces/1/enable"), "0").unwrap();
        for directory in [PORT, &format!("{SUBSYSTEM}/namespaces/1"), SUBSYSTEM] {
            fs::remove_dir(directory).unwrap();
        }
    }
}

#[test]
fn an_nvme_disk_is_recognized_and_grows() {
    let by_serial = ExpectedDevice::new().serial(SERIAL);
    let by_wwn = ExpectedDevice::new().wwn(format!("nvme-uuid.{UUID}"));
    assert!(Host::kernel().devices().find(&by_serial).unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = [&by_serial, &by_wwn]
            .map(|expected| scope.spawn(|| wait(&expected.clone().wait_limit(LONG)).unwrap()));
        let nvme = Nvme::new();
        let [device, same] = waiting.map(|waiting| waiting.join().unwrap());
        assert_eq!(device.number(), same.number());
        println!("{}: {:?}", device.path().display(), device.identity().unwrap());
        assert!(device.path().starts_with("/dev/nvme0n1"), "{device:?}");
        assert_eq!(device.size().unwrap(), 32 * MIB);
        nvme.image.grow_to(48);
        fs::write(format!("{SUBSYSTEM}/namespaces/1/revalidate_size"), "1").unwrap();
        assert_eq!(device.rescan().unwrap(), Rescan::Requested);
        let large = by_serial.clone().min_size(48 * MIB);
        assert_eq!(wait(&large.clone().wait_limit(LONG)).unwrap().size().unwrap(), 48 * MIB);
        drop((device, same));
    });
}
