//! The steps of an attach, of a refresh and of a detach: map the image and check who it is, read a new size, unmap it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::map::{map, unmap};
use super::mapping::{self, Mapping, bus, mappings};
use super::target::{RbdDisk, RbdTarget};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::attach::{ATTACH, PAUSES, REFRESH, REFRESH_LIMIT, check_portals, failed};
use crate::remote::disk::Disk;
use crate::remote::multipath::Multipath;
use crate::remote::paths::{self, DiskPath, Paths};
use crate::remote::record::Record;
use crate::remote::transport::{Attached, Connect, Transport, not_written};
use crate::remote::{RemoteDisks, ask};

/// How long a mapped image has to become a disk that can be opened.
const DISK_LIMIT: Duration = Duration::from_secs(10);
impl Connect for RbdTarget {
    fn disk(&self) -> Disk {
        Disk::Rbd(self.disk.clone())
    }

    fn portals(&self) -> &[SocketAddr] {
        &self.monitors
    }

    fn validate(&self, sys: &Path) -> Result<()> {
        check_portals(&self.monitors, &self.disk.image)?;
        if !bus(sys).is_dir() {
            return Err(Error::new(ErrorKind::Unsupported, ATTACH, "this kernel has no client of RBD")
                .at(self.disk.to_string())
                .hint("load the module `rbd` on the node; a container needs the host's /sys"));
        }
        Ok(())
    }

    /// Maps the image, unless it is mapped, and opens its disk.
    fn connect(&self, disks: &RemoteDisks, name: &str, _: &mut Record) -> Result<BlockDevice> {
        let sys = &disks.sys;
        let disk = &self.disk;
        if mapping::one(sys, disk)?.is_none() {
            let before = mappings(sys)?;
            map(sys, self)?;
            if let Some(error) = refuse_other(sys, name, disk, &before)? {
                return Err(error);
            }
        }
        let start = Instant::now();
        let mut pause = PAUSES[0];
        loop {
            if let Some(device) = open(sys, disk)? {
                return Ok(device);
            }
            if start.elapsed() > DISK_LIMIT {
                let reason = format!("{disk} is mapped, and no disk came within {DISK_LIMIT:?}");
                return Err(failed(ErrorKind::NotFound, name, reason));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }
}

impl Transport for Attached<'_, RbdDisk> {
    fn target(&self) -> String {
        self.disk.image.clone()
    }

    /// Its map is the connection, whatever monitors it has.
    fn connected(&self) -> Result<Vec<SocketAddr>> {
        if !mapping::is_mapped(self.sys, self.disk)? {
            return Ok(Vec::new());
        }
        Ok(self.portals.iter().map(|portal| portal.address).collect())
    }

    fn paths(&self) -> Result<Paths> {
        let mapping = mapping::one(self.sys, self.disk)?;
        let path = |mapping: Mapping| DiskPath {
            disk: Some(mapping.name()),
            number: mapping.number,
            wwid: None,
            is_usable: true,
            state: String::new(),
        };
        let list: Vec<DiskPath> = mapping.map(path).into_iter().collect();
        Ok(Paths { exist: !list.is_empty(), list, without: Vec::new() })
    }

    fn multipath(&self) -> Option<Multipath> {
        None
    }

    fn remove_paths(&self, not_flushed: Option<&Error>) -> Result<()> {
        match not_flushed {
            // The kernel still waits for the cluster, and has given no write up.
            Some(error) if error.kind() == ErrorKind::Unresponsive => Err(not_written(&self.target(), error)),
            _ => Ok(()),
        }
    }

    fn connections(&self) -> Result<Vec<String>> {
        if !self.portals.iter().any(|portal| portal.is_own) {
            return Ok(Vec::new());
        }
        Ok(mapping::all(self.sys, self.disk)?.iter().map(Mapping::name).collect())
    }

    fn disconnect(&self, connection: &str) -> Result<()> {
        let mappings = mapping::all(self.sys, self.disk)?;
        let mut found = mappings.iter().filter(|mapping| mapping.name() == connection);
        found.try_for_each(|mapping| unmap(self.sys, mapping))
    }

    fn refresh(&self, name: &str) -> Result<u64> {
        refresh(self.sys, name, self.disk)
    }
}

fn open(sys: &Path, disk: &RbdDisk) -> Result<Option<BlockDevice>> {
    let Some(number) = mapping::number(sys, disk)? else { return Ok(None) };
    // It can have been unmapped, and its number given to another image.
    paths::open(number, || Ok(mapping::number(sys, disk)? == Some(number)))
}

/// Undoes a map that found another image: the name was given to a new one.
fn refuse_other(sys: &Path, name: &str, disk: &RbdDisk, before: &[Mapping]) -> Result<Option<Error>> {
    if mapping::is_mapped(sys, disk)? {
        return Ok(None);
    }
    let is_new = |mapping: &&Mapping| !before.contains(mapping) && has_name_of(mapping, disk);
    let found = mappings(sys)?;
    let Some(other) = found.iter().find(is_new) else {
        let reason = format!("the kernel mapped {disk}, and does not list it");
        return Ok(Some(failed(ErrorKind::NotFound, name, reason)));
    };
    unmap(sys, other)?;
    let reason = format!(
        "{}/{} is an image with the id {} in the pool {} of the cluster {}, not {disk}",
        disk.pool, disk.image, other.image_id, other.pool_id, other.fsid
    );
    Ok(Some(failed(ErrorKind::WrongDevice, name, reason)))
}

fn has_name_of(mapping: &Mapping, disk: &RbdDisk) -> bool {
    mapping.pool == disk.pool && mapping.image == disk.image
}

/// The size of the image in the cluster, which the disk then has.
fn refresh(sys: &Path, name: &str, disk: &RbdDisk) -> Result<u64> {
    let gone = || Error::new(ErrorKind::NotFound, REFRESH, format!("{disk} is not mapped")).at(name);
    let mapping = mapping::one(sys, disk)?.ok_or_else(gone)?;
    ask::write(REFRESH, &mapping.place.join("refresh"), b"1", REFRESH_LIMIT)?;
    let device = open(sys, disk)?.ok_or_else(gone)?;
    device.size()
}
