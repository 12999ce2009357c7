//! Makes a filesystem, on a device that is proven blank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::refuse_in_use;
use crate::format_watch::{FormatPlace, Watcher};
use crate::intent::{self, Intent, Made};
use crate::mkfs_line::MkfsLine;
use crate::probe;
use crate::{
    BlankProof, BlockDevice, Error, ErrorKind, Filesystem, FormatLimit, FormatStep, MkfsProfile, Probe,
    Result,
};

/// How long `mkfs` may take unless told otherwise: 1 hour.
pub const FORMAT_TIME_LIMIT: Duration = Duration::from_secs(3600);

const FORMAT: &str = "format";

/// Makes a filesystem on a blank device.
///
/// ```no_run
/// use csi_mount::{BlockDevice, Filesystem, Format, Probe};
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
    at_once: Option<FormatLimit>,
    watcher: Option<Watcher>,
}

impl Format {
    /// A filesystem with this crate's defaults: no space reserved for root on ext4, and no discard first, as a blank
    /// device has nothing to discard.
    pub fn new(filesystem: Filesystem) -> Self {
        let profile = MkfsProfile::default();
        let line = MkfsLine { filesystem, label: None, arguments: Vec::new(), profile };
        Self { line, limit: FORMAT_TIME_LIMIT, at_once: None, watcher: None }
    }

    /// The filesystem's label: at most 16 bytes for ext4, 12 for XFS, 255 for btrfs.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.line.label = Some(label.into());
        self
    }

    /// More arguments for `mkfs`, as they would be on its command line: `["-b", "4096"]`, `["-m", "reflink=0"]`.
    ///
    /// They may name no file or other device; see [`run`](Self::run).
    #[must_use]
    pub fn arguments<I>(mut self, arguments: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.line.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// How long `mkfs` may take before it is killed; [`FORMAT_TIME_LIMIT`] if not set.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// For which kernel it is made; [`Running`](MkfsProfile::Running) if not set.
    #[must_use]
    pub fn profile(mut self, profile: MkfsProfile) -> Self {
        self.line.profile = profile;
        self
    }

    /// Waits, within the time limit, while as many formats run as `limit` lets.
    #[must_use]
    pub fn at_once(mut self, limit: &FormatLimit) -> Self {
        self.at_once = Some(limit.clone());
        self
    }

    /// Tells of each step, and of `mkfs` once a second while it runs.
    #[must_use]
    pub fn on_step(mut self, watcher: impl Fn(FormatStep) + Send + Sync + 'static) -> Self {
        self.watcher = Some(Watcher(Arc::new(watcher)));
        self
    }

    /// Formats the device that the proof is for, with `mkfs.ext4`, `mkfs.xfs` or `mkfs.btrfs`.
    ///
    /// Under the device's lock (`flock`, as udev's) it looks a second time: same disk at the path, not in use,
    /// writable, still blank. Then it marks the device as being formatted, so that a format that is killed can be begun
    /// anew ([`Probe::Interrupted`]), on any node. Afterwards the filesystem must be there, and the mark is taken off.
    /// `mkfs` dies with the calling process.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](ErrorKind::InvalidInput): a label too long, an argument that names a path.
    /// - [`NotBlank`](ErrorKind::NotBlank), [`Unreadable`](ErrorKind::Unreadable),
    ///   [`WrongDevice`](ErrorKind::WrongDevice): the device changed since the proof. It was not written to.
    /// - [`Busy`](ErrorKind::Busy): mounted somewhere, locked by another program, or too many formats run for too long.
    /// - [`ReadOnly`](ErrorKind::ReadOnly): the device refuses writes.
    /// - [`OutOfRange`](ErrorKind::OutOfRange): the device is smaller than [`Filesystem::minimum_size`].
    /// - [`MissingTool`](ErrorKind::MissingTool), [`ToolFailed`](ErrorKind::ToolFailed),
    ///   [`Unresponsive`](ErrorKind::Unresponsive): of `mkfs`.
    pub fn run(&self, proof: BlankProof<'_>) -> Result<()> {
        let device = proof.device();
        let end = Instant::now() + self.limit;
        let uuid = if self.line.has_own_uuid() { None } else { Some(intent::random_uuid(device)?) };
        let tool = self.line.tool();
        tool.find()?;
        let arguments = self.line.build(device, uuid)?;

        let _place = self.wait_for_place(device, end)?;
        self.tell(FormatStep::Preparing);
        let _lock = device.lock()?;
        self.check_size(device)?;
        let rubble = look_again(device)?;
        let made = Made::Filesystem(self.line.filesystem);
        intent::begin(device, Intent { made, uuid }, &rubble)?;

        tracing::info!(device = %device.path().display(), filesystem = %self.line.filesystem, "format");
        let limit = end.saturating_duration_since(Instant::now());
        let output = tool
            .run_watched(&arguments, limit, |elapsed| self.tell(FormatStep::Making { elapsed }))
            .map_err(|error| error.at(device.path()))?;
        if !output.status.success() {
            return Err(tool.failed(device.path(), &output));
        }
        self.tell(FormatStep::Verifying);
        device.verify()?;
        let found = device.probe();
        if found.filesystem() == Some(self.line.filesystem) {
            return intent::erase(device).map(drop);
        }
        let reason = format!("{} reported success, but the device holds {found}", tool.program);
        Err(Error::new(ErrorKind::ToolFailed, FORMAT, reason).at(device.path()))
    }

    fn wait_for_place(&self, device: &BlockDevice, end: Instant) -> Result<Option<FormatPlace>> {
        let Some(limit) = &self.at_once else { return Ok(None) };
        match limit.enter(end, || self.tell(FormatStep::Waiting)) {
            Some(place) => Ok(Some(place)),
            None => Err(Error::new(ErrorKind::Busy, FORMAT, "other formats run, and none ended in time")
                .at(device.path())
                .mend("try again, or let more run at once")),
        }
    }

    fn tell(&self, step: FormatStep) {
        if let Some(Watcher(watcher)) = &self.watcher {
            watcher(step);
        }
    }

    fn check_size(&self, device: &BlockDevice) -> Result<()> {
        let filesystem = self.line.filesystem;
        let (size, least) = (device.size()?, filesystem.minimum_size());
        // Other arguments than the defaults may need less, and mkfs then decides.
        if size >= least || !self.line.arguments.is_empty() {
            return Ok(());
        }
        let reason = format!("{filesystem} needs {least} bytes, and the device has {size}");
        Err(Error::new(ErrorKind::OutOfRange, FORMAT, reason).at(device.path()))
    }
}

/// Checks that the device may be formatted still, and says what an interrupted format left that `mkfs` would take
/// for somebody's.
pub(crate) fn look_again(device: &BlockDevice) -> Result<Vec<std::ops::Range<u64>>> {
    device.verify()?;
    if device.is_read_only()? {
        return Err(Error::new(ErrorKind::ReadOnly, FORMAT, "the device refuses writes").at(device.path()));
    }
    refuse_in_use(device, FORMAT)?;
    match device.probe() {
        Probe::Blank(_) => Ok(Vec::new()),
        Probe::Interrupted(_) => Ok(probe::ends(device.size()?).to_vec()),
        changed => Err(changed.refusal(FORMAT, device)),
    }
}
