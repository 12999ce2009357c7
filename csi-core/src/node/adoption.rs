//! Taking over volumes that an earlier driver of the same name has mounted on this node.
//!
//! Its mounts have no mark, so nothing says whose they are, and each step refuses them. The kubelet wrote a file
//! `vol_data.json` for each path that it gave to a driver, with the driver's name and the volume's id (`csi_mounter.go`,
//! `csi_attacher.go` and `csi_block.go` of the kubelet). Only root can write there.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use csi_mount::{Host, MountEntry, OwnedPath, Owner};
use serde::Deserialize;

use crate::ids::VolumeId;

const RECORD: &str = "vol_data.json";

/// A mount that an earlier driver left on this node; see [`NodeService::adopt`](crate::NodeService::adopt).
#[derive(Debug)]
#[non_exhaustive]
pub struct LeftMount {
    /// The volume for which the kubelet had the path mounted.
    pub volume_id: VolumeId,
    /// What is mounted there: its filesystem, source, device and root directory, and the path.
    pub mount: MountEntry,
}

/// Decides about a mount that the kubelet's file names; an error says why it is not taken over.
pub(super) type Policy = Box<dyn Fn(&LeftMount) -> Result<(), String> + Send + Sync>;

/// The driver's wish to take volumes over.
pub(crate) struct Adoption(pub(super) Policy);

/// What the kubelet's file says of a path.
struct Recorded {
    volume_id: VolumeId,
    path: PathBuf,
}

#[derive(Deserialize)]
struct VolumeData {
    #[serde(rename = "driverName")]
    driver: String,
    #[serde(rename = "volumeHandle")]
    volume_id: VolumeId,
}

impl Adoption {
    /// Marks what the earlier driver has mounted below these directories of the kubelet, before the first call.
    pub(crate) fn run(&self, host: &Host, driver: &str, roots: &[PathBuf]) {
        let table = match host.mounts().table() {
            Ok(table) => table,
            Err(error) => {
                tracing::warn!("no volume is taken over: {error}");
                return;
            }
        };
        for root in roots {
            let csi = root.join("plugins/kubernetes.io/csi");
            let mut staged = HashMap::new();
            for place in staging_paths(&csi, driver) {
                if let Some(mount) = self.adopt(host, driver, roots, &place, &table, None) {
                    staged.insert(place.volume_id, mount);
                }
            }
            for place in target_paths(root, &csi, driver) {
                let staging = staged.get(&place.volume_id).copied();
                self.adopt(host, driver, roots, &place, &table, staging);
            }
        }
    }

    /// Returns what is mounted at the path, if it is the volume's now.
    fn adopt<'t>(
        &self,
        host: &Host,
        driver: &str,
        roots: &[PathBuf],
        place: &Recorded,
        table: &'t [MountEntry],
        staged: Option<&MountEntry>,
    ) -> Option<&'t MountEntry> {
        // The table has no symbolic links, and the kubelet's directory can be one.
        let path = place.path.parent()?.canonicalize().ok()?.join(place.path.file_name()?);
        let mount = table.iter().rfind(|entry| entry.mount_point == path)?;
        let left = LeftMount { volume_id: place.volume_id.clone(), mount: mount.clone() };
        let owner = Owner::new(driver, place.volume_id.as_str()).roots(roots);
        let is_of_staged = staged.is_none_or(|staged| staged.shows_same(mount));
        let decided = if is_of_staged { (self.0)(&left) } else { Err("it is not what is staged".to_owned()) };
        let adopted = decided.and_then(|()| {
            let owned = OwnedPath::new(&place.path, owner);
            host.mounts().adopt(&owned).map_err(|error| error.to_string())
        });
        let volume = place.volume_id.as_str();
        let at = place.path.display();
        match adopted {
            Ok(is_new) => {
                if is_new {
                    tracing::info!(volume, %at, "took over a mount of an earlier driver");
                }
                Some(mount)
            }
            Err(reason) => {
                tracing::warn!(volume, %at, "a mount of an earlier driver is not taken over: {reason}");
                None
            }
        }
    }
}

/// Where the kubelet has had this driver stage filesystems.
fn staging_paths(csi: &Path, driver: &str) -> Vec<Recorded> {
    // The second is the place of a kubelet before 1.24.
    let volumes = entries(&csi.join(driver)).into_iter().chain(entries(&csi.join("pv")));
    volumes.filter_map(|volume| recorded(&volume, driver, volume.join("globalmount"))).collect()
}

/// Where the kubelet has had this driver publish volumes.
fn target_paths(root: &Path, csi: &Path, driver: &str) -> Vec<Recorded> {
    let pods = entries(&root.join("pods")).into_iter();
    let filesystems = pods.flat_map(|pod| entries(&pod.join("volumes/kubernetes.io~csi")));
    let filesystems = filesystems.filter_map(|volume| recorded(&volume, driver, volume.join("mount")));
    let raw = entries(&csi.join("volumeDevices")).into_iter().flat_map(|volume| {
        let Some(name) = volume.file_name() else { return Vec::new() };
        let published = csi.join("volumeDevices/publish").join(name);
        // One file for each pod; an older kubelet has the volume itself there.
        let mut targets = entries(&published);
        targets.push(published);
        let data = volume.join("data");
        targets.into_iter().filter_map(|target| recorded(&data, driver, target)).collect()
    });
    filesystems.chain(raw).collect()
}

/// The paths in a directory; none if there is no such directory.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten();
    found.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// What the file in this directory says of the path, if it is this driver's.
fn recorded(directory: &Path, driver: &str, path: PathBuf) -> Option<Recorded> {
    let text = fs::read_to_string(directory.join(RECORD)).ok()?;
    let data: VolumeData = serde_json::from_str(&text).ok()?;
    (data.driver == driver).then_some(Recorded { volume_id: data.volume_id, path })
}
