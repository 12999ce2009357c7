//! The mounts of this thread's namespace, without reading again what is known of them.
//!
//! The kernel writes a table of 10,000 mounts in tens of milliseconds, and lists the ids of these mounts in
//! two. Most mounts show a whole filesystem, and what they show never changes. So only the others are read
//! for each search.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::error::Result;
use crate::place::on_device::ANONYMOUS_DEVICE_TYPES;
use crate::sys::features::{self, Feature};
use crate::sys::ids::DeviceNumber;
use crate::sys::mount_api::{self, MountedPart, NAMESPACE_ROOT};
use crate::table::mountinfo::{MountEntry, mounts};

/// The mounts of whole filesystems by their unique id, which the kernel never uses again, and the device of
/// each. A mount's filesystem and root stay the same as long as the mount exists. Filesystems whose number
/// does not identify their device are not in it.
static WHOLE: Mutex<BTreeMap<u64, DeviceNumber>> = Mutex::new(BTreeMap::new());

/// How many ids are read at once.
const LIST: usize = if cfg!(test) { 64 } else { 4096 };

/// Every mount of this thread's namespace that is reachable from its root. Mounts of whole filesystems on
/// devices that are not wanted can be left out.
pub(super) fn candidates(is_wanted: impl Fn(DeviceNumber) -> bool) -> Result<Vec<MountedPart>> {
    match listed(is_wanted) {
        Ok(Some(found)) => Ok(found),
        // An old kernel, or a mount that it cannot describe: the table has all.
        Ok(None) | Err(_) => Ok(mounts()?.into_iter().map(MountedPart::from).collect()),
    }
}

fn listed(is_wanted: impl Fn(DeviceNumber) -> bool) -> io::Result<Option<Vec<MountedPart>>> {
    if !features::has(Feature::Statmount) {
        return Ok(None);
    }
    let ids = ids()?;
    let known = || WHOLE.lock().unwrap_or_else(PoisonError::into_inner);
    let unknown: Vec<u64> = {
        let mut known = known();
        known.retain(|id, _| ids.binary_search(id).is_ok());
        ids.into_iter().filter(|id| known.get(id).is_none_or(|device| is_wanted(*device))).collect()
    };
    let mut found = Vec::new();
    let mut whole = Vec::new();
    for id in unknown {
        let part = match mount_api::statmount_place(id) {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(None),
            // Unmounted meanwhile.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => continue,
            Err(error) => return Err(error),
        };
        if part.root == Path::new("/") && !ANONYMOUS_DEVICE_TYPES.contains(&&*part.fs_type) {
            whole.push((id, part.device));
        }
        found.push(part);
    }
    known().extend(whole);
    Ok(Some(found))
}

/// The unique ids of all mounts, sorted.
fn ids() -> io::Result<Vec<u64>> {
    let mut ids = Vec::new();
    let mut some = vec![0; LIST];
    loop {
        let count = mount_api::listmount(NAMESPACE_ROOT, ids.last().copied().unwrap_or(0), &mut some)?;
        ids.extend_from_slice(&some[..count]);
        if count < some.len() {
            ids.sort_unstable();
            return Ok(ids);
        }
    }
}

impl From<MountEntry> for MountedPart {
    fn from(entry: MountEntry) -> Self {
        let MountEntry { id, device, root, mount_point, fs_type, source, .. } = entry;
        Self { id, device, fs_type, source, root, mount_point }
    }
}

#[cfg(test)]
mod needs_root {
    use super::*;
    use crate::mounting::bind::Bind;
    use crate::mounting::mount::Mount;
    use crate::place::target::Target;
    use crate::testing::private_mount_namespace;

    fn below(directory: &Path, mut parts: Vec<MountedPart>) -> Vec<MountedPart> {
        parts.retain(|part| part.mount_point.starts_with(directory));
        parts.sort();
        parts
    }

    #[test]
    fn the_list_has_what_the_table_has() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let place = directory.path().join("a b\\c\nd");
            let target = Target::new(&place).unwrap();
            target.create_dir().unwrap();
            Mount::new("tmpfs", "so\turce").at(&target).unwrap();
            let source = place.join("source");
            std::fs::create_dir(&source).unwrap();
            // More than are read at once.
            for number in 0..LIST + 2 {
                let inner = Target::new(place.join(number.to_string())).unwrap();
                inner.create_dir().unwrap();
                Bind::new(&source).at(&inner).unwrap();
            }
            let table: Vec<_> = mounts().unwrap().into_iter().map(MountedPart::from).collect();
            assert!(table.len() > LIST);
            let mut found = candidates(|_| true).unwrap();
            assert_eq!(below(directory.path(), found.clone()), below(directory.path(), table));
            // A kernel without the calls has the table.
            let old =
                crate::internal::without_features(&[Feature::Statmount], || candidates(|_| true).unwrap());
            found.sort();
            assert_eq!(below(directory.path(), old), below(directory.path(), found));
        });
    }

    #[test]
    fn what_is_left_out_later_is_a_whole_filesystem_on_another_device() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let mount = |name: &str| {
                let target = Target::new(directory.path().join(name)).unwrap();
                target.create_dir().unwrap();
                Mount::new("tmpfs", name).at(&target).unwrap();
                target
            };
            let bind = |source: &Target, name: &str| {
                let target = Target::new(directory.path().join(name)).unwrap();
                let inner = Target::new(source.path().join(name)).unwrap();
                inner.create_dir().unwrap();
                target.create_dir().unwrap();
                Bind::new(inner.path()).at(&target).unwrap();
            };
            let names = |wanted: Option<DeviceNumber>| -> Vec<String> {
                let parts = listed(|device| Some(device) == wanted).unwrap().expect("a list");
                let names = below(directory.path(), parts).into_iter().map(|part| part.mount_point);
                let mut names: Vec<_> =
                    names.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
                names.sort();
                names
            };
            // A search of another test, in its own namespace, makes the process forget what it knows of this one.
            let becomes = |due: &[&str]| (0..1000).any(|_| names(None) == due);
            let first = mount("first");
            bind(&first, "part");
            assert_eq!(names(None), ["first", "part"]);
            assert!(becomes(&["part"]));
            let device = first.state().unwrap().mount_point().unwrap().device;
            assert_eq!(names(Some(device)), ["first", "part"]);
            let second = mount("second");
            bind(&second, "new");
            assert!(names(None).contains(&"second".to_owned()), "it is not known yet");
            crate::unmount(&second).unwrap();
            assert!(becomes(&["new", "part"]));
        });
    }
}
