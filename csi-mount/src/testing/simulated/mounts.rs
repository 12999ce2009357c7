//! What is asked about the mounts of a simulated node.

use std::path::{Path, PathBuf};

use nix::libc;

use super::SimulatedNode;
use super::state::{HOST, LARGE, Mount, Root, State, Superblock, fail};
use crate::machine::MountQuestions;
use crate::{
    DeviceNumber, Error, ErrorKind, Finding, MountAttributes, MountEntry, MountHealth, MountId, MountPoint,
    MountState, NodeNeed, OwnerId, ProtectedPaths, Result, SelfCheck, Stats, SuperOptions, Usage, Verdict,
    VolumePlace,
};

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
            return match self.exists(path) {
                true => Ok(Stats::new(Usage::new(LARGE, 0, LARGE), None)),
                false => Err(Error::new(ErrorKind::NotFound, OPERATION, "it does not exist").at(path)),
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
                Ok(Stats::new(Usage::new(found.capacity, used, available), None))
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
                id: MountId::new(mount.id),
                parent: MountId::new(parent.map_or(1, |parent| parent.id)),
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

impl MountQuestions for SimulatedNode {
    fn table(&self) -> Result<Vec<MountEntry>> {
        Ok(self.begin()?.table())
    }

    fn state(&self, path: &Path) -> Result<MountState> {
        let state = self.begin()?;
        let Some(mount) = state.top(path) else {
            return Ok(if state.exists(path) { MountState::NotMounted } else { MountState::Absent });
        };
        let id = MountId::new(mount.id);
        let device = state.table().iter().find(|entry| entry.id == id).map(|entry| entry.device);
        Ok(MountState::Mounted(MountPoint::new(id, device.unwrap_or(DeviceNumber::new(0, 0)))))
    }

    fn health(&self, path: &Path) -> Result<MountHealth> {
        Ok(self.begin()?.health(path))
    }

    fn health_of_filesystem(&self, path: &Path) -> Result<MountHealth> {
        let state = self.begin()?;
        match state.through(path).and_then(|(mount, _)| state.superblock(mount)) {
            Some(found) => Ok(found.health),
            None if state.exists(path) => Ok(MountHealth::Healthy),
            None => fail(ErrorKind::NotFound, "check the health of", path, "it does not exist"),
        }
    }

    fn stats(&self, path: &Path) -> Result<Stats> {
        self.begin()?.stats(path)
    }

    fn marked_owner(&self, path: &Path) -> Result<Option<OwnerId>> {
        Ok(self.begin()?.marked_owner(path).cloned())
    }

    fn refuse_foreign(&self, place: &VolumePlace) -> Result<()> {
        self.begin()?.require_own("use", place)
    }

    fn has_lost_daemon(&self, path: &Path) -> Result<bool> {
        let lost = [MountHealth::Dead(libc::ENOTCONN), MountHealth::Dead(libc::ECONNREFUSED)];
        Ok(lost.contains(&self.begin()?.health(path)))
    }

    fn check_protected(&self, protected: &ProtectedPaths, path: &Path) -> Result<()> {
        protected.check_text(path)
    }

    fn self_check(&self, _roots: &[PathBuf], needs: &[NodeNeed]) -> SelfCheck {
        let state = self.state();
        let filesystems = needs.iter().filter_map(|need| match need {
            NodeNeed::Filesystem(filesystem) => Some(*filesystem),
            _ => None,
        });
        let finding = |tool: &&str| {
            let (verdict, detail) = match state.missing_tools.contains(*tool) {
                true => (Verdict::Broken, "it is not installed"),
                false => (Verdict::Fine, ""),
            };
            Finding { subject: (*tool).to_owned(), verdict, detail: detail.to_owned() }
        };
        let tools = filesystems.flat_map(|filesystem| filesystem.tools().iter());
        SelfCheck::from_findings(tools.map(finding).collect())
    }
}
