//! iSCSI with a unit that answers oddly: the kernel's `scsi_debug` behind its iSCSI target, which passes each command
//! on (`target_core_pscsi`). What answers oddly is refused or waited for, and never another volume.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and open-iscsi, and not with
//! `cargo test` alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_mount::remote::{IscsiTarget, LunId, RemoteDisks};
use csi_mount::{ErrorKind, Mount, Target};

use crate::devices::{MIB, eventually, refused};
use crate::iscsi_target;
use crate::iscsi_target::{Lio, disks, luns, node_records, sessions};

const DRIVER: &str = "/sys/bus/pseudo/drivers/scsi_debug";
const DEBUGFS: &str = "/sys/kernel/debug";
const CONFIG: &str = "/sys/kernel/config/target/core/pscsi_0";
/// The operation codes of commands.
const INQUIRY: u8 = 0x12;
const TEST_UNIT_READY: u8 = 0;
const READ_CAPACITY: [u8; 2] = [0x25, 0x9e];

fn set(place: impl AsRef<Path>, value: &str) {
    let place = place.as_ref();
    fs::write(place, value).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

/// A disk of `scsi_debug`, of 8 MiB, and its place among the disks of the target.
struct Odd {
    /// `2:0:0:0`
    address: String,
    place: PathBuf,
}

impl Odd {
    fn new() -> Self {
        if !Path::new(DEBUGFS).join("scsi_debug").exists() {
            Mount::new("debugfs", "none").at(&Target::new(DEBUGFS).unwrap()).unwrap();
        }
        while let [_, ..] = &odd_disks()[..] {
            remove_host();
        }
        // The first host can have the number 0. `vpd_use_hostno` does not change the serial number of its disk, so the
        // disk of the second host is used.
        for (name, value) in [("vpd_use_hostno", "0"), ("virtual_gb", "0"), ("opts", "0"), ("add_host", "2")]
        {
            set(Path::new(DRIVER).join(name), value);
        }
        let both = eventually("the disks", || Some(odd_disks()).filter(|disks| disks.len() == 2));
        let address = |disk: &PathBuf| {
            let place = Path::new("/sys/block").join(disk.file_name().unwrap()).join("device");
            fs::canonicalize(place).unwrap().file_name().unwrap().to_str().unwrap().to_owned()
        };
        let host = |disk: &PathBuf| address(disk).split(':').next().unwrap().parse::<u32>().unwrap();
        let disk = both.into_iter().max_by_key(host).unwrap();
        let address = address(&disk);
        let place = Path::new(CONFIG).join("odd");
        fs::create_dir_all(&place).unwrap();
        let (host, rest) = address.split_once(':').unwrap();
        assert_eq!(rest, "0:0:0");
        let control = format!("scsi_host_id={host},scsi_channel_id=0,scsi_target_id=0,scsi_lun_id=0");
        set(place.join("control"), &control);
        set(place.join("udev_path"), disk.to_str().unwrap());
        set(place.join("enable"), "1");
        Self { address, place }
    }

    /// Lets the next commands with this operation code fail, with this sense key and code.
    fn fail(&self, command: u8, times: u32, sense: (u8, u8, u8)) {
        const CHECK_CONDITION: u8 = 2;
        let (key, code, qualifier) = sense;
        // A negative count is that of the commands that fail; 0 ends the rule.
        let rule =
            format!("2 -{times} {command:#x} 0 0 {CHECK_CONDITION:#x} {key:#x} {code:#x} {qualifier:#x}");
        set(Path::new(DEBUGFS).join("scsi_debug").join(&self.address).join("error"), &rule);
    }

    /// Lets it answer everything but who it is: "hardware error, logical unit failure".
    fn be_nobody(&self, is_nobody: bool) {
        self.fail(INQUIRY, if is_nobody { 100_000 } else { 0 }, (4, 0x3e, 1));
    }

    /// Its serial number now, as the node of the target sees it.
    fn serial(&self) -> LunId {
        let place = Path::new("/sys/class/scsi_device").join(&self.address).join("device");
        set(place.join("rescan"), "1");
        let page = fs::read(place.join("vpd_pg80")).unwrap();
        LunId::serial(std::str::from_utf8(&page[4..]).unwrap()).unwrap()
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        let removed = fs::remove_dir(&self.place);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        remove_host();
        remove_host();
    }
}

fn remove_host() {
    let before = odd_disks().len();
    set(Path::new(DRIVER).join("add_host"), "-1");
    eventually("the disk goes", || (odd_disks().len() < before || before == 0).then_some(()));
}

/// The disks of the driver itself, and not those that the target shows.
fn odd_disks() -> Vec<PathBuf> {
    let is_own = |disk: &PathBuf| {
        let place = Path::new("/sys/block").join(disk.file_name().unwrap());
        fs::canonicalize(place).is_ok_and(|place| place.to_string_lossy().contains("/pseudo_0/"))
    };
    disks().into_iter().filter(is_own).collect()
}

/// The odd disk as a volume with the LUN 9 of the target.
fn volume(lio: &Lio, id: LunId) -> IscsiTarget {
    let target = IscsiTarget::new(&lio.iqn, 9, id).unwrap().wait_limit(Duration::from_secs(20));
    target.portal(iscsi_target::address(3260))
}

fn node() -> (tempfile::TempDir, RemoteDisks) {
    let directory = tempfile::tempdir().unwrap();
    let disks = RemoteDisks::new(directory.path().join("remote"));
    (directory, disks)
}

fn assert_nothing_left() {
    assert_eq!((sessions(), luns().len()), (vec![], odd_disks().len()));
    assert!(node_records().is_empty(), "{:?}", node_records());
}

#[test]
fn a_unit_that_does_not_say_who_it_is_is_not_returned() {
    let lio = Lio::new("nobody", 1, 1);
    let odd = Odd::new();
    let (_directory, node) = node();
    let target = lio.unit(0).wait_limit(Duration::from_secs(3));
    drop(node.attach("pvc", &target).unwrap());
    // The number is another volume now, which answers everything but INQUIRY: the kernel keeps the old names.
    lio.unmap(1);
    lio.map_place(1, &odd.place);
    odd.be_nobody(true);
    let error = node.refresh("pvc").unwrap_err();
    println!("{error}");
    let error = node.attach("pvc", &target).unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("names"), "{error}");
    assert_nothing_left();
    // It says that it is another volume.
    odd.be_nobody(false);
    refused(node.attach("pvc", &target), ErrorKind::NotFound);
    assert_nothing_left();
    lio.unmap(1);
}

