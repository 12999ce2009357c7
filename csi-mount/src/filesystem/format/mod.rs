//! Makes a filesystem on a device that is proven blank.

pub(crate) mod disk_image;
pub(crate) mod mkfs_line;
pub(crate) mod mkfs_options;
pub(crate) mod mkfs_topology;
pub(crate) mod record;
pub(crate) mod watch;

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::format::disk_image::{Blankness, DiskImage};
use crate::filesystem::format::mkfs_line::MkfsLine;
use crate::filesystem::format::mkfs_options::MkfsOptions;
use crate::filesystem::format::mkfs_topology::Ext4Layout;
use crate::filesystem::format::record::FormatKind;
use crate::filesystem::format::watch::{FormatLimit, FormatPermit, FormatStep, Watcher};
use crate::filesystem::kernel_features::MkfsProfile;
use crate::filesystem::kind::Filesystem;
use crate::filesystem::probe::BlankProof;
use crate::filesystem::tool::ToolInput;
use crate::sys::deadline::deadline;
use crate::sys::ioctl::{self, Topology};

/// How long `mkfs` can take by default: 1 hour.
pub(crate) const FORMAT_TIME_LIMIT: Duration = Duration::from_secs(3600);

const FORMAT: &str = "format";
/// How often the memory use of the file that `mkfs` writes is checked.
const LOOK: Duration = Duration::from_millis(2);
/// Makes `mke2fs` write its zeros itself, so that they are seen. Without it, `mke2fs` asks the file to zero
/// the range.
const WRITE_ZEROS: (&str, &str) = ("UNIX_IO_NOZEROOUT", "1");

/// Makes a filesystem on a blank device.
///
/// ```no_run
/// use csi_mount::{BlockDevice, Filesystem};
/// use csi_mount::internal::{DeviceQuestions as _, Format, Probe};
///
/// let device = BlockDevice::open("/dev/vdb")?;
/// match device.probe() {
///     Probe::Blank(proof) => Format::new(Filesystem::Ext4).label("data").run(proof)?,
///     other => println!("{} holds {other}", device.path().display()),
/// }
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Format {
    line: MkfsLine,
    limit: Duration,
    format_limit: Option<FormatLimit>,
    watcher: Option<Watcher>,
    blankness: Option<Untouched>,
}

/// Distinguishes bytes that nobody wrote from data, inside an encrypted device.
#[derive(Clone)]
struct Untouched(Arc<dyn Blankness + Send>);

impl std::fmt::Debug for Untouched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Untouched")
    }
}

impl Format {
    /// A filesystem with this crate's defaults: no space reserved for root on ext4, and no discard first,
    /// as a blank device has nothing to discard.
    pub fn new(filesystem: Filesystem) -> Self {
        let profile = MkfsProfile::default();
        let line = MkfsLine { filesystem, label: None, arguments: Vec::new(), profile };
        Self { line, limit: FORMAT_TIME_LIMIT, format_limit: None, watcher: None, blankness: None }
    }

