//! The plan for staging a device.

use std::time::Duration;

use crate::device::expected::ExpectedDevice;
use crate::error::Result;
use crate::filesystem::check::CheckLimits;
use crate::filesystem::format::Format;
use crate::filesystem::format::mkfs_options::MkfsOptions;
use crate::filesystem::format::watch::{FormatLimit, FormatStep};
use crate::filesystem::kernel_features::MkfsProfile;
use crate::filesystem::kind::Filesystem;
use crate::mounting::options::MountOptions;
#[cfg(feature = "remote")]
use crate::reservation::Reservation;

/// When an ext4 is checked and repaired (`e2fsck -p`) before it is mounted. XFS and btrfs repair
/// themselves.
///
/// A device that is mounted elsewhere is never checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StageCheck {
    /// If its superblock says that errors were found.
    #[default]
    WhenNeeded,
    /// Each time, which takes long on a large filesystem.
    Always,
    /// Never, except before an ext4 grows: `resize2fs` requires a check.
    Never,
}

/// How a plan's device is encrypted, and its key.
#[cfg(feature = "luks")]
#[derive(Debug, Clone)]
pub(crate) struct Encryption {
    pub(crate) how: crate::Luks,
    pub(crate) key: crate::LuksKey,
}

/// How a device is to be staged.
#[derive(Debug, Clone)]
#[must_use]
pub struct StagePlan {
    pub(crate) filesystem: Filesystem,
    pub(crate) options: MountOptions,
    pub(super) format: Format,
    pub(crate) expected: ExpectedDevice,
    pub(super) check: StageCheck,
    pub(super) check_limits: CheckLimits,
    pub(crate) never_format: bool,
    #[cfg(feature = "luks")]
    pub(crate) encryption: Option<Encryption>,
    #[cfg(feature = "remote")]
    pub(crate) reservation: Option<Reservation>,
}

impl StagePlan {
    /// Stages this filesystem read-write, with its default options.
    pub fn new(filesystem: Filesystem) -> Self {
        Self {
            filesystem,
            options: MountOptions::new(),
            format: Format::new(filesystem),
            expected: ExpectedDevice::new(),
            check: StageCheck::default(),
            check_limits: CheckLimits::default(),
            never_format: false,
            #[cfg(feature = "luks")]
            encryption: None,
            #[cfg(feature = "remote")]
            reservation: None,
        }
    }

    /// Sets the mount options. [`read_only`](MountOptions::read_only) options also forbid formatting and
    /// growing.
    pub fn options(mut self, options: MountOptions) -> Self {
        self.options = options;
        self
    }

    /// Never formats the device, whatever it reads as: for a volume that was staged before, or a copy of
    /// one that was.
    ///
    /// A device that reads as blank is not always a new one: it can be the device of another volume, its
    /// storage can have lost the content, and of a device of more than 128 MiB only a sample is read. Only
    /// the driver knows that the volume is not new. With this option a blank device is refused
    /// ([`Damaged`](crate::ErrorKind::Damaged)) and not written to. The same holds for a blank device that
    /// the plan would encrypt.
    ///
    /// ```
    /// use csi_mount::Filesystem;
    /// use csi_mount::flow::block::StagePlan;
    ///
    /// # let was_staged_before = true;
    /// let plan = StagePlan::new(Filesystem::Ext4);
    /// let plan = if was_staged_before { plan.never_format() } else { plan };
    /// ```
    pub fn never_format(mut self) -> Self {
        self.never_format = true;
        self
    }

