//! Encrypted devices: LUKS by running `cryptsetup`, with the key through a pipe.
//!
//! What is here needs the key; that a mapping is there, and to close it, is in [`mapping`](crate::mapping).

mod command;
mod format;
mod key;
mod open;
mod untouched;

use std::time::Duration;

use crate::filesystem::tool::Bounds;
use crate::sys::memory;

pub use self::key::LuksKey;
pub(crate) use self::open::{Opened, Opening, device_for, grow};

/// How long one run of `cryptsetup` may take unless told otherwise: 5 minutes.
pub const LUKS_TIME_LIMIT: Duration = Duration::from_secs(300);

pub(crate) use crate::device::mapping::LUKS_HEADER as HEADER;

/// How a device is encrypted, and opened.
///
/// LUKS version 2 with `cryptsetup`'s cipher (AES-XTS, 512 bits); its headers take 16 MiB. A device that is encrypted
/// already keeps what it has, version 1 included, and is only opened as is said here.
///
/// `cryptsetup` is needed on the node ([`MissingTool`](crate::ErrorKind::MissingTool) says so), 2.1 or later, with a
/// `/run` that it may write its locks to; of the kernel the modules `dm_mod` and `dm_crypt`; of a container the host's
/// `/dev`. udev is neither needed nor waited for.
///
/// ```no_run
/// use csi_mount::{BlockDevice, Luks, LuksKey, LuksPbkdf, Probe};
///
/// let device = BlockDevice::open("/dev/vdb")?;
/// let key = LuksKey::new(std::env::var("KEY").unwrap_or_default())?;
/// let luks = Luks::new().pbkdf(LuksPbkdf::Argon2id { memory: 32 << 20, iterations: 4 });
/// if let Probe::Blank(proof) = device.probe() {
///     luks.format(proof, &key)?;
/// }
/// # Ok::<(), csi_mount::Error>(())
/// ```
///
/// [`StagePlan::encrypted`](crate::flow::block::StagePlan::encrypted) does this and the rest for a volume.
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

/// How a key is made slow to guess, at the cost of each opening. Set when a device is formatted.
///
/// The cost is fixed, not measured on the node: a node that is busy, or throttled, would choose less, and one with much
/// memory would choose what a container elsewhere can't open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LuksPbkdf {
    /// Argon2id, on one thread.
    Argon2id {
        /// In bytes, which formatting and each opening need: at least 32 KiB, at most 4 GiB.
        memory: u64,
        /// How often the memory is gone through: 4 or more.
        iterations: u32,
    },
    /// PBKDF2 with SHA-256, which needs no memory: for keys that are random bytes, which nobody guesses anyway.
    Pbkdf2 {
        /// 1000 or more.
        iterations: u32,
    },
}

impl Default for LuksPbkdf {
    /// Argon2id with 64 MiB and 4 iterations: some tenths of a second, and a container of 128 MiB opens it.
    fn default() -> Self {
        Self::Argon2id { memory: 64 << 20, iterations: 4 }
    }
}

/// What becomes of discards (`fstrim`, the mount option `discard`) of what is inside an encrypted device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LuksDiscards {
    /// They end at the encryption: who has the device does not learn which blocks are in use, and space that is freed
    /// inside is not freed beneath.
    #[default]
    Dropped,
    /// They reach the device, which reads as zeros there: thin storage gets its space back, and who has the device sees how
    /// full it is and the pattern of it.
    Passed,
}

impl Luks {
    /// With this crate's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How the key of a device that is formatted is made slow to guess.
    pub fn pbkdf(mut self, pbkdf: LuksPbkdf) -> Self {
        self.pbkdf = pbkdf;
        self
    }

    /// The unit of encryption of a device that is formatted, in bytes: 512, 1024, 2048 or 4096. `cryptsetup` chooses what
    /// suits the device if not set. The device's size has to be a multiple of it for good, also after it grew.
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = Some(bytes);
        self
    }

    /// What becomes of discards, from the next opening on.
    pub fn discards(mut self, discards: LuksDiscards) -> Self {
        self.discards = discards;
        self
    }

    /// How long one run of `cryptsetup` may take before it is killed; [`LUKS_TIME_LIMIT`] if not set.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time = Some(limit);
        self
    }

    /// How many bytes of memory `cryptsetup` may take before it is killed; if not set, half of what this process may have.
    /// A device that was formatted elsewhere may need 1 GiB to be opened.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Never encrypts a blank device when it is staged, and lets nothing be formatted inside: for a volume that was staged
    /// before, or is a copy. See [`StagePlan::never_format`](crate::flow::block::StagePlan::never_format), which is
    /// enough for a filesystem.
    pub fn never_format(mut self) -> Self {
        self.never_format = true;
        self
    }

    fn bounds(&self) -> Bounds {
        let memory = self.memory.unwrap_or_else(memory::share_of_a_program);
        Bounds { time: self.time.unwrap_or(LUKS_TIME_LIMIT), memory: Some(memory) }
    }
}
