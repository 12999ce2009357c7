//! Mounting a filesystem: configured step by step, made, and only then put onto the target.

use std::ffi::{CString, c_int};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use crate::bounded::in_flight::{self, Subject, Unanswered};
use crate::detached::prepared::Prepared;
use crate::mounting::attach::{self, Attached};
use crate::mounting::diagnose;
use crate::mounting::legacy;
use crate::path::paths;
use crate::place::on_device::block_device_at;
use crate::place::target::{Seen, name_of};
use crate::sys::child::Question;
use crate::sys::features::{self, Feature};
use crate::sys::new_mount::{NewMount, Setting, Way};
use crate::table::details::{self, Details};
use crate::{Error, ErrorKind, FsOption, MountAttributes, MountOptions, Outcome, Result, Target};

pub(crate) const MOUNT: &str = "mount at";

/// A mount of a filesystem to be made.
///
/// The options go to the kernel one by one and never onto a command line, and its own words about them come
/// back in the error (`fsopen(2)`, `fsconfig(2)`, `fsmount(2)`; Linux 5.2, before that `mount(2)`, whose errors
/// are numbers). Mount helpers (`mount.nfs`) are not called.
///
/// [`RDONLY`](crate::MountAttributes::RDONLY) makes the mount read-only and, unless the filesystem is mounted
/// elsewhere, the filesystem too, so that nothing writes to the device.
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

/// How long a server or daemon is waited for where nothing else is said: half of what the kubelet waits for a stage.
pub const MOUNT_TIME_LIMIT: Duration = Duration::from_secs(60);

impl<'a> Mount<'a> {
    /// A mount of this type of filesystem (`"ext4"`, `"tmpfs"`) from this source: a block device, or whatever
    /// the filesystem takes for one. Where it takes none, the word is seen in the mount table.
    pub fn new(fs_type: &'a str, source: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { fs_type, source: source.as_ref(), options: MountOptions::new(), time_limit: None }
    }

    /// With these options.
    pub fn options(mut self, options: &MountOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// Waiting so long for the filesystem. Unless said otherwise it is [`MOUNT_TIME_LIMIT`] for filesystems behind which
    /// is a server or daemon, or may be one, and no limit for those that the kernel alone answers for.
    ///
    /// A mount with a limit is made by a child process that is killed when the time is over, one at a time for a source.
    /// One that can't even be killed is waited for by nobody; while it is there the next mount of the same source fails
    /// at once, so that no processes pile up.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Mounts it, unless the same filesystem is mounted there with the same attributes.
    ///
    /// The same is: the type, the block device by its number (or the source by its name where there is no
    /// device), and the attributes. Options of the filesystem are not compared, but one that was to be
    /// writable and turned read-only after an error is refused, and so is one that is dead or does not answer: whoever
    /// gets [`Outcome::AlreadyMounted`] has a filesystem that works. When it fails nothing new is mounted.
    ///
    /// # Errors
    /// - [`ErrorKind::AlreadyMounted`]: something else is mounted at the target, or with other attributes.
    /// - [`ErrorKind::NotFound`]: the device, or the directory to mount on, is not there.
    /// - [`ErrorKind::InvalidInput`]: an option that the filesystem does not take, a source that is no block
    ///   device or does not hold such a filesystem, or a target that is a symbolic link.
    /// - [`ErrorKind::Unsupported`]: the kernel does not have this filesystem.
    /// - [`ErrorKind::ReadOnly`]: the device is read-only, or the filesystem that is mounted there turned so.
    /// - [`ErrorKind::Busy`]: the device is in use in a way that does not go together with this mount.
    /// - [`ErrorKind::Damaged`]: the filesystem needs a check.
    /// - [`ErrorKind::Unresponsive`]: the server or daemon does not answer in time, to this mount or to the one that is
    ///   there; or it is gone.
    /// - [`ErrorKind::PermissionDenied`]: CAP_SYS_ADMIN is missing.
    pub fn at(self, target: &Target) -> Result<Outcome> {
        check(self.fs_type, self.source, target.path())?;
        attach::mount_once(
            MOUNT,
            target,
            |_, found| self.accept(target, found),
            |seen| self.mount(target, &seen),
        )
    }

    /// Takes what is mounted for this mount only if it is the same filesystem with the same attributes.
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
        let asked = self.options.attributes();
        if found.attributes != asked {
            let difference = format!("asked for {asked}, it is mounted with other attributes");
            return Err(attach::refuse(MOUNT, target, found, &difference));
        }
        if found.is_super_read_only && !self.options.is_read_only() {
            let reason = format!("the filesystem turned read-only, as after an error of its device: {found}");
            return Err(Error::new(ErrorKind::ReadOnly, MOUNT, reason)
                .at(target.path())
                .mend("see the kernel's log, unmount and check it"));
        }
        Ok(())
    }

    fn mount(&self, target: &Target, seen: &Seen) -> Result<Attached> {
        if seen.facts.file_type != rustix::fs::FileType::Directory {
            let reason = format!(
                "it is {}, and filesystems are mounted on directories",
                name_of(seen.facts.file_type)
            );
            return Err(Error::new(ErrorKind::InvalidInput, MOUNT, reason).at(target.path()));
        }
        attach::attach(MOUNT, self.prepared(target)?, target, seen, self.options.attributes())
    }

