//! Mounting a filesystem: configured option by option, created detached, and then moved onto the target.

use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, MountAttrFlags, fsopen};

use crate::bounded::in_flight::Subject;
use crate::detached::prepared::Prepared;
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::attach::{self, Attached, Outcome};
use crate::mounting::diagnose::Log;
use crate::mounting::options::{FsOption, MountOptions};
use crate::mounting::runner::MountRunner;
use crate::mounting::{MOUNT, diagnose, legacy};
use crate::path::paths;
use crate::place::on_device::block_device_at;
use crate::place::target::{OpenTarget, Target, name_of};
use crate::sys::attributes::MountAttributes;
use crate::sys::features::{self, Feature};
use crate::sys::new_mount::{MountMethod, Refusal, Setting};
use crate::table::details::{self, Details};

/// The setting of a filesystem context that is no option of the user.
const SOURCE: &str = "source";

/// Builder for a mount of a filesystem; [`at`](Self::at) makes it.
///
/// Each option goes to the kernel separately and never onto a command line. The error contains the kernel's
/// own message about it (`fsopen(2)`, `fsconfig(2)`, `fsmount(2)`; Linux 5.2). Before Linux 5.2 it is
/// `mount(2)`, which returns only error numbers. Mount helpers (`mount.nfs`) are not called.
///
/// [`RDONLY`](crate::MountAttributes::RDONLY) makes the mount read-only. Unless the filesystem is also
/// mounted elsewhere, the filesystem is read-only too, so that nothing writes to the device.
///
/// ```no_run
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{Mount, MountOptions, Target};
///
/// let target = Target::new("/var/lib/kubelet/plugins/example/staging")?;
/// target.create_dir()?;
/// let options = MountOptions::parse(["noatime", "nouuid"])?;
/// Mount::new("xfs", "/dev/loop3").options(&options).at(&target)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is mounted before `at`"]
pub struct Mount<'a> {
    fs_type: &'a str,
    source: &'a Path,
    options: MountOptions,
    time_limit: Option<Duration>,
}

/// How long a mount waits for a server or daemon by default: half of what the kubelet waits for a stage.
pub(crate) const MOUNT_TIME_LIMIT: Duration = Duration::from_secs(60);

impl<'a> Mount<'a> {
    /// A mount of this type of filesystem (`"ext4"`, `"tmpfs"`) from this source.
    ///
    /// The source is a block device, or whatever the filesystem takes as its source. If the filesystem takes
    /// none, the text only appears in the mount table.
    pub fn new(fs_type: &'a str, source: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { fs_type, source: source.as_ref(), options: MountOptions::new(), time_limit: None }
    }

