//! Mounts on a place in other mount namespaces. The kernel's rmdir detaches them all silently.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::place::target::Target;
use crate::sys::ids::MountId;
use crate::table::mount_namespaces::{self, NamespaceTable};
use crate::table::mountinfo::{CoveredDirectory, MountEntry, mounts, parse_mountinfo};

const SCAN_TIME_LIMIT: Duration = Duration::from_secs(2);

impl Target {
    /// Returns what is mounted on the target in a mount namespace other than this thread's.
    ///
    /// It finds only namespaces that have a visible process.
    ///
    /// # Errors
    /// [`ErrorKind::Unresponsive`] if there are more namespaces than it can read in two seconds.
    pub(crate) fn mounted_elsewhere(&self, operation: &'static str) -> Result<Option<String>> {
        let Some(place) = self.covered_directory(operation)? else { return Ok(None) };
        let deadline = Instant::now() + SCAN_TIME_LIMIT;
        for namespace in mount_namespaces::others()? {
            if Instant::now() > deadline {
                let reason = "not all mount namespaces could be searched for mounts on it in time";
                return Err(Error::new(ErrorKind::Unresponsive, operation, reason).at(self.path()));
            }
            let Some(NamespaceTable { process, text }) = namespace.table() else { continue };
            let Ok(table) = parse_mountinfo(&text) else { continue };
            if let Some(found) = on_place(&table, &place) {
                let fs_type = &found.fs_type;
                let source = Path::new(&found.source).display();
                return Ok(Some(format!(
                    "{fs_type} from {source}, in the mount namespace of process {process}"
                )));
            }
        }
        Ok(None)
    }

    fn covered_directory(&self, operation: &'static str) -> Result<Option<CoveredDirectory>> {
        let path = self.resolved_parent(operation)?;
        let mount = self.directory().map_err(|error| self.error(operation, error))?.mount;
        let table = mounts()?;
        let Some(entry) = table.iter().find(|entry| entry.id == mount) else { return Ok(None) };
        let Ok(below) = path.strip_prefix(&entry.mount_point) else { return Ok(None) };
        Ok(Some(CoveredDirectory { device: entry.device, path: entry.root.join(below).join(self.name()) }))
    }
}

/// The mount on that place. Its mount point has the place's name, so most mounts are skipped at once.
fn on_place<'t>(table: &'t [MountEntry], place: &CoveredDirectory) -> Option<&'t MountEntry> {
    let name = place.path.file_name();
    let by_id: HashMap<MountId, &MountEntry> = table.iter().map(|entry| (entry.id, entry)).collect();
    table.iter().filter(|entry| entry.mount_point.file_name() == name).find(|entry| {
        by_id.get(&entry.parent).is_some_and(|below| {
            below.device == place.device && CoveredDirectory::of(entry, below).as_ref() == Some(place)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ids::DeviceNumber;

    #[test]
    fn a_mount_is_found_by_the_directory_that_it_covers() {
        let table = parse_mountinfo(
            b"20 1 8:1 /host / rw - ext4 /dev/sda1 rw\n\
              31 20 0:52 / /pods/target rw - tmpfs theirs rw\n\
              32 20 0:53 / /other/target rw - tmpfs other rw\n",
        )
        .unwrap();
        let place =
            |path: &str| CoveredDirectory { device: DeviceNumber { major: 8, minor: 1 }, path: path.into() };
        assert_eq!(on_place(&table, &place("/host/pods/target")).unwrap().source, "theirs");
        assert_eq!(on_place(&table, &place("/pods/target")), None);
        assert_eq!(on_place(&table, &place("/host/pods/targe")), None);
    }
}
