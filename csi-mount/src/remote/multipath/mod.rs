//! dm-multipath: one disk over several paths, where the transport has none of its own.
//!
//! Every transport uses this in the same way. It says which disks of the kernel are live paths to a volume, and
//! the volume's world-wide name as the kernel writes it (`wwid` in sysfs).
//!
//! | step | call |
//! |---|---|
//! | attach | [`Multipath::search`], then [`Search::look`] until it returns a disk |
//! | the disk of an attachment | [`Multipath::disk`] |
//! | grow, after each path has the new size | [`Multipath::resize`] |
//! | detach, before any path is deleted | [`Multipath::remove_map`], then [`Multipath::forget`] |
//! | disconnect | [`Multipath::remove_unused_maps`] |
//!
//! multipathd makes the maps and looks after them, and this code does not compete with it: a table that another
//! process loads is replaced at the next event of a path, with the size that multipathd remembers. So paths
//! and sizes are announced to it over its socket, which reaches the node's daemon from a container with the
//! node's network. Only the end of a map is done by ioctls, because it must also succeed without a daemon.
//!
//! | file | has |
//! |---|---|
//! | `decide.rs` | which map belongs to a disk, and which paths it lacks |
//! | `daemon.rs` | multipathd's socket |
//! | `remove_map.rs` | the end of a map |

mod daemon;
mod decide;
mod remove_map;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::daemon::Daemon;
use self::decide::State;
use crate::device::sysfs::Sysfs;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::DeviceNumber;

const WAIT: &str = "wait for the multipath map of";
const RESIZE: &str = "resize the multipath map of";
/// How long udev and multipathd have for a new path before multipathd is asked to add it, and the interval
/// after that.
const ADD_INTERVAL: Duration = Duration::from_secs(1);
const RESIZE_LIMIT: Duration = Duration::from_secs(30);
const RESIZE_INTERVAL: Duration = Duration::from_millis(200);

/// The multipath maps of this node.
#[derive(Debug, Clone)]
pub(in crate::remote) struct Multipath {
    sys: PathBuf,
    daemon: Daemon,
}

/// Whether a disk with one path and no map can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::remote) enum SinglePath {
    Allowed,
    Refused,
}

#[derive(Debug)]
pub(in crate::remote) enum Found {
    /// The map, or the single path where that is allowed.
    Disk(DeviceNumber),
    /// Nothing that can be used yet, and why.
    NotYet(Error),
}

/// The search for the map of one disk.
#[derive(Debug)]
pub(in crate::remote) struct Search<'m> {
    multipath: &'m Multipath,
    wwid: String,
    single: SinglePath,
    /// When multipathd is asked next.
    next: Instant,
    /// Whether multipathd was found running.
    is_running: bool,
    /// What it answered last.
    answer: String,
}

impl Multipath {
    /// The maps below this sysfs.
    pub(in crate::remote) fn new(sys: &Path) -> Self {
        Self { sys: sys.to_owned(), daemon: Daemon::system() }
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::below(&self.sys)
    }

    /// Whether multipathd runs on this node, and answers.
    pub(in crate::remote) fn is_daemon_running(&self) -> bool {
        self.daemon.is_running()
    }

    /// Begins to wait for the map of a disk.
    pub(in crate::remote) fn search(&self, wwid: &str, single: SinglePath) -> Search<'_> {
        Search {
            multipath: self,
            wwid: wwid.to_owned(),
            single,
            next: Instant::now() + ADD_INTERVAL,
            is_running: false,
            answer: String::new(),
        }
    }

    /// The disk that these paths lead to: its map, also one without a live path, or the only path. None if
    /// there are several paths and no map.
    ///
    /// # Errors
    ///
    /// [`WrongDevice`](ErrorKind::WrongDevice) if a path of the map leads to another disk now.
    pub(in crate::remote) fn disk(&self, wwid: &str, paths: &[DeviceNumber]) -> Result<Option<DeviceNumber>> {
        if let Some(map) = decide::map(&self.sysfs(), wwid)? {
            decide::check_paths(&map)?;
            return Ok(Some(map.number));
        }
        Ok(match paths {
            [path] => Some(*path),
            _ => None,
        })
    }

    /// Makes the map of a disk as large as its paths, which all have this size in bytes already. A disk
    /// without a map needs nothing.
    ///
    /// # Errors
    ///
    /// [`Unresponsive`](ErrorKind::Unresponsive) if the map does not get the size within 30 seconds: multipathd
    /// does not run, or refuses. [`WrongDevice`](ErrorKind::WrongDevice) as for [`disk`](Self::disk).
    pub(in crate::remote) fn resize(&self, wwid: &str, bytes: u64) -> Result<()> {
        let end = Instant::now() + RESIZE_LIMIT;
        loop {
            let Some(map) = decide::map(&self.sysfs(), wwid)? else { return Ok(()) };
            decide::check_paths(&map)?;
            if map.size == bytes {
                return Ok(());
            }
            let answer = match self.daemon.command(&format!("resize map {}", map.device)) {
                Ok(answer) => answer,
                Err(error) => {
                    return Err(error.hint("start multipathd on the node: only it can resize its maps"));
                }
            };
            if Instant::now() > end {
                let size = map.size;
                let reason =
                    format!("it has {size} bytes, its paths have {bytes}; multipathd answers {answer:?}");
                return Err(Error::new(ErrorKind::Unresponsive, RESIZE, reason).at(wwid));
            }
            std::thread::sleep(RESIZE_INTERVAL);
        }
    }

    /// Lets multipathd close these paths, which are deleted next. Without a daemon there is nothing to close.
    pub(in crate::remote) fn forget(&self, paths: &[DeviceNumber]) {
        let sysfs = self.sysfs();
        for name in paths.iter().filter_map(|path| sysfs.name(*path)) {
            if let Err(error) = self.daemon.command(&format!("del path {name}")) {
                tracing::debug!("multipathd was not informed: {error}");
                return;
            }
        }
    }
}