    /// Sets the options.
    pub fn options(mut self, options: &MountOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// Sets how long to wait for the filesystem.
    ///
    /// The default is one minute for filesystems that have or can have a server or daemon, and no
    /// limit for those that the kernel serves alone.
    ///
    /// A child process makes a mount that has a limit, and is killed at the limit. At most one such mount
    /// runs per source. If the child cannot be killed, nothing waits for it; as long as it exists, the next
    /// mount of the same source fails at once, so that processes do not pile up.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Mounts it, unless the same filesystem is mounted there with the same attributes.
    ///
    /// "The same" means: the type, the block device by its number (or the source by its name if there is no
    /// device), and the attributes. Options of the filesystem are not compared. An existing mount is refused
    /// if it is dead, does not answer, or turned read-only (as after an error) although a writable mount is
    /// requested. So after [`Outcome::AlreadyMounted`] the filesystem works. On failure nothing new is
    /// mounted.
    ///
    /// # Errors
    /// - [`ErrorKind::AlreadyMounted`]: something else is mounted at the target, or the same with other
    ///   attributes.
    /// - [`ErrorKind::NotFound`]: the device, or the directory to mount on, does not exist.
    /// - [`ErrorKind::InvalidOption`]: the filesystem does not take an option, or not with this value. If its
    ///   error number does not say so, a filesystem without a server is mounted again without the options,
    ///   read-only, without a replay of its log and visible nowhere.
    /// - [`ErrorKind::InvalidInput`]: the source is not a block device or does not hold such a filesystem, or
    ///   the target is a symbolic link.
    /// - [`ErrorKind::Unsupported`]: the kernel does not have this filesystem.
    /// - [`ErrorKind::ReadOnly`]: the device is read-only and the mount or its log needs writes, or the filesystem mounted there turned read-only.
    /// - [`ErrorKind::Busy`]: the device is in use in a way that conflicts with this mount, or other
    ///   processes mount and unmount at the target at the same time.
    /// - [`ErrorKind::Damaged`]: the filesystem needs a check.
    /// - [`ErrorKind::Unresponsive`]: the server or daemon of this mount, or of the existing one, is gone or
    ///   does not answer in time.
    /// - [`ErrorKind::PermissionDenied`]: CAP_SYS_ADMIN is missing.
    pub fn at(self, target: &Target) -> Result<Outcome> {
        check(self.fs_type, self.source, target.path())?;
        attach::mount_once(
            MOUNT,
            target,
            |_, found| self.accept(target, found),
            |opened| self.mount(target, &opened),
        )
    }

    /// Accepts an existing mount only if it is the same filesystem with the same attributes.
    fn accept(&self, target: &Target, found: &Details) -> Result<()> {
        let device = block_device_at(self.source.as_os_str());
        let is_same_source = match device {
            Some(device) => found.is_on(device),
            None => found.source == self.source,
        };
        if !is_same_source || found.fs_type != self.fs_type {
            let number = device.map(|device| format!(" ({device})")).unwrap_or_default();
            let difference =
                format!("{} from {}{number} is not mounted", self.fs_type, self.source.display());
            return Err(attach::refuse(MOUNT, target, found, &difference));
        }
        attach::require_attributes(MOUNT, target, found, self.options.attributes())?;
        if found.is_super_read_only && !self.options.is_read_only() {
            let reason =
                format!("the filesystem turned read-only, possibly after an error of its device: {found}");
            return Err(Error::new(ErrorKind::ReadOnly, MOUNT, reason)
                .at(target.path())
                .hint("read the kernel's log, unmount the filesystem and check it"));
        }
        Ok(())
    }

    fn mount(&self, target: &Target, opened: &OpenTarget) -> Result<Attached> {
        if opened.facts.file_type != rustix::fs::FileType::Directory {
            let reason = format!(
                "it is {}, and filesystems are mounted on directories",
                name_of(opened.facts.file_type)
            );
            return Err(Error::new(ErrorKind::InvalidInput, MOUNT, reason).at(target.path()));
        }
        attach::attach(MOUNT, self.prepared(target)?, target, opened, self.options.attributes())
    }

    /// Makes the mount detached, so that it is visible nowhere.
    pub(crate) fn prepared(&self, target: &Target) -> Result<Prepared> {
        self.prepared_once(target).map_err(|error| self.with_cause(error, target))
    }

    fn prepared_once(&self, target: &Target) -> Result<Prepared> {
        let runner = match self.time_limit.or(details::is_remote(self.fs_type).then_some(MOUNT_TIME_LIMIT)) {
            None => MountRunner::Caller,
            Some(limit) => MountRunner::Child { queue: self.queue(target), limit },
        };
        if self.uses_fs_context() {
            self.detached(target, &runner).map(Prepared::Detached)
        } else {
            legacy::prepare(self.fs_type, self.source, &self.options, target, &runner)
        }
    }

    /// Finds out whether an error is the fault of the options, or of an ext4's journal. Some filesystems look at
    /// options only when they are mounted, and return the same numbers as for a missing device or a damaged
    /// filesystem. So the filesystem is mounted in other ways, where nobody sees it and without a write to the
    /// device.
    fn with_cause(&self, error: Error, target: &Target) -> Error {
        use ErrorKind::{InvalidInput, Io, NotFound, OutOfMemory, OutOfRange, Unsupported};
        let is_possible =
            matches!(error.kind(), InvalidInput | Io | NotFound | OutOfMemory | OutOfRange | Unsupported)
                && !details::is_remote(self.fs_type);
        let options = diagnose::options_without_writes(self.fs_type, &self.options);
        let Some(options) = options.filter(|options| is_possible && *options != self.options) else {
            return error;
        };
        let is_mounted_with =
            |options: MountOptions| Mount { options, ..self.clone() }.prepared_once(target).is_ok();
        if !is_mounted_with(options) {
            return error;
        }
        match diagnose::ext4_log(self.fs_type, self.source) {
            Some(Log::Clean) if !is_mounted_with(MountOptions::new().read_only()) => {
                return error
                    .with_kind(ErrorKind::Damaged)
                    .add_reason("its journal can't be loaded")
                    .hint("unmount it everywhere, copy the device, and repair it with e2fsck");
            }
            Some(Log::Unclear) => {
                let without_log = self.options.clone().with_flag_option("noload");
                if without_log.is_ok_and(|options| is_mounted_with(options.read_only())) {
                    return error.add_reason("it can be mounted read-only without its journal (noload)").hint(
                        "the journal can be damaged, or an option be wrong for a writable mount; read the \
                         kernel's log",
                    );
                }
            }
            _ => {}
        }
        if self.options.filesystem().is_empty() {
            return error;
        }
        let keys: Vec<&str> = self.options.filesystem().iter().map(FsOption::key).collect();
        let reason = format!("the filesystem can be mounted without the options {}", keys.join(", "));
        error
            .with_kind(ErrorKind::InvalidOption)
            .add_reason(reason)
            .hint("correct or remove the wrong option")
    }

    /// The key under which mounts run one after the other.
    fn queue(&self, target: &Target) -> Subject {
        let mut queue = format!("{}:{}", self.fs_type, self.source.display());
        // Each FUSE mount is a filesystem of its own, whatever its source is called.
        if self.fs_type.starts_with("fuse") {
            queue.push_str(&format!(" at {}", target.path().display()));
        }
        Subject::Mount(queue)
    }

    /// Whether `fsopen(2)` can make this mount. Some mounts need `mount(2)`:
    /// - `nosymfollow` from Linux 5.10 to 5.13: `fsmount` learned it at about the time of `mount_setattr`.
    /// - A read-only XFS before 6.8, the release of `statmount`: XFS does not notice there that a filesystem
    ///   context is read-only, and refuses `norecovery` (commit d8d222e09dab in the kernel).
    fn uses_fs_context(&self) -> bool {
        let is_nosymfollow = self.options.attributes().contains(MountAttributes::NOSYMFOLLOW);
        let is_read_only_xfs = self.fs_type == "xfs" && self.options.is_read_only();
        features::has(Feature::FsContext)
            && (features::has(Feature::MountSetattr) || !is_nosymfollow)
            && (features::has(Feature::Statmount) || !is_read_only_xfs)
    }

    /// Makes the mount in no namespace, with its attributes.
    pub(crate) fn detached(&self, target: &Target, runner: &MountRunner) -> Result<OwnedFd> {
        let context = fsopen(self.fs_type, FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|error| diagnose::type_error(target, self.fs_type, error))?;
        self.make(&context, runner).map_err(|failed| {
            let (error, option) = match failed {
                MountFailure::Unanswered(error) => return error.at(target.path()),
                MountFailure::Refused { error, option } => (error, option),
            };
            let what = format!("{} from {}", self.fs_type, self.source.display());
            let error = target.error(MOUNT, error).add_reason(what);
            let error =
                diagnose::context_log(&context, &self.options).into_iter().fold(error, Error::add_reason);
            match option {
                Some(key) if key != SOURCE => diagnose::option_refused(error, &key),
                _ => diagnose::explained(error, self.source, &self.options),
            }
        })
    }

    fn make(&self, context: &OwnedFd, runner: &MountRunner) -> std::result::Result<OwnedFd, MountFailure> {
        let refused = |error| MountFailure::Refused { error, option: None };
        let settings = self.settings().map_err(refused)?;
        let attributes = MountAttrFlags::from_bits_retain(self.options.attributes().bits() as u32);
        let method = MountMethod::Context { context: context.as_fd(), settings: &settings, attributes };
        let named = self.options.named_descriptors();
        let made = runner.make(method, &named).map_err(MountFailure::Unanswered)?;
        let mount = made.map_err(|Refusal { error, setting }| {
            let option = usize::try_from(setting).ok().and_then(|place| settings.get(place.checked_sub(1)?));
            let name = |setting: &Setting| setting.key.to_string_lossy().into_owned();
            MountFailure::Refused { error, option: option.map(name) }
        })?;
        mount.ok_or_else(|| refused(Errno::IO))
    }

    /// The settings of the filesystem context, in this order.
    fn settings(&self) -> std::result::Result<Vec<Setting>, Errno> {
        let text = |text: &[u8]| CString::new(text).map_err(|_| Errno::INVAL);
        let source = text(self.source.as_os_str().as_encoded_bytes())?;
        let mut settings = vec![Setting { key: text(SOURCE.as_bytes())?, value: Some(source) }];
        if self.options.is_read_only() {
            settings.push(Setting { key: c"ro".to_owned(), value: None });
        }
        for option in self.options.filesystem() {
            let value = option.value().map(|value| text(value.as_bytes())).transpose()?;
            settings.push(Setting { key: text(option.key().as_bytes())?, value });
        }
        Ok(settings)
    }
}

/// Refuses a type and a source that can never be mounted.
pub(crate) fn check(fs_type: &str, source: &Path, target: &Path) -> Result<()> {
    let refuse = |reason: &str| Err(Error::new(ErrorKind::InvalidInput, MOUNT, reason).at(target));
    if fs_type.is_empty() || fs_type.contains('\0') {
        return refuse("the type of filesystem is empty or contains a NUL");
    }
    let bytes = source.as_os_str().as_encoded_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        return refuse("the source is empty or contains a NUL");
    }
    paths::text(MOUNT, source)?;
    if source.is_absolute() && source.components().any(|part| part == Component::ParentDir) {
        return refuse("the source contains \"..\"");
    }
    Ok(())
}

/// Why the mount failed. It never contains the value of an option.
enum MountFailure {
    /// The kernel refused the option of this name, or the filesystem as a whole.
    Refused {
        error: Errno,
        option: Option<String>,
    },
    Unanswered(Error),
}