    /// Sets the label of a filesystem that is made; see [`Format::label`].
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.format = self.format.label(label);
        self
    }

    /// Adds choices of the layout of a filesystem that is made; see [`MkfsOptions`].
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) that names the choice, if the filesystem does not take it.
    pub fn mkfs_options(mut self, options: MkfsOptions) -> Result<Self> {
        self.format = self.format.mkfs_options(options)?;
        Ok(self)
    }

    /// Frees what the filesystem does not use any more on the device (`discard`; for btrfs `discard=async`, Linux 5.6).
    /// Mount options that say something about it stay.
    pub fn discard(mut self) -> Self {
        let value = match self.filesystem {
            Filesystem::Ext4 | Filesystem::Xfs => None,
            Filesystem::Btrfs => Some("async"),
        };
        self.options = self.options.with_default("discard", "nodiscard", value);
        self
    }

    /// Adds arguments for `mkfs`; see [`Format::arguments`].
    pub fn mkfs_arguments<I>(mut self, arguments: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.format = self.format.arguments(arguments);
        self
    }

    /// Sets the kernel that a filesystem is made for; see [`Format::profile`].
    pub fn mkfs_profile(mut self, profile: MkfsProfile) -> Self {
        self.format = self.format.profile(profile);
        self
    }

    /// Limits how many formats run at the same time; see [`Format::format_limit`].
    pub fn format_limit(mut self, limit: &FormatLimit) -> Self {
        self.format = self.format.format_limit(limit);
        self
    }

    /// Calls the watcher at each step of a format; see [`Format::on_step`].
    pub fn on_format_step(mut self, watcher: impl Fn(FormatStep) + Send + Sync + 'static) -> Self {
        self.format = self.format.on_step(watcher);
        self
    }

    /// Sets which disk it must be, and how long to wait for it ([`ExpectedDevice::wait_limit`]). By default
    /// any device at the path is accepted.
    pub fn expect(mut self, expected: ExpectedDevice) -> Self {
        self.expected = expected.or_wait_limit(self.expected.limit());
        self
    }

    /// Sets how long to wait for the device to appear: the same limit as [`ExpectedDevice::wait_limit`].
    pub fn wait_for_device(mut self, limit: Duration) -> Self {
        self.expected = self.expected.wait_limit(limit);
        self
    }

    /// Sets when an ext4 is checked before it is mounted, and the limits of a check.
    ///
    /// The limits are a [`Duration`], or [`CheckLimits`] with a memory limit too. They also hold for the
    /// check before growing.
    pub fn check(mut self, check: StageCheck, limits: impl Into<CheckLimits>) -> Self {
        (self.check, self.check_limits) = (check, limits.into());
        self
    }

    /// Encrypts the volume: the staged device is the one inside an encrypted device, opened with this key.
    ///
    /// A blank device is encrypted with the key first.
    ///
    /// ```
    /// use csi_mount::flow::block::StagePlan;
    /// use csi_mount::{Filesystem, Luks, LuksKey};
    ///
    /// let plan = StagePlan::new(Filesystem::Ext4).encrypted(Luks::new(), LuksKey::new("correct horse battery staple")?);
    /// # Ok::<(), csi_mount::Error>(())
    /// ```
    #[cfg(feature = "luks")]
    pub fn encrypted(mut self, how: crate::Luks, key: crate::LuksKey) -> Self {
        self.encryption = Some(Encryption { how, key });
        self
    }

    /// Reserves the device for this node before anything is written to it: see [`reservation`](crate::reservation). A
    /// read-only stage reserves nothing.
    ///
    /// A stage that finds the filesystem mounted checks the reservation. If another node has it, the filesystem is shut
    /// down, and the stage fails with [`Reserved`](crate::ErrorKind::Reserved). The reservation stays after the unstage.
    ///
    /// ```
    /// use csi_mount::Filesystem;
    /// use csi_mount::flow::block::StagePlan;
    /// use csi_mount::reservation::{Fencing, Reservation, ReservationKey};
    ///
    /// let key = ReservationKey::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301", 7);
    /// let plan = StagePlan::new(Filesystem::Xfs).reserve(Reservation::new(key, Fencing::Required));
    /// ```
    #[cfg(feature = "remote")]
    pub fn reserve(mut self, reservation: Reservation) -> Self {
        self.reservation = Some(reservation);
        self
    }

    /// Whether the plan allows writes to the device.
    pub(crate) fn writes(&self) -> bool {
        !self.options.is_read_only()
    }
}
