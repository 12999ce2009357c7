//! Makes a filesystem, on a device that is proven blank.

use std::ffi::OsString;
use std::time::Duration;

use crate::tool::Tool;
use crate::{BlankProof, BlockDevice, DeviceUse, Error, ErrorKind, Filesystem, Probe, Result};

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
    filesystem: Filesystem,
    label: Option<String>,
    arguments: Vec<String>,
    limit: Duration,
}

impl Format {
    /// A filesystem with this crate's defaults: no space reserved for root on ext4, and no discard first, as a blank
    /// device has nothing to discard.
    pub fn new(filesystem: Filesystem) -> Self {
        Self { filesystem, label: None, arguments: Vec::new(), limit: FORMAT_TIME_LIMIT }
    }

    /// The filesystem's label: at most 16 bytes for ext4, 12 for XFS, 255 for btrfs.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
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
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// How long `mkfs` may take before it is killed; [`FORMAT_TIME_LIMIT`] if not set.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Formats the device that the proof is for, with `mkfs.ext4`, `mkfs.xfs` or `mkfs.btrfs`.
    ///
    /// Under the device's lock (`flock`, as udev's) it looks a second time: same disk at the path, not in use,
    /// writable, still blank. Afterwards the filesystem must be there. `mkfs` dies with the calling process.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](ErrorKind::InvalidInput): a label too long, an argument that names a path.
    /// - [`NotBlank`](ErrorKind::NotBlank), [`Unreadable`](ErrorKind::Unreadable),
    ///   [`WrongDevice`](ErrorKind::WrongDevice): the device changed since the proof. It was not written to.
    /// - [`Busy`](ErrorKind::Busy): mounted somewhere, or locked by another program.
    /// - [`ReadOnly`](ErrorKind::ReadOnly): the device refuses writes.
    /// - [`OutOfRange`](ErrorKind::OutOfRange): the device is smaller than [`Filesystem::minimum_size`].
    /// - [`MissingTool`](ErrorKind::MissingTool), [`ToolFailed`](ErrorKind::ToolFailed),
    ///   [`Unresponsive`](ErrorKind::Unresponsive): of `mkfs`.
    pub fn run(&self, proof: BlankProof<'_>) -> Result<()> {
        let device = proof.device();
        let tool = self.tool();
        let mut arguments = self.command_line(device)?;
        arguments.push(device.path().into());
        tool.find()?;

        let _lock = device.lock()?;
        device.verify()?;
        if device.is_read_only()? {
            return Err(
                Error::new(ErrorKind::ReadOnly, FORMAT, "the device refuses writes").at(device.path())
            );
        }
        self.check_size(device)?;
        if device.in_use()? == DeviceUse::InUse {
            return Err(Error::new(ErrorKind::Busy, FORMAT, "the device is in use").at(device.path()));
        }
        match device.probe() {
            Probe::Blank(_) => {}
            changed => return Err(changed.refusal(FORMAT, device)),
        }

        tracing::info!(device = %device.path().display(), filesystem = %self.filesystem, "format");
        let output = tool.run(&arguments, self.limit).map_err(|error| error.at(device.path()))?;
        if !output.status.success() {
            return Err(tool.failed(device.path(), &output));
        }
        device.verify()?;
        let found = device.probe();
        if found.filesystem() == Some(self.filesystem) {
            return Ok(());
        }
        let reason = format!("{} reported success, but the device holds {found}", tool.program);
        Err(Error::new(ErrorKind::ToolFailed, FORMAT, reason).at(device.path()))
    }

    fn check_size(&self, device: &BlockDevice) -> Result<()> {
        let (size, least) = (device.size()?, self.filesystem.minimum_size());
        // Other arguments than the defaults may need less, and mkfs then decides.
        if size >= least || !self.arguments.is_empty() {
            return Ok(());
        }
        let reason = format!("{} needs {least} bytes, and the device has {size}", self.filesystem);
        Err(Error::new(ErrorKind::OutOfRange, FORMAT, reason).at(device.path()))
    }

    fn tool(&self) -> Tool {
        let program = match self.filesystem {
            Filesystem::Ext4 => "mkfs.ext4",
            Filesystem::Xfs => "mkfs.xfs",
            Filesystem::Btrfs => "mkfs.btrfs",
        };
        Tool { program, package: self.filesystem.package() }
    }

