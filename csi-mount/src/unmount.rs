//! Unmounting, to the last layer.

use crate::{Error, ErrorKind, Result, Target};

/// What an unmount found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// Nothing was mounted there.
    NotMounted,
    /// All that was mounted there is unmounted.
    Unmounted {
        /// How many mounts were on top of each other.
        layers: u32,
    },
    /// Taken out of sight, but still in use by somebody: the filesystem and its device are not free.
    Detached,
}

/// When a mount that can't be unmounted may be taken out of sight instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Detach {
    /// Never: a busy mount is an error.
    #[default]
    Never,
    /// When its filesystem is proven not to answer.
    IfUnresponsive,
    /// When it is busy, for whatever reason.
    IfBusy,
}

/// An unmount to be done.
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "nothing is unmounted before `at`"]
pub struct Unmount {
    detach: Detach,
}

impl Unmount {
    /// An unmount that never detaches.
    pub fn new() -> Self {
        Self::default()
    }

    /// When to detach instead.
    pub fn detach(mut self, detach: Detach) -> Self {
        self.detach = detach;
        self
    }

    /// Unmounts all that is mounted at the target.
    ///
    /// # Errors
    /// To come.
    pub fn at(self, target: &Target) -> Result<Unmounted> {
        let _ = self.detach;
        Err(Error::new(ErrorKind::Unsupported, "unmount", "not there yet").at(target.path()))
    }
}

/// Unmounts all that is mounted at the target; short for [`Unmount::new`]`().at(target)`.
///
/// # Errors
/// As [`Unmount::at`].
pub fn unmount(target: &Target) -> Result<Unmounted> {
    Unmount::new().at(target)
}
