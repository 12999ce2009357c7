//! The storage system: the kernel's own NVMe target, set up through configfs. A real driver calls the API of its
//! storage system here.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use csi_core::{IoContext as _, Result};

pub(crate) const NQN: &str = "nqn.2026-01.org.example:csi-pool";
const NVMET: &str = "/sys/kernel/config/nvmet";

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

/// Makes the subsystem.
pub(crate) fn start() -> Result<()> {
    let subsystem = Path::new(NVMET).join("subsystems").join(NQN);
    make(&subsystem)?;
    set(subsystem.join("attr_allow_any_host"), "1")
}

/// Serves the subsystem at this address, unless it is served.
pub(crate) fn listen(portal: SocketAddr) -> Result<()> {
    let subsystem = Path::new(NVMET).join("subsystems").join(NQN);
    let port = Path::new(NVMET).join("ports/1");
    let link = port.join("subsystems").join(NQN);
    if link.exists() {
        return Ok(());
    }
    make(&port)?;
    set(port.join("addr_trtype"), "tcp")?;
    set(port.join("addr_adrfam"), if portal.is_ipv4() { "ipv4" } else { "ipv6" })?;
    set(port.join("addr_traddr"), &portal.ip().to_string())?;
    set(port.join("addr_trsvcid"), &portal.port().to_string())?;
    std::os::unix::fs::symlink(subsystem, &link).at("open the port", &link)
}

fn namespace(number: u32) -> PathBuf {
    Path::new(NVMET).join(format!("subsystems/{NQN}/namespaces/{number}"))
}

/// Makes an image a namespace with this number and this UUID, unless it is one.
pub(crate) fn serve(image: &Path, number: u32, uuid: &str) -> Result<()> {
    let place = namespace(number);
    make(&place)?;
    if fs::read_to_string(place.join("enable")).is_ok_and(|enabled| enabled.trim() == "1") {
        return Ok(());
    }
    set(place.join("device_path"), &image.display().to_string())?;
    set(place.join("device_uuid"), uuid)?;
    // Targets before Linux 6.13 have no reservations.
    if place.join("resv_enable").exists() {
        set(place.join("resv_enable"), "1")?;
    }
    set(place.join("enable"), "1")
}

/// Takes the namespace with this number away, if it exists.
pub(crate) fn withdraw(number: u32) -> Result<()> {
    let place = namespace(number);
    if !place.exists() {
        return Ok(());
    }
    set(place.join("enable"), "0")?;
    fs::remove_dir(&place).at("remove", &place)
}

/// Lets the target see the new size of an image.
pub(crate) fn grow(number: u32) -> Result<()> {
    set(namespace(number).join("revalidate_size"), "1")
}