    fn command_line(&self, device: &BlockDevice) -> Result<Vec<OsString>> {
        let defaults: &[&str] = match self.filesystem {
            // -F: a whole disk needs no question, and there is nobody to answer one.
            Filesystem::Ext4 => &["-q", "-F", "-m0"],
            Filesystem::Xfs => &["-q", "-K"],
            Filesystem::Btrfs => &["-q", "-K"],
        };
        let mut line: Vec<OsString> = defaults.iter().map(OsString::from).collect();
        if let Some(label) = &self.label {
            self.check_label(label).map_err(|error| error.at(device.path()))?;
            line.push("-L".into());
            line.push(label.into());
        }
        let mut arguments = joined(&self.arguments)?;
        if self.filesystem == Filesystem::Ext4 {
            // mke2fs heeds only the last -E, so all go into one; the user's come last and win.
            let extended = arguments.extract_if(.., |argument| argument.starts_with("-E"));
            let extended = extended.fold("-Enodiscard".to_owned(), |all, more| all + "," + &more[2..]);
            arguments.insert(0, extended);
        }
        line.extend(arguments.into_iter().map(OsString::from));
        Ok(line)
    }

    fn check_label(&self, label: &str) -> Result<()> {
        let longest = match self.filesystem {
            Filesystem::Ext4 => 16,
            Filesystem::Xfs => 12,
            Filesystem::Btrfs => 255,
        };
        if label.is_empty() || label.len() > longest || label.contains(char::is_control) {
            let reason = format!(
                "the label {label:?} is not 1 to {longest} bytes without control characters, as {} wants it",
                self.filesystem
            );
            return Err(Error::new(ErrorKind::InvalidInput, FORMAT, reason));
        }
        Ok(())
    }
}

/// Joins each option with its value (`-b 4096` to `-b4096`), so that no argument can stand alone and be taken for
/// a device to format.
fn joined(arguments: &[String]) -> Result<Vec<String>> {
    let refuse = |argument: &String, reason: &str| {
        let reason = format!("the mkfs argument {argument:?} {reason}");
        Err(Error::new(ErrorKind::InvalidInput, FORMAT, reason))
    };
    let mut line: Vec<String> = Vec::new();
    // Whether the last argument is one letter that may still get a value.
    let mut open = false;
    for argument in arguments {
        if argument.contains(['/', '\0']) || argument.contains("device=") || argument.contains("logdev=") {
            return refuse(argument, "names a file or another device");
        }
        let is_option = argument.starts_with('-') && argument.len() > 1;
        match line.last_mut() {
            _ if argument == "--" => return refuse(argument, "ends the options"),
            _ if is_option => {
                line.push(argument.clone());
                open = argument.len() == 2;
            }
            Some(option) if open => {
                option.push_str(argument);
                open = false;
            }
            _ => return refuse(argument, "is neither an option nor the value of one"),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(arguments: &[&str]) -> Result<Vec<String>> {
        joined(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_joined_to_their_options() {
        assert_eq!(
            join(&["-b", "4096", "-Elazy_itable_init=0"]).unwrap(),
            ["-b4096", "-Elazy_itable_init=0"]
        );
        assert_eq!(
            join(&["-m", "reflink=0", "--nodesize=4096"]).unwrap(),
            ["-mreflink=0", "--nodesize=4096"]
        );
    }

    #[test]
    fn arguments_that_could_be_a_device_are_refused() {
        for bad in [
            &["data"][..],
            &["/dev/sda"],
            &["-F", "/dev/sda"],
            &["-b", "4096", "100"],
            &["--", "x"],
            &["-"],
            &["-J", "device=LABEL=x"],
            &["-llogdev=x"],
            &["-b\0"],
            &[""],
        ] {
            assert_eq!(join(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    #[test]
    fn labels_have_the_length_that_the_filesystem_takes() {
        for (filesystem, longest) in [(Filesystem::Ext4, 16), (Filesystem::Xfs, 12), (Filesystem::Btrfs, 255)]
        {
            let format = Format::new(filesystem);
            assert!(format.check_label(&"x".repeat(longest)).is_ok());
            for bad in [String::new(), "a\nb".to_owned(), "x".repeat(longest + 1)] {
                assert_eq!(format.check_label(&bad).unwrap_err().kind(), ErrorKind::InvalidInput);
            }
        }
    }
}
