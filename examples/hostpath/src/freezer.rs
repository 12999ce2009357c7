//! Filesystems that take no writes while they are copied: each is frozen once, for all copies of it at a time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi_core::mount::{DeviceNumber, ErrorKind, Frozen};
use csi_core::{Error, Result};

/// The filesystems that this process holds frozen, by their devices. The kernel freezes one once and no more, and several
/// snapshots or clones of a volume may be cut at a time.
#[derive(Debug, Default)]
pub(crate) struct Freezer(Mutex<HashMap<DeviceNumber, Arc<Place>>>);

/// A filesystem. Whoever freezes it, or thaws it, has the lock meanwhile; so nobody joins a freeze that is ending.
#[derive(Debug, Default)]
struct Place(Mutex<Holders>);

#[derive(Debug, Default)]
struct Holders {
    count: usize,
    /// As long as there is one.
    frozen: Option<Frozen>,
}

/// One that needs the filesystem frozen. The last of them thaws it, also when it panics; after a kill a start does.
#[derive(Debug)]
#[must_use = "dropping it thaws the filesystem"]
pub(crate) struct Hold(Arc<Place>);

impl Freezer {
    /// Freezes the filesystem of a device, which is mounted there, or joins those who have. Either way what was written
    /// before is on the device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while another program has it frozen, and those of [`Frozen::at`].
    pub(crate) fn hold(&self, device: DeviceNumber, mounted: &Path) -> Result<Hold> {
        let place = self.place(device);
        let mut holders = place.lock();
        if holders.frozen.is_none() {
            holders.frozen = Some(Frozen::at(mounted).map_err(|error| match error.kind() {
                ErrorKind::Busy => Error::Unavailable(format!("another program has it frozen: {error}")),
                _ => error.into(),
            })?);
        }
        holders.count += 1;
        drop(holders);
        Ok(Hold(place))
    }

    fn place(&self, device: DeviceNumber) -> Arc<Place> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody else has are not frozen.
        places.retain(|_, place| Arc::strong_count(place) > 1);
        Arc::clone(places.entry(device).or_default())
    }
}

impl Place {
    /// What it guards is right after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Holders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holders = self.0.lock();
        holders.count -= 1;
        if holders.count == 0 {
            holders.frozen = None;
        }
    }
}