    /// The filesystem's mount in no place that anybody sees.
    pub(crate) fn prepared(&self, target: &Target) -> Result<Prepared> {
        let by = match self.time_limit.or(details::is_remote(self.fs_type).then_some(MOUNT_TIME_LIMIT)) {
            None => By::Caller,
            Some(limit) => By::Child { lane: self.lane(target), limit },
        };
        match self.goes_through_a_context() {
            true => self.detached(target, &by).map(Prepared::Detached),
            false => legacy::prepare(self.fs_type, self.source, &self.options, target, &by),
        }
    }

    /// What is mounted one after the other.
    fn lane(&self, target: &Target) -> Subject {
        let mut lane = format!("{}:{}", self.fs_type, self.source.display());
        // Each mount of FUSE is a filesystem of its own, whatever it calls itself.
        if self.fs_type.starts_with("fuse") {
            lane.push_str(&format!(" at {}", target.path().display()));
        }
        Subject::Mount(lane)
    }

    /// From 5.10 to 5.13 only `mount(2)` knows `nosymfollow`; `mount_setattr` came at about the time when `fsmount`
    /// learned it.
    fn goes_through_a_context(&self) -> bool {
        features::has(Feature::FsContext)
            && (features::has(Feature::MountSetattr)
                || !self.options.attributes().contains(MountAttributes::NOSYMFOLLOW))
    }

    /// The filesystem's mount in no namespace, with its attributes.
    pub(crate) fn detached(&self, target: &Target, by: &By) -> Result<OwnedFd> {
        let context = fsopen(self.fs_type, FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|error| diagnose::of_type(target, self.fs_type, error))?;
        self.make(&context, by).map_err(|failed| {
            let (error, option) = match failed {
                Failed::Silent(silence) => return silence.at(target.path()),
                Failed::Refused { error, option } => (error, option),
            };
            let what = format!("{} from {}", self.fs_type, self.source.display());
            let error = target.error(MOUNT, error).because(what);
            let error =
                diagnose::context_log(&context, &self.options).into_iter().fold(error, Error::because);
            match option {
                None => diagnose::explained(error, self.source, &self.options),
                Some(key) => error.mend(format!("the filesystem does not take the option {key} so")),
            }
        })
    }

    fn make(&self, context: &OwnedFd, by: &By) -> std::result::Result<OwnedFd, Failed> {
        let attributes = self.options.attributes().bits() as u32;
        let settings = self.settings().map_err(|error| Failed::Refused { error, option: None })?;
        let By::Child { lane, limit } = by else {
            for setting in &settings {
                let set = match &setting.value {
                    Some(value) => fsconfig_set_string(context, &*setting.key, &**value),
                    None => fsconfig_set_flag(context, &*setting.key),
                };
                set.map_err(|error| Failed::Refused { error, option: Some(name(setting)) })?;
            }
            let whole = |error| Failed::Refused { error, option: None };
            fsconfig_create(context).map_err(whole)?;
            let attributes = MountAttrFlags::from_bits_retain(attributes);
            return fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(whole);
        };
        let way = Way::Context { context: context.as_fd(), settings: &settings, attributes };
        let named = named_descriptors(&self.options);
        let question = Question::Mount(NewMount { way, named: &named });
        let (answer, mount) = in_flight::ask(lane.clone(), question, *limit).map_err(silent)?;
        mount.ok_or_else(|| {
            let option =
                usize::try_from(answer.setting).ok().and_then(|place| settings.get(place.checked_sub(1)?));
            let error = Errno::from_raw_os_error(answer.error as i32);
            Failed::Refused { error, option: option.map(name) }
        })
    }

    /// What the filesystem's context is told, in this order.
    fn settings(&self) -> std::result::Result<Vec<Setting>, Errno> {
        let text = |text: &[u8]| CString::new(text).map_err(|_| Errno::INVAL);
        let source = text(self.source.as_os_str().as_encoded_bytes())?;
        let mut settings = vec![Setting { key: c"source".to_owned(), value: Some(source) }];
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
        return refuse("the type of filesystem is empty or holds a NUL");
    }
    let bytes = source.as_os_str().as_encoded_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        return refuse("the source is empty or holds a NUL");
    }
    paths::text(MOUNT, source)?;
    if source.is_absolute() && source.components().any(|part| part == Component::ParentDir) {
        return refuse("the source holds \"..\"");
    }
    Ok(())
}

/// Who makes a mount.
#[derive(Debug)]
pub(crate) enum By {
    /// The thread that asks for it.
    Caller,
    /// A child process, one at a time for a lane, that is killed when the time is over.
    Child { lane: Subject, limit: Duration },
}

/// Why there is no mount. It never holds an option's value.
enum Failed {
    /// The kernel refused an option of this name, or the filesystem as a whole.
    Refused {
        error: Errno,
        option: Option<String>,
    },
    Silent(Error),
}

fn name(setting: &Setting) -> String {
    setting.key.to_string_lossy().into_owned()
}

fn silent(unanswered: Unanswered) -> Failed {
    Failed::Silent(no_answer(unanswered))
}

/// The error of a mount that its child did not make.
pub(crate) fn no_answer(unanswered: Unanswered) -> Error {
    Error::os("wait for the server of", "", std::io::Error::from(unanswered))
        .mend("see whether the server can be reached")
}

/// The descriptors that options of FUSE and 9p name by their numbers.
pub(crate) fn named_descriptors(options: &MountOptions) -> Vec<c_int> {
    let is_descriptor = |option: &&FsOption| ["fd", "rfdno", "wfdno"].contains(&option.key());
    let named = options.filesystem().iter().filter(is_descriptor);
    named.filter_map(|option| option.value()?.parse().ok()).collect()
}