#[test]
fn a_unit_without_names_is_waited_for_and_one_with_new_names_is_refused() {
    let lio = Lio::new("names", 0, 1);
    let odd = Odd::new();
    let (_directory, node) = node();
    let old = odd.serial();
    lio.map_place(9, &odd.place);
    odd.be_nobody(true);
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| node.attach("pvc", volume(&lio, old.clone())));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!attaching.is_finished());
        odd.be_nobody(false);
        assert_eq!(attaching.join().unwrap().unwrap().size().unwrap(), 8 * MIB);
    });
    // The serial number changes under the volume.
    set(Path::new(DRIVER).join("vpd_use_hostno"), "1");
    let new = odd.serial();
    assert_ne!(old, new);
    assert!(node.device("pvc").unwrap().is_none());
    assert_eq!(node.refresh("pvc").unwrap_err().kind(), ErrorKind::Unresponsive);
    let error = node.attach("pvc", volume(&lio, old)).unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_nothing_left();
    drop(node.attach("pvc", volume(&lio, new)).unwrap());
    node.detach("pvc").unwrap();
    assert_nothing_left();
    lio.unmap(9);
}

#[test]
fn unit_attentions_do_not_hinder_and_the_new_capacity_is_found() {
    /// "Reported LUNs data has changed", "capacity data has changed", "power on, reset".
    const ATTENTIONS: [(u8, u8, u8); 3] = [(6, 0x3f, 0xe), (6, 0x2a, 9), (6, 0x29, 0)];
    let lio = Lio::new("attention", 0, 1);
    let odd = Odd::new();
    let (_directory, node) = node();
    let id = odd.serial();
    lio.map_place(9, &odd.place);
    for (round, attention) in ATTENTIONS.into_iter().enumerate() {
        let storm = |times| {
            for command in READ_CAPACITY.into_iter().chain([TEST_UNIT_READY]) {
                odd.fail(command, times, attention);
            }
        };
        let gigabytes = round as u64 + 1;
        let start = Instant::now();
        storm(2);
        let device = node.attach("pvc", volume(&lio, id.clone())).unwrap();
        set(Path::new(DRIVER).join("virtual_gb"), &gigabytes.to_string());
        storm(2);
        assert_eq!(node.refresh("pvc").unwrap(), gigabytes << 30);
        assert_eq!(device.size().unwrap(), gigabytes << 30);
        drop(device);
        storm(2);
        let detached = node.detach("pvc").unwrap();
        println!("{attention:x?}: {:?}: {detached}", start.elapsed());
        assert!(detached.not_flushed.is_none());
        assert_nothing_left();
    }
    lio.unmap(9);
}
