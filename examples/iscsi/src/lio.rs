//! The storage system: the kernel's own iSCSI target (LIO), set up through configfs. A real driver calls the API of
//! its storage system here.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use csi_core::{Error, IoContext as _, Result};

pub(crate) const IQN: &str = "iqn.2026-01.org.example:csi-pool";
const LIO: &str = "/sys/kernel/config/target";
/// A node has the units that it was allowed, and needs no password.
const SETTINGS: [(&str, &str); 2] = [("authentication", "0"), ("generate_node_acls", "0")];

fn group() -> PathBuf {
    Path::new(LIO).join(format!("iscsi/{IQN}/tpgt_1"))
}

fn disk(number: u64) -> PathBuf {
    Path::new(LIO).join(format!("core/fileio_0/csi-{number}"))
}

fn set(attribute: impl AsRef<Path>, value: &str) -> Result<()> {
    fs::write(&attribute, value).at("set", attribute.as_ref())
}

/// Makes a directory in configfs, unless it exists.
fn make(directory: &Path) -> Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.at("make", directory),
    }
}

/// Makes the target.
pub(crate) fn start() -> Result<()> {
    // The target keeps reservations in files there, and refuses them without the directory.
    let base = Path::new(LIO).join("dbroot");
    let base = fs::read_to_string(&base).at("read", &base)?;
    let reservations = Path::new(base.trim()).join("pr");
    fs::create_dir_all(&reservations).at("create", &reservations)?;
    for place in ["core/fileio_0", "iscsi"].map(|place| Path::new(LIO).join(place)) {
        make(&place)?;
    }
    make(&Path::new(LIO).join("iscsi").join(IQN))?;
    make(&group())?;
    SETTINGS.iter().try_for_each(|(name, value)| set(group().join("attrib").join(name), value))
}

/// Serves the target at this address.
pub(crate) fn listen(portal: SocketAddr) -> Result<()> {
    make(&group().join(format!("np/{portal}")))?;
    enable(&group())
}

/// Older kernels refuse this for what is enabled.
fn enable(place: &Path) -> Result<()> {
    if is_enabled(place) { Ok(()) } else { set(place.join("enable"), "1") }
}

fn is_enabled(place: &Path) -> bool {
    fs::read_to_string(place.join("enable")).is_ok_and(|enabled| enabled.trim() == "1")
}

/// Makes an image a unit with this number and this serial number, unless it is one.
pub(crate) fn serve(image: &Path, bytes: u64, number: u64, serial: &str) -> Result<()> {
    let disk = disk(number);
    make(&disk)?;
    if !is_enabled(&disk) {
        // Buffered writes are faster, and a flush of the node reaches the image.
        let image = image.display();
        set(disk.join("control"), &format!("fd_dev_name={image},fd_dev_size={bytes},fd_buffered_io=1"))?;
        set(disk.join("wwn/vpd_unit_serial"), serial)?;
        enable(&disk)?;
    }
    let unit = unit(number);
    make(&unit)?;
    link(&disk, &unit.join("disk"))
}

fn unit(number: u64) -> PathBuf {
    group().join(format!("lun/lun_{number}"))
}

fn link(target: &Path, place: &Path) -> Result<()> {
    match std::os::unix::fs::symlink(target, place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked.at("map", place),
    }
}

/// Removes a directory of configfs and the link in it, if they exist.
fn remove(directory: &Path, link: &str) -> Result<()> {
    for removed in [fs::remove_file(directory.join(link)), fs::remove_dir(directory)] {
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.at("remove", directory)?,
        }
    }
    Ok(())
}

/// The name with which this machine logs in.
pub(crate) fn initiator() -> Result<String> {
    let file = Path::new("/etc/iscsi/initiatorname.iscsi");
    let text = fs::read_to_string(file).at("read", file)?;
    let name = text.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="));
    name.map(str::to_owned)
        .ok_or_else(|| Error::Internal(format!("{}: no InitiatorName", file.display()).into()))
}

/// Lets this initiator use the unit with this number.
pub(crate) fn allow(number: u64, initiator: &str) -> Result<()> {
    let node = group().join("acls").join(initiator);
    make(&node)?;
    let allowed = node.join(format!("lun_{number}"));
    make(&allowed)?;
    link(&unit(number), &allowed.join("unit"))
}

/// Takes the unit from every initiator. What they have sent has ended then.
pub(crate) fn forbid(number: u64) -> Result<()> {
    let nodes = group().join("acls");
    for node in fs::read_dir(&nodes).at("list", &nodes)? {
        remove(&node.at("list", &nodes)?.path().join(format!("lun_{number}")), "unit")?;
    }
    Ok(())
}

/// Takes the unit with this number away, if it exists.
pub(crate) fn withdraw(number: u64) -> Result<()> {
    forbid(number)?;
    remove(&unit(number), "disk")?;
    match fs::remove_dir(disk(number)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.at("remove", disk(number)),
    }
}

/// Lets the target show the new size of an image.
pub(crate) fn grow(number: u64, bytes: u64) -> Result<()> {
    set(disk(number).join("control"), &format!("fd_dev_size={bytes}"))
}
