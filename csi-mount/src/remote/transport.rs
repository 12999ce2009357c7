//! What the shared steps need of a transport: of a target that a driver names ([`Connect`]), and of an attachment
//! that a record describes ([`Transport`]).

use std::net::SocketAddr;
use std::path::Path;

use super::RemoteDisks;
use super::detach::DETACH;
use super::disk::{Disk, RemoteTarget};
use super::multipath::Multipath;
use super::paths::Paths;
use super::record::{Portal, Record};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::DeviceNumber;

/// What a driver names.
pub(super) trait Connect {
    fn disk(&self) -> Disk;

    /// The addresses that an attachment connects. A port of Fibre Channel is none.
    fn portals(&self) -> &[SocketAddr] {
        &[]
    }

    /// Whether only one of the portals is used.
    fn is_single_path(&self) -> bool {
        false
    }

    /// Refuses a target that can't be used, or whose transport this node lacks.
    fn validate(&self, sys: &Path) -> Result<()>;

    /// The name of a key that this attachment must add to the kernel's keyring.
    fn missing_key(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Connects, and waits for the disk. The record is written already. It gets the name of the disk's map, which
    /// without a path is not known any more.
    fn connect(&self, disks: &RemoteDisks, name: &str, record: &mut Record) -> Result<BlockDevice>;
}

impl RemoteTarget {
    pub(super) fn connect(&self) -> &dyn Connect {
        match self {
            Self::Nvme(target) => target,
            Self::Iscsi(target) => target,
            Self::Fc(target) => target,
            Self::Rbd(target) => target,
        }
    }
}

/// The attachment of a disk on this node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attached<'r, D> {
    pub(super) sys: &'r Path,
    pub(super) disk: &'r D,
    pub(super) portals: &'r [Portal],
}

impl Record {
    pub(super) fn attached<'r>(&'r self, sys: &'r Path) -> Box<dyn Transport + 'r> {
        let portals = &self.portals;
        match &self.disk {
            Disk::Nvme(disk) => Box::new(Attached { sys, disk, portals }),
            Disk::Iscsi(disk) => Box::new(Attached { sys, disk, portals }),
            Disk::Fc(disk) => Box::new(Attached { sys, disk, portals }),
            Disk::Rbd(disk) => Box::new(Attached { sys, disk, portals }),
        }
    }

    /// The number of the disk, usable or not.
    pub(super) fn number(&self, sys: &Path) -> Result<Option<DeviceNumber>> {
        self.attached(sys).number(self.wwid.as_deref())
    }
}

/// An attachment, for the steps that all transports share.
pub(super) trait Transport {
    /// The name of its target, for messages.
    fn target(&self) -> String;

    /// The addresses that have a connection, whoever made it. A port of Fibre Channel is none.
    fn connected(&self) -> Result<Vec<SocketAddr>> {
        Ok(Vec::new())
    }

    /// The paths to the disk, as the kernel shows them now.
    fn paths(&self) -> Result<Paths>;

    /// dm-multipath, if it makes one disk of the paths on this node.
    fn multipath(&self) -> Option<Multipath>;

    /// Rescans each live path, if the kernel does not notice a change of its identity by itself.
    fn ask_again(&self) -> Result<()> {
        Ok(())
    }

    /// Whether each path is deleted by a detach: then multipathd closes it first.
    fn deletes_paths(&self) -> bool {
        false
    }

    /// Deletes the paths of the disk, which nobody uses, as far as they do not go with their connections.
    ///
    /// # Errors
    ///
    /// [`Unresponsive`](ErrorKind::Unresponsive) if the disk was not flushed, and a path works: its writes are not
    /// lost yet.
    fn remove_paths(&self, not_flushed: Option<&Error>) -> Result<()>;

    /// The connections that the attachment made. One that a killed process has begun is awaited.
    fn connections(&self) -> Result<Vec<String>>;

    /// The disks that these connections have now, with the names by which their maps are found.
    fn disks_of(&self, _connections: &[String]) -> Result<Vec<(DeviceNumber, Option<String>)>> {
        Ok(Vec::new())
    }

    /// Ends a connection, and waits until it is gone. One that does not exist is a success.
    fn disconnect(&self, connection: &str) -> Result<()>;

    /// The size that the target reports, once each live path and the disk have it.
    fn refresh(&self, name: &str) -> Result<u64>;

    /// The number of the disk, usable or not. `recorded` is the name of its map, which is not known without a path.
    fn number(&self, recorded: Option<&str>) -> Result<Option<DeviceNumber>> {
        let paths = self.paths()?;
        match (self.multipath(), paths.wwid().or(recorded)) {
            (Some(multipath), Some(wwid)) => multipath.disk(wwid, &paths.all()),
            _ => Ok(paths.all().first().copied()),
        }
    }

    /// Whether anything of the disk exists: a path, or its map.
    fn exists(&self, recorded: &str) -> Result<bool> {
        if self.paths()?.exist {
            return Ok(true);
        }
        match self.multipath().map(|multipath| multipath.disk(recorded, &[])).transpose() {
            Err(error) if error.kind() == ErrorKind::WrongDevice => Ok(true),
            map => Ok(map?.flatten().is_some()),
        }
    }

    /// Removes the map of the disk, if it has one, before its paths go. Returns why the last writes are possibly lost.
    ///
    /// # Errors
    ///
    /// Those of [`Multipath::remove_map`]; [`Unresponsive`](ErrorKind::Unresponsive) if a path works and the map does
    /// not take its last writes: it stays.
    fn release_map(&self, recorded: Option<&str>) -> Result<Option<Error>> {
        let Some(multipath) = self.multipath() else { return Ok(None) };
        self.ask_again()?;
        let paths = self.paths()?;
        let Some(wwid) = paths.wwid().or(recorded) else { return Ok(None) };
        if !paths.usable().is_empty() {
            multipath.flush(wwid).map_err(|error| not_written(&self.target(), &error))?;
        }
        let not_flushed = multipath.remove_map(wwid)?;
        if self.deletes_paths() {
            multipath.forget(&paths.all());
        }
        Ok(not_flushed)
    }
}

/// The error for a disk with a path that works, whose data is neither written nor given up.
pub(super) fn not_written(target: &str, error: &Error) -> Error {
    let reason = format!("the disk does not take its last writes: {error}");
    Error::new(ErrorKind::Unresponsive, DETACH, reason).at(target)
}
