//! The end of a map: nothing uses it, everything is written, and its paths are free.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use super::{Multipath, decide};
use crate::device::block_device::BlockDevice;
use crate::device::mapping;
use crate::device::sysfs::{Mapped, MultipathMap};
use crate::device::users::{self, DeviceUser, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::remote::ask::{ask, checked, flush, number_of};
use crate::sys::device_call::DeviceCall;
use crate::sys::device_mapper::Change;
use crate::sys::ids::DeviceNumber;

const REMOVE: &str = "remove the multipath map";
/// For one change. Removing waits until path groups that are being activated are ready.
const CHANGE_LIMIT: Duration = Duration::from_secs(20);
/// How long a map can stay open: udev opens each device that changes, and reads and writes that fail end.
const REMOVE_LIMIT: Duration = Duration::from_secs(15);
/// How long a map without a path that works can stay open before its table is wiped.
const WIPE_AFTER: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Multipath {
    /// Flushes the map of a disk, if it has one. A map with a path that leads to another disk is not written to.
    ///
    /// # Errors
    ///
    /// Those of the flush.
    pub(in crate::remote) fn flush(&self, wwid: &str) -> Result<()> {
        match self.disk(wwid, &[]).ok().flatten().map(BlockDevice::from_number) {
            Some(Ok(device)) => flush(&device),
            _ => Ok(()),
        }
    }

    /// Removes the map of a disk: checks that nothing uses it, flushes it, lets reads and writes without a path
    /// fail, and removes it. Its paths stay. No map is a success. Returns why the last writes are possibly lost.
    ///
    /// With dead paths it ends within about a minute and a half, and reports that writes are possibly lost.
    ///
    /// # Errors
    ///
    /// [`Busy`](ErrorKind::Busy) if the map is in use: it is as before. [`Unresponsive`](ErrorKind::Unresponsive)
    /// if the device mapper does not answer; the paths must not be deleted then, and a repeated call continues.
    pub(in crate::remote) fn remove_map(&self, wwid: &str) -> Result<Option<Error>> {
        let Some((map, device)) = self.open(wwid)? else { return Ok(None) };
        let partitions = self.partitions(&map)?;
        refuse_users(&device, &partitions)?;
        for partition in &partitions {
            self.remove_partition(partition)?;
        }
        // Nothing is written to a disk that is another volume's now.
        let not_flushed = decide::check_paths(&map).and_then(|()| flush(&device)).err();
        let is_wrong = not_flushed.as_ref().is_some_and(|error| error.kind() == ErrorKind::WrongDevice);
        drop(device);
        // multipathd would turn queueing on again at the next event of a path.
        if let Err(error) = self.daemon.command(&format!("disablequeueing map {}", map.device)) {
            tracing::debug!("multipathd was not informed: {error}");
        }
        if let Err(error) = change(&map.uuid, Change::FailIfNoPath) {
            tracing::debug!("{}: {error}", map.device);
        }
        if is_wrong {
            change(&map.uuid, wipe(&map))?;
        }
        let removed = remove(&map, not_flushed.is_some() && !is_wrong);
        if removed.is_err() && not_flushed.is_none() {
            let _ = self.daemon.command(&format!("restorequeueing map {}", map.device));
        }
        removed.map(|()| not_flushed)
    }

    /// The map of a disk, open.
    fn open(&self, wwid: &str) -> Result<Option<(MultipathMap, BlockDevice)>> {
        let start = Instant::now();
        loop {
            let Some(map) = decide::map(&self.sysfs(), wwid)? else { return Ok(None) };
            match BlockDevice::from_number(map.number) {
                // multipathd removes a map whose paths are gone, as soon as nobody has it open.
                Err(error) if error.kind() == ErrorKind::NotFound && start.elapsed() < REMOVE_LIMIT => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                device => return Ok(Some((map, device?))),
            }
        }
    }

    /// Takes away the unused maps over paths that are deleted next, each with the name of its disk: multipathd
    /// makes a map of each disk that it sees, attached or not. A map that is used or has other paths stays, and
    /// keeps the connection.
    ///
    /// # Errors
    ///
    /// Those of [`remove_map`](Self::remove_map), except that the map is in use.
    pub(in crate::remote) fn remove_unused_maps(
        &self,
        ending: &[(DeviceNumber, Option<String>)],
    ) -> Result<()> {
        let named = ending.iter().filter_map(|(number, wwid)| Some((*number, wwid.as_deref()?)));
        let (paths, names): (Vec<DeviceNumber>, BTreeSet<&str>) = named.unzip();
        for wwid in names {
            let map = decide::map(&self.sysfs(), wwid)?;
            if !map.is_some_and(|map| map.paths.iter().all(|(path, _)| paths.contains(path))) {
                continue;
            }
            match self.remove_map(wwid) {
                Err(error) if error.kind() != ErrorKind::Busy => return Err(error),
                _ => {}
            }
        }
        self.forget(&paths);
        Ok(())
    }

    /// The maps of partitions that `kpartx` made over the map, because the volume's content has a table.
    fn partitions(&self, map: &MultipathMap) -> Result<Vec<Mapped>> {
        let is_partition = |mapped: &Mapped| {
            let number = mapped.uuid.strip_prefix("part").and_then(|rest| rest.strip_suffix(&*map.uuid));
            let number = number.and_then(|rest| rest.strip_suffix('-'));
            number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
        };
        Ok(self.sysfs().all_mapped()?.into_iter().filter(is_partition).collect())
    }

    fn remove_partition(&self, partition: &Mapped) -> Result<()> {
        let device = BlockDevice::from_number(partition.number)?;
        users::refuse(&device, REMOVE, Tolerated::None)?;
        drop(device);
        removed_within(&partition.uuid, &partition.name, |_| Ok(()))
    }
}

/// Refuses a map with users other than its partitions, and partitions with users.
fn refuse_users(device: &BlockDevice, partitions: &[Mapped]) -> Result<()> {
    let mut found = device.users()?;
    let names: Vec<String> =
        partitions.iter().map(|partition| format!("dm-{}", partition.number.minor)).collect();
    found.retain(|user| !matches!(user, DeviceUser::Holder(name) if names.contains(name)));
    if !found.is_empty() {
        return Err(users::in_use_error(REMOVE, "it", &found).at(device.path()));
    }
    Ok(())
}

fn remove(map: &MultipathMap, is_dead: bool) -> Result<()> {
    let mut is_wiped = false;
    removed_within(&map.uuid, &map.device, |waited| {
        if is_dead && !is_wiped && waited > WIPE_AFTER {
            is_wiped = true;
            change(&map.uuid, wipe(map))?;
            let device = &map.device;
            tracing::warn!("the map {device} is still open, and its table was replaced: it has no paths");
        }
        Ok(())
    })
    .map_err(|error| match error.kind() {
        ErrorKind::Busy => {
            let openers = users::open_in(map.number);
            if openers.is_empty() {
                return error;
            }
            users::in_use_error(REMOVE, "it", &openers).at(format!("/dev/{}", map.device))
        }
        _ => error,
    })
}

/// Removes a mapping as soon as nobody has it open.
fn removed_within(uuid: &str, name: &str, mut meanwhile: impl FnMut(Duration) -> Result<()>) -> Result<()> {
    let start = Instant::now();
    loop {
        match change(uuid, Change::Remove) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < REMOVE_LIMIT => {}
            Err(error) => return Err(error.at(format!("/dev/{name}"))),
            Ok(()) => return Ok(()),
        }
        meanwhile(start.elapsed())?;
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn wipe(map: &MultipathMap) -> Change {
    Change::Wipe { sectors: map.size / 512 }
}

/// Makes a change. A mapping that does not exist is a success.
fn change(uuid: &str, change: Change) -> Result<()> {
    let control = mapping::control()?;
    let what = PathBuf::from(format!("/dev/mapper/control ({uuid})"));
    let call = DeviceCall::ChangeMapping(control.as_fd(), uuid, change);
    let answer = ask(operation(change), Path::new(&what), call, CHANGE_LIMIT)?;
    match number_of(&answer) {
        libc::ENXIO => Ok(()),
        _ => checked(operation(change), &what, &answer),
    }
}

fn operation(change: Change) -> &'static str {
    match change {
        Change::Remove => REMOVE,
        Change::FailIfNoPath => "turn off queueing of the multipath map",
        Change::Wipe { .. } => "replace the table of the multipath map",
    }
}
