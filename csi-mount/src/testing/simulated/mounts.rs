//! What is asked about the mounts of a simulated node.

use std::path::{Path, PathBuf};

use nix::libc;

use super::SimulatedNode;
use super::state::{HOST, LARGE, Mount, Root, State, Superblock, fail};
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::health::MountHealth;
use crate::mounted::stats::{FilesystemUsage, Stats};
use crate::place::owned_path::OwnedPath;
use crate::place::owner::OwnerId;
use crate::place::protected::ProtectedPaths;
use crate::preflight::{NodeNeed, Preflight, PreflightFinding, Verdict};
use crate::sys::attributes::MountAttributes;
use crate::sys::ids::{DeviceNumber, MountId};
use crate::sys::super_options::SuperOptions;
use crate::table::facts::{MountPoint, MountState};
use crate::table::mountinfo::MountEntry;

/// The filesystem of the device nodes.
const DEVICES: DeviceNumber = DeviceNumber::new(0, 2);
const PAGE: u64 = 4096;

impl State {
    pub(super) fn health(&self, path: &Path) -> MountHealth {
        match self.top(path) {
            None => MountHealth::NotMounted,
            Some(mount) => self.superblock(mount).map_or(MountHealth::Healthy, |found| found.health),
        }
    }

    pub(super) fn used(&self, superblock: &Superblock) -> u64 {
        self.files[superblock.files].values().map(|bytes| (bytes.len() as u64).div_ceil(PAGE) * PAGE).sum()
    }

    pub(super) fn stats(&self, path: &Path) -> Result<Stats> {
        const OPERATION: &str = "read the usage of";
        let found = self.through(path).and_then(|(mount, _)| self.superblock(mount));
        let Some(found) = found else {
            return if self.exists(path) {
                Ok(Stats::new(FilesystemUsage::new(LARGE, 0, LARGE), None))
            } else {
                Err(Error::new(ErrorKind::NotFound, OPERATION, "it does not exist").at(path))
            };
        };
        match found.health {
            MountHealth::Unresponsive => {
                Err(Error::new(ErrorKind::Unresponsive, OPERATION, "no answer").at(path))
            }
            MountHealth::Dead(number) => {
                Err(Error::os(OPERATION, path, std::io::Error::from_raw_os_error(number)))
            }
            _ => {
                let used = self.used(found);
                let available = if found.is_full { 0 } else { found.capacity.saturating_sub(used) };
                Ok(Stats::new(FilesystemUsage::new(found.capacity, used, available), None))
            }
        }
    }

    /// The mount table, with the node's own filesystem first.
    pub(super) fn table(&self) -> Vec<MountEntry> {
        let entry = |mount: &Mount| {
            let (device, root, fs_type, source, options) = match &mount.root {
                Root::Directory(path) => (HOST, path.clone(), "simulated".to_owned(), "node".into(), "rw"),
                Root::Node(path) => {
                    let name = Path::new("/").join(path.file_name().unwrap_or_default());
                    (DEVICES, name, "devtmpfs".to_owned(), "udev".into(), "rw")
                }
                Root::Filesystem(index) => {
                    let found = &self.superblocks[*index];
                    let root = PathBuf::from("/");
                    (found.number, root, found.fs_type.clone(), found.source.clone(), &*found.options)
                }
            };
            let above = self.mounts.iter().filter(|other| {
                (other.path.components().count(), other.id) < (mount.path.components().count(), mount.id)
                    && mount.path.starts_with(&other.path)
            });
            let parent = above.max_by_key(|other| (other.path.components().count(), other.id));
            MountEntry {
                id: MountId(mount.id),
                parent: MountId(parent.map_or(1, |parent| parent.id)),
                device,
                root,
                mount_point: mount.path.clone(),
                attributes: mount.attributes,
                peer_group: None,
                master: None,
                fs_type,
                source,
                super_options: SuperOptions::new(options.as_bytes().to_vec()),
            }
        };
        let node = Mount {
            id: 1,
            path: "/".into(),
            root: Root::Directory("/".into()),
            attributes: MountAttributes::empty(),
        };
        std::iter::once(&node).chain(&self.mounts).map(entry).collect()
    }
}

pub(crate) fn table(simulated: &SimulatedNode) -> Result<Vec<MountEntry>> {
    Ok(simulated.begin()?.table())
}

pub(crate) fn state(simulated: &SimulatedNode, path: &Path) -> Result<MountState> {
    let state = simulated.begin()?;
    let Some(mount) = state.top(path) else {
        return Ok(if state.exists(path) { MountState::NotMounted } else { MountState::Absent });
    };
    let id = MountId(mount.id);
    let device = state.table().iter().find(|entry| entry.id == id).map(|entry| entry.device);
    Ok(MountState::Mounted(MountPoint { id, device: device.unwrap_or(DeviceNumber::new(0, 0)) }))
}

pub(crate) fn health(simulated: &SimulatedNode, path: &Path) -> Result<MountHealth> {
    Ok(simulated.begin()?.health(path))
}

pub(crate) fn health_of_filesystem(simulated: &SimulatedNode, path: &Path) -> Result<MountHealth> {
    let state = simulated.begin()?;
    match state.through(path).and_then(|(mount, _)| state.superblock(mount)) {
        Some(found) => Ok(found.health),
        None if state.exists(path) => Ok(MountHealth::Healthy),
        None => fail(ErrorKind::NotFound, "check the health of", path, "it does not exist"),
    }
}

pub(crate) fn stats(simulated: &SimulatedNode, path: &Path) -> Result<Stats> {
    simulated.begin()?.stats(path)
}

pub(crate) fn marked_owner(simulated: &SimulatedNode, path: &Path) -> Result<Option<OwnerId>> {
    Ok(simulated.begin()?.marked_owner(path).cloned())
}

pub(crate) fn refuse_foreign(simulated: &SimulatedNode, place: &OwnedPath) -> Result<()> {
    simulated.begin()?.require_own("use", place)
}

pub(crate) fn adopt(simulated: &SimulatedNode, place: &OwnedPath) -> Result<bool> {
    simulated.begin()?.adopt(place)
}

pub(crate) fn has_lost_daemon(simulated: &SimulatedNode, path: &Path) -> Result<bool> {
    let lost = [MountHealth::Dead(libc::ENOTCONN), MountHealth::Dead(libc::ECONNREFUSED)];
    Ok(lost.contains(&simulated.begin()?.health(path)))
}

pub(crate) fn check_protected(
    _simulated: &SimulatedNode,
    protected: &ProtectedPaths,
    path: &Path,
) -> Result<()> {
    protected.check_text(path)
}

pub(crate) fn preflight(simulated: &SimulatedNode, _roots: &[PathBuf], needs: &[NodeNeed]) -> Preflight {
    let state = simulated.state();
    let filesystems = needs.iter().filter_map(|need| match need {
        NodeNeed::Filesystem(filesystem) => Some(*filesystem),
        _ => None,
    });
    let finding = |tool: &&str| {
        let (verdict, detail) = if state.missing_tools.contains(*tool) {
            (Verdict::Broken, "it is not installed")
        } else {
            (Verdict::Fine, "")
        };
        PreflightFinding { subject: (*tool).to_owned(), verdict, detail: detail.to_owned() }
    };
    let tools = filesystems.flat_map(|filesystem| filesystem.tools().iter());
    Preflight::from_findings(tools.map(finding).collect())
}
