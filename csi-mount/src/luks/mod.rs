//! Encrypted devices: LUKS through `cryptsetup`, with the key in a pipe.
//!
//! Everything here needs the key. [`mapping`](crate::device::mapping) finds and closes mappings without it.

mod command;
mod format;
mod key;
mod open;
mod untouched;

use std::time::Duration;

use crate::filesystem::tool::Bounds;
use crate::sys::memory;

pub use self::key::LuksKey;
pub(crate) use self::open::{OpenRequest, OpenedDevice, device_for, grow};

/// How long one run of `cryptsetup` can take by default: 5 minutes.
pub(crate) const LUKS_TIME_LIMIT: Duration = Duration::from_secs(300);

pub(crate) use crate::device::mapping::LUKS_HEADER as HEADER;

/// How a device is encrypted and opened.
///
/// A new device gets LUKS version 2 with `cryptsetup`'s default cipher (AES-XTS, 512 bits); its headers
/// take 16 MiB. A device that is already encrypted keeps its format, also version 1, and is only opened
/// with these settings.
///
/// On the node this needs `cryptsetup` 2.1 or later ([`MissingTool`](crate::ErrorKind::MissingTool) without
/// it), a writable `/run` for its locks, and the kernel modules `dm_mod` and `dm_crypt`. A container also
/// needs the host's `/dev`. udev is neither needed nor waited for.
///
/// ```no_run
/// use csi_mount::flow::block::StagePlan;
/// use csi_mount::{Filesystem, Luks, LuksKey, LuksPbkdf};
///
/// let key = LuksKey::new(std::env::var("KEY").unwrap_or_default())?;
/// let luks = Luks::new().pbkdf(LuksPbkdf::Argon2id { memory: 32 << 20, iterations: 4 });
/// let plan = StagePlan::new(Filesystem::Ext4).encrypted(luks, key);
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Luks {
    pbkdf: LuksPbkdf,
    sector_size: Option<u32>,
    discards: LuksDiscards,
    time: Option<Duration>,
    memory: Option<u64>,
    never_format: bool,
}

/// The function that makes a key slow to guess, at the cost of each opening. It is set when a device is
/// formatted.
///
/// The cost is fixed and not measured on the node. A busy or throttled node would choose a lower cost, and
/// a node with much memory would choose one that a container elsewhere can't open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LuksPbkdf {
    /// Argon2id, on one thread.
    Argon2id {
        /// In bytes, needed by the format and each opening: at least 32 KiB, at most 4 GiB.
        memory: u64,
        /// Number of passes over the memory: 4 or more.
        iterations: u32,
    },
    /// PBKDF2 with SHA-256, which needs no memory: for keys of random bytes, which can't be guessed anyway.
    Pbkdf2 {
        /// 1000 or more.
        iterations: u32,
    },
}

impl Default for LuksPbkdf {
    /// Argon2id with 64 MiB and 4 iterations: some tenths of a second, and a container of 128 MiB can open
    /// it.
    fn default() -> Self {
        Self::Argon2id { memory: 64 << 20, iterations: 4 }
    }
}

/// What happens to discards (`fstrim`, the mount option `discard`) inside an encrypted device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LuksDiscards {
    /// They are dropped: someone with access to the device can't see which blocks are in use, and space
    /// that is freed inside is not freed beneath.
    #[default]
    Dropped,
    /// They are passed to the device, which then reads as zeros there: thin storage gets its space back,
    /// and someone with access to the device sees which parts of it are in use.
    Passed,
}

impl Luks {
    /// How much of a new device its headers take. The rest is the volume.
    pub const HEADER_BYTES: u64 = HEADER;

    /// This crate's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the function that makes the key of a new device slow to guess.
    pub fn pbkdf(mut self, pbkdf: LuksPbkdf) -> Self {
        self.pbkdf = pbkdf;
        self
    }

    /// Sets the unit of encryption of a new device in bytes: 512, 1024, 2048 or 4096.
    ///
    /// By default `cryptsetup` chooses one for the device. The device's size must always be a multiple of
    /// it, also after it grows.
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = Some(bytes);
        self
    }

    /// Sets what happens to discards, from the next opening on.
    pub fn discards(mut self, discards: LuksDiscards) -> Self {
        self.discards = discards;
        self
    }

    /// Sets how long one run of `cryptsetup` can take before it is killed. The default is
    /// five minutes.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time = Some(limit);
        self
    }

    /// Sets how many bytes of memory `cryptsetup` can use before it is killed.
    ///
    /// The default is half of what this process can have. A device that was formatted elsewhere can need 1
    /// GiB to be opened.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Never encrypts a blank device when it is staged, and never formats the device inside.
    ///
    /// Use it for a volume that was staged before, or a copy of one. For a filesystem,
    /// [`StagePlan::never_format`](crate::flow::block::StagePlan::never_format) is enough.
    pub fn never_format(mut self) -> Self {
        self.never_format = true;
        self
    }

    fn bounds(&self) -> Bounds {
        let memory = self.memory.unwrap_or_else(memory::program_memory_limit);
        Bounds { time: self.time.unwrap_or(LUKS_TIME_LIMIT), memory: Some(memory) }
    }
}