impl Search<'_> {
    /// Looks once, with the paths that are live now. If the map lacks paths for a second, multipathd is asked
    /// to add them: it can have missed their events, and a map that was removed does not come back by an event.
    ///
    /// # Errors
    ///
    /// What waiting can't change: [`WrongDevice`](ErrorKind::WrongDevice) if a path leads to another disk or
    /// belongs to the map of another; [`Unsupported`](ErrorKind::Unsupported) if multipathd does not run.
    pub(in crate::remote) fn look(&mut self, live: &[DeviceNumber]) -> Result<Found> {
        let sysfs = self.multipath.sysfs();
        let (mut map, mut missing) = match decide::state(&sysfs, &self.wwid, live)? {
            State::Whole(number) => return Ok(Found::Disk(number)),
            State::Incomplete { map, missing } => (map, missing),
        };
        let single = match live {
            [path] if map.is_none() && self.single == SinglePath::Allowed => Some(Found::Disk(*path)),
            _ => None,
        };
        self.is_running = self.is_running || self.multipath.is_daemon_running();
        match single {
            Some(disk) if !self.is_running => return Ok(disk),
            _ if !self.is_running && !live.is_empty() => return Err(self.no_daemon(live.len())),
            _ => {}
        }
        if Instant::now() >= self.next && !live.is_empty() {
            self.next = Instant::now() + ADD_INTERVAL;
            self.add(&missing, map.is_none());
            match decide::state(&sysfs, &self.wwid, live)? {
                State::Whole(number) => return Ok(Found::Disk(number)),
                // multipathd makes no map of the path, and not only because it waits for udev.
                State::Incomplete { map: None, .. } if single.is_some() && self.has_decided(&missing) => {
                    return single.ok_or_else(|| self.no_daemon(live.len()));
                }
                State::Incomplete { map: now, missing: left } => (map, missing) = (now, left),
            }
        }
        let reason = match (map, &missing[..]) {
            _ if live.is_empty() => "no path can be used".to_owned(),
            (None, paths) => format!("multipathd made no map of its paths {}", paths.join(", ")),
            (Some(map), []) => format!("the map {map} is not ready"),
            (Some(map), paths) => format!("the map {map} lacks its paths {}", paths.join(", ")),
        };
        let error = Error::new(ErrorKind::Unresponsive, WAIT, reason).at(&self.wwid);
        Ok(Found::NotYet(match &*self.answer {
            "" => error,
            answer => error.add_reason(format_args!("multipathd answers {answer:?}")),
        }))
    }

    /// Asks multipathd to add the paths, and to make the map also where its settings would wait for a second
    /// path or for an entry of `/etc/multipath/wwids`.
    fn add(&mut self, missing: &[String], is_map_missing: bool) {
        // multipathd keeps the size that a path had at first, also 0. It reads it again if it has forgotten the path.
        let is_refused = self.answer == "fail";
        let asked = missing.iter().try_for_each(|path| {
            if is_refused {
                self.ask(&format!("del path {path}"))?;
            }
            self.ask(&format!("add path {path}"))
        });
        let asked = match missing.first() {
            Some(path) if is_map_missing && self.single == SinglePath::Refused => {
                asked.and_then(|()| self.add_map(path))
            }
            _ => asked,
        };
        if let Err(error) = asked {
            self.answer = error.to_string();
            self.is_running = false;
        }
    }

    /// multipathd knows a map by its own notation of the disk's name.
    fn add_map(&mut self, path: &str) -> Result<()> {
        match self.name_of(path)? {
            Some(wwid) if !wwid.is_empty() => self.ask(&format!("add map {wwid}")),
            _ => Ok(()),
        }
    }

    /// Whether multipathd ignores the path or knows its disk. A path without a name waits for udev, and gets its
    /// map later: it must not be in use by then.
    fn has_decided(&self, missing: &[String]) -> bool {
        let Some(path) = missing.first() else { return true };
        !self.name_of(path).is_ok_and(|wwid| wwid.is_some_and(|wwid| wwid.is_empty()))
    }

    /// multipathd's name for the disk of a path. It is empty until udev has described the path. None if
    /// multipathd ignores the path.
    fn name_of(&self, path: &str) -> Result<Option<String>> {
        let listed = self.multipath.daemon.command("show paths raw format \"%d %w\"")?;
        let mut lines = listed.lines().map(str::trim).map(|line| line.split_once(' ').unwrap_or((line, "")));
        Ok(lines.find(|(name, _)| *name == path).map(|(_, wwid)| wwid.trim().to_owned()))
    }

    fn ask(&mut self, command: &str) -> Result<()> {
        self.answer = self.multipath.daemon.command(command)?;
        Ok(())
    }

    fn no_daemon(&self, paths: usize) -> Error {
        let reason = format!("multipathd does not run, and the disk has paths without a map: {paths}");
        let hint = match self.single {
            SinglePath::Refused if paths == 1 => {
                "start multipathd on the node, or allow a single path; a container needs the node's network"
            }
            _ => "start multipathd on the node; a container needs the node's network",
        };
        Error::new(ErrorKind::Unsupported, WAIT, reason).at(&self.wwid).hint(hint)
    }
}
