//! NVMe without the kernel's native multipath: each path to a namespace is a disk, and dm-multipath makes one
//! disk of them.

use std::path::Path;
use std::time::{Duration, Instant};

use super::decide::{self, Namespace};
use super::target::{NvmeDisk, NvmeTarget};
use super::tree::{Controller, Tree, has_native_multipath};
use crate::remote::detach::not_written;
use crate::remote::multipath::{Found, Multipath, Search, SinglePath};
use crate::{DeviceNumber, Error, ErrorKind, Result};

/// How long a live controller has to show a namespace that another one shows already.
const LATE_PATH: Duration = Duration::from_secs(5);

/// dm-multipath, if NVMe needs it on this node.
pub(in crate::remote) fn multipath(sys: &Path) -> Option<Multipath> {
    (!has_native_multipath(sys)).then(|| Multipath::new(sys))
}

/// The paths to a namespace that are disks of their own.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::remote) struct Paths {
    /// The kernel's name for the namespace; none if it has no path.
    pub(in crate::remote) wwid: Option<String>,
    pub(in crate::remote) all: Vec<DeviceNumber>,
    /// Those that can be used now.
    pub(in crate::remote) usable: Vec<DeviceNumber>,
    /// The live controllers that do not show the namespace.
    pub(in crate::remote) without: Vec<String>,
}

pub(in crate::remote) fn paths(tree: &Tree, disk: &NvmeDisk) -> Paths {
    let mut found = Paths::default();
    for (controller, path) in decide::paths(tree, disk) {
        found.wwid.get_or_insert_with(|| path.ids.wwid.clone());
        found.all.extend(path.number);
        found.usable.extend(path.number.filter(|_| controller.is_live() && path.is_accessible()));
    }
    let shows = |controller: &Controller| controller.paths.iter().any(|path| path.ids.has(&disk.namespace));
    let late = tree.of(disk).filter(|found| found.is_live() && !shows(found));
    found.without = late.map(|controller| controller.name.clone()).collect();
    found
}

/// Finds the disk of a namespace, with or without native multipath.
pub(in crate::remote) struct Finder<'m> {
    multipath: Option<&'m Multipath>,
    search: Option<Search<'m>>,
    /// The kernel's name for the namespace, as soon as it can be used.
    pub(in crate::remote) wwid: Option<String>,
    start: Instant,
}

impl<'m> Finder<'m> {
    pub(in crate::remote) fn new(multipath: Option<&'m Multipath>) -> Self {
        Self { multipath, search: None, wwid: None, start: Instant::now() }
    }

    /// Whether and how the namespace can be used.
    ///
    /// # Errors
    ///
    /// Those of [`Search::look`].
    pub(in crate::remote) fn namespace(&mut self, tree: &Tree, target: &NvmeTarget) -> Result<Namespace> {
        let disk = target.disk();
        let found = decide::namespace(tree, &disk);
        if !matches!(found, Namespace::Usable(_) | Namespace::SeveralDisks(_)) {
            return Ok(found);
        }
        let paths = paths(tree, &disk);
        let Some(multipath) = self.multipath else {
            self.wwid = paths.wwid;
            return Ok(found);
        };
        if !paths.without.is_empty() && self.start.elapsed() < LATE_PATH {
            return Ok(Namespace::Unusable(format!("{} does not show it yet", paths.without.join(", "))));
        }
        let Some(wwid) = paths.wwid else { return Ok(Namespace::Absent) };
        let search = self.search.get_or_insert_with(|| multipath.search(&wwid, single_path(target)));
        let looked = search.look(&paths.usable)?;
        self.wwid = Some(wwid);
        Ok(match looked {
            Found::Disk(number) => Namespace::Usable(number),
            Found::NotYet(reason) => Namespace::Unusable(reason.to_string()),
        })
    }
}

/// A target with one portal can have no second path, so the driver need not say more.
pub(in crate::remote) fn single_path(target: &NvmeTarget) -> SinglePath {
    match target.is_single_path_allowed || target.portals.len() == 1 {
        true => SinglePath::Allowed,
        false => SinglePath::Refused,
    }
}

/// The disk of a namespace, usable or not. `recorded` is the name of its map, which is not known without a path.
pub(in crate::remote) fn number(
    sys: &Path,
    disk: &NvmeDisk,
    recorded: Option<&str>,
) -> Result<Option<DeviceNumber>> {
    let Some(multipath) = multipath(sys) else { return decide::number(sys, disk) };
    let paths = paths(&Tree::read(sys)?, disk);
    match paths.wwid.as_deref().or(recorded) {
        Some(wwid) => multipath.disk(wwid, &paths.all),
        None => Ok(None),
    }
}

/// The disks of the paths to a namespace: one, with native multipath.
pub(in crate::remote) fn path_numbers(sys: &Path, disk: &NvmeDisk) -> Result<Vec<DeviceNumber>> {
    Ok(paths(&Tree::read(sys)?, disk).all)
}

/// Whether anything of a namespace exists: a path, its disk, or its map.
pub(in crate::remote) fn exists(sys: &Path, disk: &NvmeDisk, wwid: &str) -> Result<bool> {
    let has_disk = match number(sys, disk, Some(wwid)) {
        Err(error) if error.kind() == ErrorKind::WrongDevice => true,
        number => number?.is_some(),
    };
    Ok(has_disk || decide::paths(&Tree::read(sys)?, disk).next().is_some())
}

/// Whether a disk has a path that works, so that data that could not be written is not lost yet.
pub(in crate::remote) fn has_usable_path(sys: &Path, disk: &NvmeDisk) -> Result<bool> {
    Ok(!paths(&Tree::read(sys)?, disk).usable.is_empty())
}

/// Takes away the map of a namespace, if it has one. Returns why the last writes are possibly lost.
///
/// # Errors
///
/// Those of [`Multipath::take_away`]; [`Unresponsive`](ErrorKind::Unresponsive) if a path works and
/// the map does not take its last writes: it stays.
pub(in crate::remote) fn take_away(
    sys: &Path,
    disk: &NvmeDisk,
    recorded: Option<&str>,
) -> Result<Option<Error>> {
    let Some(multipath) = multipath(sys) else { return Ok(None) };
    let paths = paths(&Tree::read(sys)?, disk);
    let Some(wwid) = paths.wwid.as_deref().or(recorded) else { return Ok(None) };
    if !paths.usable.is_empty() {
        multipath.flush(wwid).map_err(|error| not_written(&disk.nqn, &error))?;
    }
    multipath.take_away(wwid)
}

/// Takes away the unused maps over namespaces of these controllers, which are disconnected next.
pub(in crate::remote) fn take_away_others(sys: &Path, controllers: &[&str]) -> Result<()> {
    let Some(multipath) = multipath(sys) else { return Ok(()) };
    let tree = Tree::read(sys)?;
    let ending = tree.controllers.iter().filter(|controller| controllers.contains(&&*controller.name));
    let paths = ending.flat_map(|controller| &controller.paths);
    let named = paths.filter_map(|path| Some((path.number?, &*path.ids.wwid)));
    multipath.take_away_unused(&named.collect::<Vec<_>>())
}
