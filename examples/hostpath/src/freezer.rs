//! Filesystems that are frozen while they are copied. Each is frozen once for all concurrent copies.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi_core::mount::{DeviceNumber, ErrorKind, Frozen};
use csi_core::{Error, Reason, Result};

/// The filesystems that this process holds frozen, by device. The kernel refuses to freeze a frozen
/// filesystem, but several snapshots or clones of a volume can be cut at the same time.
#[derive(Debug, Default)]
pub(crate) struct Freezer(Mutex<HashMap<DeviceNumber, Arc<Place>>>);

/// One filesystem. The lock is held while it is frozen or thawed, so no holder joins a freeze that is ending.
#[derive(Debug, Default)]
struct Place(Mutex<Holders>);

#[derive(Debug, Default)]
struct Holders {
    count: usize,
    /// Set while `count` is not 0.
    frozen: Option<Frozen>,
}

/// A holder that needs the filesystem frozen. Dropping the last one thaws it, also during a panic. After a
/// kill, the next start thaws it.
#[derive(Debug)]
#[must_use = "dropping it thaws the filesystem"]
pub(crate) struct Hold(Arc<Place>);

impl Freezer {
    /// Freezes the filesystem of a device, mounted at `mounted`, or joins the existing holders. On return,
    /// all earlier writes are on the device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while another program has the filesystem frozen, and the errors of
    /// [`Frozen::at`].
    pub(crate) fn hold(&self, device: DeviceNumber, mounted: &Path) -> Result<Hold> {
        let place = self.place(device);
        let mut holders = place.lock();
        if holders.frozen.is_none() {
            holders.frozen = Some(Frozen::at(mounted).map_err(|error| match error.kind() {
                ErrorKind::Busy => {
                    Error::Unavailable(Reason::because(format!("another program froze it: {error}"), error))
                }
                _ => error.into(),
            })?);
        }
        holders.count += 1;
        drop(holders);
        Ok(Hold(place))
    }

    fn place(&self, device: DeviceNumber) -> Arc<Place> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An entry without another reference is not frozen.
        places.retain(|_, place| Arc::strong_count(place) > 1);
        Arc::clone(places.entry(device).or_default())
    }
}

impl Place {
    /// Ignores poisoning: the guarded value is valid after every statement.
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
