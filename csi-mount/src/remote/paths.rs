//! The paths to a disk, and the one disk over them: where the kernel makes a disk of each path, dm-multipath makes
//! one of several.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::multipath::{Found, Multipath, Search, SinglePath};
use crate::device::block_device::BlockDevice;
use crate::error::{ErrorKind, Result};
use crate::sys::ids::DeviceNumber;

/// How long a live connection has to show a disk that another one shows already.
const LATE_PATH: Duration = Duration::from_secs(5);

/// Whether and how a disk can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DiskState {
    /// No connection shows it.
    Absent,
    /// A unit with its number has other names; this is its description.
    Other(String),
    /// It has no path that can be used now, with the reason.
    Unusable(String),
    /// A path can be used.
    Usable(DeviceNumber),
    /// The kernel made several disks of it, one for each connection.
    SeveralDisks(Vec<String>),
}

#[derive(Debug)]
pub(super) struct DiskPath {
    /// The kernel's name for the disk of the path; none if it is no disk yet.
    pub(super) disk: Option<String>,
    pub(super) number: Option<DeviceNumber>,
    /// The kernel's name for what the path leads to; none if the target gives it no such name.
    pub(super) wwid: Option<String>,
    pub(super) is_usable: bool,
    /// For a message.
    pub(super) state: String,
}

/// The paths to a disk, read at one time.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) list: Vec<DiskPath>,
    /// Whether there is a path, as far as a disk that the kernel removed has none.
    pub(super) exist: bool,
    /// The live connections that do not show the disk.
    pub(super) without: Vec<String>,
}

impl Paths {
    pub(super) fn wwid(&self) -> Option<&str> {
        self.list.iter().find_map(|path| path.wwid.as_deref())
    }

    /// The disks of the paths.
    pub(super) fn all(&self) -> Vec<DeviceNumber> {
        self.list.iter().filter_map(|path| path.number).collect()
    }

    /// Those that can be used now.
    pub(super) fn usable(&self) -> Vec<DeviceNumber> {
        self.list.iter().filter(|path| path.is_usable).filter_map(|path| path.number).collect()
    }

    pub(super) fn state(&self) -> DiskState {
        let disks: BTreeSet<&str> = self.list.iter().filter_map(|path| path.disk.as_deref()).collect();
        if self.list.is_empty() {
            return DiskState::Absent;
        }
        if disks.len() > 1 {
            return DiskState::SeveralDisks(disks.into_iter().map(str::to_owned).collect());
        }
        match self.usable().first() {
            Some(number) => DiskState::Usable(*number),
            None => {
                let states: Vec<&str> = self.list.iter().map(|path| &*path.state).collect();
                DiskState::Unusable(states.join("; "))
            }
        }
    }
}

/// Finds the disk over one path or several.
pub(super) struct Finder<'m> {
    multipath: Option<&'m Multipath>,
    single: SinglePath,
    wants_several: bool,
    search: Option<Search<'m>>,
    /// The kernel's name for the disk, as soon as it can be used.
    pub(super) wwid: Option<String>,
    start: Instant,
}

impl<'m> Finder<'m> {
    /// Without dm-multipath the kernel makes one disk of all paths.
    pub(super) fn new(multipath: Option<&'m Multipath>, single: SinglePath) -> Self {
        let wants_several = single == SinglePath::Refused;
        Self { multipath, single, wants_several, search: None, wwid: None, start: Instant::now() }
    }

    /// Waits for further paths also where one is enough: the kernel brings them by itself.
    pub(super) fn for_several_paths(self) -> Self {
        Self { wants_several: true, ..self }
    }

    /// Whether and how the disk with these paths can be used. `found` is its state without a map.
    ///
    /// # Errors
    ///
    /// Those of [`Search::look`].
    pub(super) fn look(&mut self, found: DiskState, paths: &Paths) -> Result<DiskState> {
        match &found {
            DiskState::Usable(_) => {}
            DiskState::SeveralDisks(_) if self.wants_several => {}
            _ => return Ok(found),
        }
        let wwid = paths.wwid().map(str::to_owned);
        let Some(multipath) = self.multipath else {
            self.wwid = wwid;
            return Ok(found);
        };
        let is_late = !paths.without.is_empty() && self.start.elapsed() < LATE_PATH;
        if self.wants_several && is_late {
            return Ok(DiskState::Unusable(format!("{} does not show it yet", paths.without.join(", "))));
        }
        // Without a name no map can be found.
        let Some(wwid) = wwid else { return Ok(found) };
        let search = self.search.get_or_insert_with(|| multipath.search(&wwid, self.single));
        let looked = search.look(&paths.usable())?;
        self.wwid = Some(wwid);
        Ok(match looked {
            Found::Disk(number) => DiskState::Usable(number),
            Found::NotYet(reason) => DiskState::Unusable(reason.to_string()),
        })
    }
}

/// Opens a disk, and looks again whether the number is its own. Returns `None` if it has no size yet, or is another
/// disk now.
pub(super) fn open(
    number: DeviceNumber,
    is_same: impl FnOnce() -> Result<bool>,
) -> Result<Option<BlockDevice>> {
    let device = match BlockDevice::from_number(number) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => {
            return Ok(None);
        }
        device => device?,
    };
    let is_same = is_same()? && device.size()? > 0;
    Ok(is_same.then_some(device))
}

/// The size in bytes that all live paths to a disk have.
pub(super) fn common_size(sizes: impl Iterator<Item = u64>) -> std::result::Result<u64, String> {
    let sizes: BTreeSet<u64> = sizes.collect();
    match sizes.iter().collect::<Vec<_>>()[..] {
        [size] if *size > 0 => Ok(*size),
        [] => Err("no path is live".to_owned()),
        _ => Err(format!("its paths and its disk have different sizes in bytes, or none: {sizes:?}")),
    }
}
