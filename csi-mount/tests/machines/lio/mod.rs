//! What the kernel's targets of SCSI (LIO) have in common: their disks, and what this machine shows of them.

use std::fs;
use std::path::{Path, PathBuf};

use csi_mount::{Mount, Target};

use crate::devices::{Image, MIB};

pub(crate) const CONFIG: &str = "/sys/kernel/config/target";
const DISKS: &str = "/sys/kernel/config/target/core/fileio_0";

pub(crate) fn set(place: impl AsRef<Path>, value: &str) {
    let place = place.as_ref();
    fs::write(place, value).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

pub(crate) fn make(place: impl AsRef<Path>) {
    let place = place.as_ref();
    fs::create_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

pub(crate) fn text(place: impl AsRef<Path>) -> String {
    fs::read_to_string(place).unwrap_or_default().trim().to_owned()
}

pub(crate) fn names(place: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The SCSI disks of this machine, as `/dev/sda`.
pub(crate) fn disks() -> Vec<PathBuf> {
    let names = names("/sys/block").into_iter().filter(|name| name.starts_with("sd"));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

/// The directories of the units that this machine shows, disks or not.
pub(crate) fn units() -> Vec<PathBuf> {
    let names = names("/sys/bus/scsi/devices").into_iter();
    let units = names.filter(|name| !name.starts_with("host") && !name.starts_with("target"));
    units.map(|name| Path::new("/sys/bus/scsi/devices").join(name)).collect()
}

/// The LUNs of the units.
pub(crate) fn luns() -> Vec<u64> {
    let lun = |unit: &PathBuf| unit.to_str()?.rsplit(':').next()?.parse().ok();
    let mut luns: Vec<u64> = units().iter().filter_map(lun).collect();
    luns.sort_unstable();
    luns
}

/// The states of the units.
pub(crate) fn states() -> Vec<String> {
    units().iter().map(|unit| text(unit.join("state"))).filter(|state| !state.is_empty()).collect()
}

/// How many writes the disk got that is the only one of its path.
pub(crate) fn writes(is_of_path: impl Fn(&Path) -> bool) -> u64 {
    let disks = disks().into_iter().map(|disk| Path::new("/sys/block").join(disk.file_name().unwrap()));
    let is_of_path = |disk: &PathBuf| is_of_path(&fs::canonicalize(disk.join("device")).unwrap());
    let disk = disks.into_iter().find(is_of_path).expect("a disk of the path");
    text(disk.join("stat")).split_whitespace().nth(4).unwrap().parse().unwrap()
}

/// The number of a unit. No disk has the LUN 0.
pub(crate) fn lun(index: usize) -> u64 {
    index as u64 + 1
}

pub(crate) fn serial(target: &str, index: usize) -> String {
    let letters: String = target.bytes().map(|letter| format!("{letter:02x}")).collect();
    format!("{index:08x}-0000-4000-8000-{letters:0<12.12}")
}

/// LIO makes it from the serial number: its own prefix, and 25 digits.
pub(crate) fn wwid(serial: &str) -> String {
    let digits: String = serial.chars().filter(char::is_ascii_hexdigit).take(25).collect();
    format!("naa.6001405{digits}")
}

pub(crate) fn prepare() {
    if !Path::new(CONFIG).exists() {
        Mount::new("configfs", "none").at(&Target::new("/sys/kernel/config").unwrap()).unwrap();
    }
    fs::create_dir_all(DISKS).unwrap();
}

/// The disks of a target, of 300 MiB each.
pub(crate) struct Disks {
    pub(crate) images: Vec<Image>,
    target: String,
}

impl Disks {
    pub(crate) fn new(target: &str, count: usize) -> Self {
        const SIZE: u64 = 300;
        let images = (0..count).map(|_| Image::new(SIZE)).collect();
        let disks = Self { images, target: target.to_owned() };
        for (index, image) in disks.images.iter().enumerate() {
            let place = disks.place(index);
            make(&place);
            let file = image.path().display();
            let control = format!("fd_dev_name={file},fd_dev_size={},fd_buffered_io=1", SIZE * MIB);
            set(place.join("control"), &control);
            set(place.join("wwn/vpd_unit_serial"), &serial(target, index));
            set(place.join("enable"), "1");
        }
        disks
    }

    pub(crate) fn place(&self, index: usize) -> PathBuf {
        Path::new(DISKS).join(format!("{}-{index}", self.target))
    }

    /// Gives a path of a disk a state of its own (ALUA), with the kernel's number of the state. `group` is the
    /// directory of the path's port group at the target.
    pub(crate) fn set_access(&self, index: usize, path: usize, group: &Path, state: u8) {
        const IMPLICIT: &str = "1";
        let access = self.place(index).join(format!("alua/path{path}"));
        if !access.exists() {
            make(&access);
            set(access.join("tg_pt_gp_id"), &(path + 1).to_string());
            set(access.join("alua_access_type"), IMPLICIT);
            set(group.join(format!("lun/lun_{}/alua_tg_pt_gp", lun(index))), &format!("path{path}"));
        }
        set(access.join("alua_access_state"), &state.to_string());
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for index in 0..self.images.len() {
            for path in 0..2 {
                let _ = fs::remove_dir(self.place(index).join(format!("alua/path{path}")));
            }
            let removed = fs::remove_dir(self.place(index));
            assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
        }
    }
}
