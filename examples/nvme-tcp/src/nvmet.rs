//! The storage system: the kernel's own NVMe target, set up through configfs. A real driver calls the API of its
//! storage system here.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use csi_core::{IoContext as _, Result};

const NAME: &str = "nqn.2026-01.org.example:csi-pool";
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

fn link(target: &Path, place: &Path) -> Result<()> {
    match std::os::unix::fs::symlink(target, place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked.at("link", place),
    }
}

fn is_gone(removed: io::Result<()>, place: &Path) -> Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.at("remove", place),
    }
}

fn port() -> PathBuf {
    Path::new(NVMET).join("ports/1")
}

/// Opens the port at this address, unless it is open.
pub(crate) fn listen(portal: SocketAddr) -> Result<()> {
    if port().exists() {
        return Ok(());
    }
    make(&port())?;
    set(port().join("addr_trtype"), "tcp")?;
    set(port().join("addr_adrfam"), if portal.is_ipv4() { "ipv4" } else { "ipv6" })?;
    set(port().join("addr_traddr"), &portal.ip().to_string())?;
    set(port().join("addr_trsvcid"), &portal.port().to_string())
}

/// The name of the subsystem that has the namespace with this UUID, and nothing else.
pub(crate) fn nqn(uuid: &str) -> String {
    format!("{NAME}:{uuid}")
}

fn subsystem(uuid: &str) -> PathBuf {
    Path::new(NVMET).join("subsystems").join(nqn(uuid))
}

fn namespace(uuid: &str) -> PathBuf {
    subsystem(uuid).join("namespaces/1")
}

fn is_enabled(uuid: &str) -> bool {
    fs::read_to_string(namespace(uuid).join("enable")).is_ok_and(|enabled| enabled.trim() == "1")
}

/// Makes an image a namespace with this UUID, unless it is one.
pub(crate) fn make_namespace(image: &Path, uuid: &str) -> Result<()> {
    make(&subsystem(uuid))?;
    set(subsystem(uuid).join("attr_allow_any_host"), "0")?;
    let place = namespace(uuid);
    make(&place)?;
    if is_enabled(uuid) {
        return Ok(());
    }
    set(place.join("device_path"), &image.display().to_string())?;
    set(place.join("device_uuid"), uuid)?;
    // Targets before Linux 6.13 have no reservations.
    if place.join("resv_enable").exists() {
        set(place.join("resv_enable"), "1")?;
    }
    Ok(())
}

/// Lets this host use the namespace.
pub(crate) fn allow(uuid: &str, host: &str) -> Result<()> {
    if !is_enabled(uuid) {
        set(namespace(uuid).join("enable"), "1")?;
    }
    let known = Path::new(NVMET).join("hosts").join(host);
    make(&known)?;
    link(&known, &subsystem(uuid).join("allowed_hosts").join(host))?;
    link(&subsystem(uuid), &port().join("subsystems").join(nqn(uuid)))
}

/// Takes the namespace from every host, and ends their connections. What they have sent has ended then.
pub(crate) fn forbid(uuid: &str) -> Result<()> {
    if is_enabled(uuid) {
        set(namespace(uuid).join("enable"), "0")?;
    }
    let served = port().join("subsystems").join(nqn(uuid));
    is_gone(fs::remove_file(&served), &served)?;
    let allowed = subsystem(uuid).join("allowed_hosts");
    for host in fs::read_dir(&allowed).at("list", &allowed)? {
        let host = host.at("list", &allowed)?.path();
        is_gone(fs::remove_file(&host), &host)?;
    }
    Ok(())
}

/// Takes the namespace away, if it exists.
pub(crate) fn withdraw(uuid: &str) -> Result<()> {
    if !subsystem(uuid).exists() {
        return Ok(());
    }
    forbid(uuid)?;
    let place = namespace(uuid);
    is_gone(fs::remove_dir(&place), &place)?;
    is_gone(fs::remove_dir(subsystem(uuid)), &subsystem(uuid))
}

/// Lets the target see the new size of an image. It looks by itself when the next host is allowed.
pub(crate) fn grow(uuid: &str) -> Result<()> {
    if is_enabled(uuid) { set(namespace(uuid).join("revalidate_size"), "1") } else { Ok(()) }
}