    /// Sets the filesystem's label: at most 16 bytes for ext4, 12 for XFS, 255 for btrfs.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.line.label = Some(label.into());
        self
    }

    /// Adds arguments for `mkfs`, as on its command line: `["-b", "4096"]`, `["-m", "reflink=0"]`.
    ///
    /// They must not name a file or another device; see [`run`](Self::run).
    #[must_use]
    pub fn arguments<I>(mut self, arguments: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.line.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds choices of the layout.
    pub fn mkfs_options(self, options: MkfsOptions) -> Result<Self> {
        let arguments = options.arguments(self.line.filesystem)?;
        Ok(self.arguments(arguments))
    }

    /// Sets how long `mkfs` can take before it is killed. The default is one hour.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the kernel that the filesystem is made for. The default is [`Running`](MkfsProfile::Running).
    #[must_use]
    pub fn profile(mut self, profile: MkfsProfile) -> Self {
        self.line.profile = profile;
        self
    }

    /// Waits, within the time limit, while as many formats run as `limit` allows.
    #[must_use]
    pub fn format_limit(mut self, limit: &FormatLimit) -> Self {
        self.format_limit = Some(limit.clone());
        self
    }

    /// Calls the watcher at each step, and once a second while `mkfs` runs.
    #[must_use]
    pub fn on_step(mut self, watcher: impl Fn(FormatStep) + Send + Sync + 'static) -> Self {
        self.watcher = Some(Watcher(Arc::new(watcher)));
        self
    }

    /// Allows it to write over bytes that are not zero if this says that nobody wrote them.
    #[cfg(feature = "luks")]
    pub(crate) fn over(mut self, blankness: Arc<dyn Blankness + Send>) -> Self {
        self.blankness = Some(Untouched(blankness));
        self
    }

    /// Formats the device that the proof is for, with `mkfs.ext4`, `mkfs.xfs` or `mkfs.btrfs`.
    ///
    /// `mkfs` never gets the device. It makes the filesystem in memory, as for a disk of this size, with
    /// these sectors and stripes. Only if it succeeds is its output copied to the device. The copy is made
    /// under the device's lock (`flock`, the same as udev's), with the device held exclusively, after a
    /// second check of all of it, and over zeros only: each block is read before it is written. A copy that
    /// is killed can be started again ([`Probe::Interrupted`](crate::Probe::Interrupted)), on any node.
    /// `mkfs` dies with the calling process.
    ///
    /// While it runs, a format takes memory: 32 MiB, plus the blocks that are not zero (ext4: 4 MiB for a
    /// volume of 10 GiB, 16 MiB for 1 TiB; XFS and btrfs: less than 1 MiB), plus what `mkfs` takes for
    /// itself.
    pub fn run(&self, proof: BlankProof<'_>) -> Result<()> {
        let device = proof.device();
        let end = deadline(self.limit);
        self.line.tool().find()?;
        // A wrong argument is reported before anything is waited for.
        self.line.options(&[]).map_err(|error| error.at(device.path()))?;

        let _place = self.wait_for_place(device, end)?;
        self.report(FormatStep::Preparing);
        let _lock = device.lock()?;
        self.check_size(device)?;
        refuse_unwritable(device)?;
        tracing::info!(device = %device.path().display(), filesystem = %self.line.filesystem, "format");
        let image = self.make_in_memory(device, end)?;
        self.report(FormatStep::Writing);
        let blankness = self.blankness.as_ref().map(|Untouched(blankness)| &**blankness as &dyn Blankness);
        image.write_to_device(FormatKind::Filesystem(self.line.filesystem), blankness)?;
        self.report(FormatStep::Verifying);
        device.verify()?;
        let found = device.probe();
        if found.filesystem() == Some(self.line.filesystem) {
            return Ok(());
        }
        let reason = format!("the filesystem was written, but the device holds {found}");
        Err(Error::new(ErrorKind::Io, FORMAT, reason).at(device.path()))
    }

    /// Runs `mkfs` on a disk in memory like this one.
    fn make_in_memory<'d>(&self, device: &'d BlockDevice, end: Instant) -> Result<DiskImage<'d>> {
        let failed = |error| Error::os("read the sector sizes of", device.path(), error);
        let topology = ioctl::topology(device.as_fd()).map_err(failed)?;
        match self.line.filesystem {
            Filesystem::Ext4 => self.make_ext4(device, topology, end),
            Filesystem::Xfs => {
                let arguments = topology.xfs_arguments(&self.line.arguments, device.size()?);
                self.mkfs(device, topology, &arguments, false, end)
            }
            Filesystem::Btrfs => self.mkfs(device, topology, &[], false, end),
        }
    }

    fn make_ext4<'d>(
        &self,
        device: &'d BlockDevice,
        topology: Topology,
        end: Instant,
    ) -> Result<DiskImage<'d>> {
        // Inode tables that mke2fs makes zero at once, and other zeros, are visible only if mke2fs writes
        // them.
        let mut writes_zeros =
            self.line.arguments.iter().any(|argument| argument.contains("lazy_itable_init"));
        let mut image = self.mkfs(device, topology, &[], writes_zeros, end)?;
        let mut layout = Ext4Layout::from_image(&image);
        let stripes = layout.as_ref().map_or(Vec::new(), |layout| topology.ext4_stripes(layout.block_size));
        let is_unknown = layout.as_ref().is_some_and(|layout| layout.journal.is_none());
        // Stripes are given in blocks, whose size mke2fs chooses: it is known only after a first run.
        if !stripes.is_empty() || (is_unknown && !writes_zeros) {
            writes_zeros |= is_unknown;
            image = self.mkfs(device, topology, &stripes, writes_zeros, end)?;
            layout = Ext4Layout::from_image(&image);
        }
        for range in layout.and_then(|layout| layout.journal).into_iter().flatten() {
            image.has_zeros(range);
        }
        Ok(image)
    }

    fn mkfs<'d>(
        &self,
        device: &'d BlockDevice,
        topology: Topology,
        arguments: &[String],
        writes_zeros: bool,
        end: Instant,
    ) -> Result<DiskImage<'d>> {
        let tool = self.line.tool();
        let mut image = DiskImage::for_device(device, FORMAT)?;
        let (file, mut zeros) = image.split();
        let mut line = self.line.options(arguments).map_err(|error| error.at(device.path()))?;
        line.push(file.path());
        let sectors = topology.environment();
        let mut environment: Vec<(&str, &str)> =
            sectors.iter().map(|(name, size)| (*name, &**size)).collect();
        environment.extend(writes_zeros.then_some(WRITE_ZEROS));
        let given = ToolInput {
            environment: &environment,
            file: Some(file),
            poll_interval: Some(LOOK),
            ..ToolInput::default()
        };
        let mut reported = 0;
        let limit = end.saturating_duration_since(Instant::now());
        let output = tool.run_with_input(&line, given, limit, |running| {
            let elapsed = running.elapsed().as_secs();
            if elapsed > reported {
                reported = elapsed;
                self.report(FormatStep::Making { elapsed: Duration::from_secs(reported) });
            }
            zeros.punch_if_grown(running)
        });
        let output = output.map_err(|error| error.at(device.path()))?;
        if output.status.success() { Ok(image) } else { Err(tool.failed(device.path(), &output)) }
    }

    fn wait_for_place(&self, device: &BlockDevice, end: Instant) -> Result<Option<FormatPermit>> {
        let Some(limit) = &self.format_limit else { return Ok(None) };
        match limit.enter(end, || self.report(FormatStep::Waiting)) {
            Some(place) => Ok(Some(place)),
            None => {
                Err(Error::new(ErrorKind::Busy, FORMAT, "other formats are running, and none ended in time")
                    .at(device.path())
                    .hint("try again, or allow more formats at the same time"))
            }
        }
    }

    fn report(&self, step: FormatStep) {
        if let Some(Watcher(watcher)) = &self.watcher {
            watcher(step);
        }
    }

    fn check_size(&self, device: &BlockDevice) -> Result<()> {
        let filesystem = self.line.filesystem;
        let size = device.size()?;
        let least = filesystem.min_size();
        // Arguments other than the defaults can allow smaller devices; then mkfs decides.
        if size >= least || !self.line.arguments.is_empty() {
            return Ok(());
        }
        let reason = format!("{filesystem} needs {least} bytes, and the device has {size}");
        Err(Error::new(ErrorKind::OutOfRange, FORMAT, reason).at(device.path()))
    }
}

/// Checks before the format that the device can be written to.
pub(crate) fn refuse_unwritable(device: &BlockDevice) -> Result<()> {
    device.verify()?;
    if device.is_read_only()? {
        return Err(Error::new(ErrorKind::ReadOnly, FORMAT, "the device refuses writes").at(device.path()));
    }
    Ok(())
}
