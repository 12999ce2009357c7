//! How a loop device is to be attached.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::device::block_device::DeviceAccess;
use crate::sys::ioctl::LoopInfo;

/// How to attach a loop device.
///
/// ```no_run
/// use csi_mount::{DeviceAccess, Host, LoopOptions};
///
/// let image = std::path::Path::new("/var/lib/images/vol-1.img");
/// let options = LoopOptions::new().access(DeviceAccess::ReadOnly);
/// let device = Host::kernel().devices().loop_attach(image, &options)?;
/// println!("{}", device.path.display());
/// Host::kernel().devices().loop_detach(image)?;
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoopOptions {
    pub(super) access: DeviceAccess,
    cache: LoopCache,
    pub(super) sector_size: u32,
    mark: Option<String>,
}

/// Whether the data of a loop device is also kept in the page cache of its backing file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopCache {
    /// The data is cached twice, and any backing file works.
    #[default]
    Buffered,
    /// The data is cached once, if the backing file's filesystem supports it; otherwise as
    /// [`Buffered`](Self::Buffered).
    Direct,
}

impl LoopOptions {
    /// Writable and buffered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether it accepts writes.
    #[must_use]
    pub fn access(mut self, access: DeviceAccess) -> Self {
        self.access = access;
        self
    }

    /// Sets whether its data is cached a second time.
    #[must_use]
    pub fn cache(mut self, cache: LoopCache) -> Self {
        self.cache = cache;
        self
    }

    /// Sets the logical block size in bytes: a power of two from 512 (the default) to 4096.
    #[must_use]
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = bytes;
        self
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is_read_only(&self) -> bool {
        self.access == DeviceAccess::ReadOnly
    }

    /// A name of at most 63 bytes that the kernel stores with the device, instead of the file's name.
    pub(crate) fn mark(mut self, mark: impl Into<String>) -> Self {
        self.mark = Some(mark.into());
        self
    }

    pub(super) fn info(&self, backing: &Path) -> LoopInfo {
        let mut info = LoopInfo::zeroed();
        for (wanted, flag) in [
            (self.access == DeviceAccess::ReadOnly, LoopInfo::READ_ONLY),
            (self.cache == LoopCache::Direct, LoopInfo::DIRECT_IO),
        ] {
            if wanted {
                info.flags |= flag;
            }
        }
        let name = self.mark.as_ref().map_or(backing.as_os_str().as_bytes(), |mark| mark.as_bytes());
        // The last byte stays zero.
        let length = name.len().min(info.file_name.len() - 1);
        info.file_name[..length].copy_from_slice(&name[..length]);
        info
    }
}
