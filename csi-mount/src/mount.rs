//! Mounting a filesystem: configured step by step, made, and only then put onto the target.

use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use crate::attach::{self, Attached, Prepared};
use crate::details::{self, Details};
use crate::diagnose;
use crate::sys::features::{self, Feature};
use crate::target::{Seen, name_of};
use crate::{
    Error, ErrorKind, MountAttributes, MountOptions, Outcome, Result, Target, legacy_mount, patience,
};

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
    /// A mount with a limit is made on a thread of its own. One that comes too late is dropped unseen; while it is
    /// still waited for, the next one of the same source fails at once, so that no threads pile up.
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
        self.check(target)?;
        attach::mount_once(
            MOUNT,
            target,
            |_, found| self.accept(target, found),
            |seen| self.mount(target, &seen),
        )
    }

    fn check(&self, target: &Target) -> Result<()> {
        let refuse = |reason: &str| Err(Error::new(ErrorKind::InvalidInput, MOUNT, reason).at(target.path()));
        if self.fs_type.is_empty() || self.fs_type.contains('\0') {
            return refuse("the type of filesystem is empty or holds a NUL");
        }
        let source = self.source.as_os_str().as_encoded_bytes();
        if source.is_empty() || source.contains(&0) {
            return refuse("the source is empty or holds a NUL");
        }
        if self.source.is_absolute() && self.source.components().any(|part| part == Component::ParentDir) {
            return refuse("the source holds \"..\"");
        }
        Ok(())
    }

    /// Takes what is mounted for this mount only if it is the same filesystem with the same attributes.
    fn accept(&self, target: &Target, found: &Details) -> Result<()> {
        let device = details::block_device_at(self.source.as_os_str());
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
        let is_remote = details::is_remote(self.fs_type);
        let Some(limit) = self.time_limit.or(is_remote.then_some(MOUNT_TIME_LIMIT)) else {
            return self.prepare(target, self.goes_through_a_context());
        };
        let (fs_type, source) = (self.fs_type.to_owned(), self.source.to_owned());
        let mut key = format!("{fs_type}:{}", source.display());
        // Each mount of FUSE is a filesystem of its own, whatever it calls itself.
        if fs_type.starts_with("fuse") {
            key.push_str(&format!(" at {}", target.path().display()));
        }
        let (options, is_new) = (self.options.clone(), self.goes_through_a_context());
        let place = Target::new(target.path())?;
        let make = move || {
            Mount { fs_type: &fs_type, source: &source, options, time_limit: None }.prepare(&place, is_new)
        };
        patience::within(&key, limit, make).map_err(|error| error.at(target.path()))?
    }

    fn prepare(&self, target: &Target, is_new: bool) -> Result<Prepared> {
        match is_new {
            true => self.detached(target).map(Prepared::Detached),
            false => legacy_mount::prepare(self.fs_type, self.source, &self.options, target),
        }
    }

    /// From 5.10 to 5.13 only `mount(2)` knows `nosymfollow`; `mount_setattr` came at about the time when `fsmount`
    /// learned it.
    fn goes_through_a_context(&self) -> bool {
        features::has(Feature::FsContext)
            && (features::has(Feature::MountSetattr)
                || !self.options.attributes().contains(MountAttributes::NOSYMFOLLOW))
    }

    /// The filesystem's mount in no namespace, with its attributes.
    pub(crate) fn detached(&self, target: &Target) -> Result<OwnedFd> {
        let context = fsopen(self.fs_type, FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|error| diagnose::of_type(target, self.fs_type, error))?;
        let mount = self.configure(&context).and_then(|()| {
            let failed = |error| Failed { step: Step::Create, error };
            fsconfig_create(&context).map_err(failed)?;
            let attributes = MountAttrFlags::from_bits_retain(self.options.attributes().bits() as u32);
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed)
        });
        mount.map_err(|Failed { step, error }| {
            let what = format!("{} from {}", self.fs_type, self.source.display());
            let error = target.error(MOUNT, error).because(what);
            let error =
                diagnose::context_log(&context, &self.options).into_iter().fold(error, Error::because);
            match step {
                Step::Create => diagnose::explained(error, self.source, &self.options),
                Step::Option(key) => error.mend(format!("the filesystem does not take the option {key} so")),
            }
        })
    }

    fn configure(&self, context: &OwnedFd) -> std::result::Result<(), Failed> {
        let failed = |key: &str| {
            let step = Step::Option(key.to_owned());
            move |error| Failed { step, error }
        };
        fsconfig_set_string(context, "source", self.source).map_err(failed("source"))?;
        if self.options.is_read_only() {
            fsconfig_set_flag(context, "ro").map_err(failed("ro"))?;
        }
        for option in self.options.filesystem() {
            let set = match option.value() {
                Some(value) => fsconfig_set_string(context, option.key(), value),
                None => fsconfig_set_flag(context, option.key()),
            };
            set.map_err(failed(option.key()))?;
        }
        Ok(())
    }
}

/// What the kernel refused. It never holds an option's value.
struct Failed {
    step: Step,
    error: Errno,
}

enum Step {
    /// An option of this name.
    Option(String),
    /// The filesystem with all its options.
    Create,
}
