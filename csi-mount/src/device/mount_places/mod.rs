//! Where block devices are mounted, and where their nodes are bound, in the mount tables of all visible mount
//! namespaces.

mod own_mounts;
mod scan;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use self::scan::Scan;
use crate::device::sysfs::Sysfs;
use crate::table::mount_namespaces;
use crate::{DeviceNumber, Result};

/// Where something is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountPlace {
    /// The mount point, relative to the root of its mount namespace.
    pub path: PathBuf,
    /// A process in that mount namespace; none if it is the caller's own mount namespace.
    pub process: Option<NamespaceMember>,
}

/// A process, and the mount namespace that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceMember {
    /// The process's number in this process's pid namespace.
    pub id: u32,
    /// The name of its program, at most 15 bytes.
    pub name: String,
    /// The mount namespace's inode number, as `lsns(8)` shows it.
    pub namespace: u64,
}

impl fmt::Display for MountPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.process {
            Some(NamespaceMember { id, name, namespace }) => {
                write!(f, " in another mount namespace ({namespace}, of process {id}, {name})")
            }
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UseKind {
    /// A filesystem on one of the devices.
    Filesystem,
    /// A bound node of this device.
    Node(DeviceNumber),
}

/// Where these devices, given with their kernel names, are mounted, and where nodes of them are bound.
pub(super) fn find(devices: &[(DeviceNumber, OsString)]) -> Result<Vec<(UseKind, MountPlace)>> {
    let mut scan = Scan::new(devices);
    let own = scan.in_own_namespace()?.into_iter();
    let mut found: Vec<_> = own.map(|(kind, path)| (kind, MountPlace { path, process: None })).collect();
    for namespace in mount_namespaces::others()? {
        let Some(table) = namespace.table() else { continue };
        let there = scan.in_namespace_of(table.process, &table.text);
        if !there.is_empty() {
            let name = program_name(table.process);
            let member = NamespaceMember { id: table.process, name, namespace: namespace.id };
            let place = |path| MountPlace { path, process: Some(member.clone()) };
            found.extend(there.into_iter().map(|(kind, path)| (kind, place(path))));
        }
    }
    Ok(found)
}

/// A place where the node of a device is bound. Such a device belongs to its user, even if nobody has it
/// open: a bound node keeps nothing open, and would give access to the next volume that gets the number.
pub(crate) fn bound_at(number: DeviceNumber) -> Result<Option<MountPlace>> {
    let kernel_name = Sysfs::system().name(number).unwrap_or_default().into();
    let found = find(&[(number, kernel_name)])?;
    Ok(found.into_iter().find_map(|(kind, place)| matches!(kind, UseKind::Node(_)).then_some(place)))
}

/// The name of a process's program.
pub(super) fn program_name(id: u32) -> String {
    // The command line is not read: that waits for the process's memory, which can wait for a filesystem.
    fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim_end().to_owned()
}
