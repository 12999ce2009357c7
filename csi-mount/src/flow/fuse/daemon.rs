//! The program that serves a filesystem, and how it is started.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};

use super::credentials;
use super::device::mount_fuse;
use super::memory::{MemoryGroup, MemoryLimit, over_memory_limit};
use super::mounter::{Mounter, source_with_pod};
use super::output::Output;
use super::processes::DaemonStart;
use super::secrets::Secrets;
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::options::MountOptions;
use crate::mounting::unmount::UNMOUNT_TIME_LIMIT;
use crate::place::target::Target;
use crate::sys::attributes::MountAttributes;
use crate::sys::descriptor_copies;
use crate::sys::process::{enter_control_group, inherit, limit_data};

const START: &str = "start the daemon";
/// The variable by which a program knows that the device had a daemon before.
const CONTINUES: &str = "CSI_MOUNT_FUSE_CONTINUES";
/// Half of the kubelet's time limit for a stage.
const READY_TIME_LIMIT: Duration = Duration::from_secs(60);
/// The longest pause of Kubernetes between two starts of a container, and the start itself.
const CONTINUE_TIME_LIMIT: Duration = Duration::from_secs(6 * 60);

/// A program that mounts a FUSE filesystem and serves it. `Debug` shows no environment values and no
/// secret.
///
/// The program can stay in the foreground or put itself into the background. From the driver's environment
/// it gets only `PATH`, in addition to what is set here.
///
/// What it prints is copied line by line into the driver's log (`tracing`, target `csi_mount::fuse_daemon`),
/// and the last lines are in the error of a stage that fails. The secret, each word in it, and values of the
/// environment from 8 bytes on are replaced there. The daemon writes to a file in memory, so it never waits
/// for the driver and lives on without it. While no driver process copies the output, the file grows; the
/// next [`stage`](crate::FuseVolumes::stage) continues the copy. A launcher that gives
/// its program another output (`systemd-run` without `--pipe`) takes this over.
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct FuseDaemon {
    pub(super) program: OsString,
    pub(super) arguments: Vec<Argument>,
    /// The options of a mount that this process makes.
    pub(super) device: Option<MountOptions>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) secret: Option<Vec<u8>>,
    pub(super) launcher: Vec<OsString>,
    pub(super) mounter: Option<Mounter>,
    pub(crate) identity: Option<OsString>,
    pub(super) ready_time_limit: Duration,
    pub(super) unmount_time_limit: Duration,
    pub(super) is_restarted: bool,
    pub(super) is_continued: bool,
    pub(super) continue_time_limit: Duration,
    pub(super) memory_limit: Option<u64>,
    pub(super) has_suid_and_dev: bool,
    /// Whether this process is its mounter.
    pub(super) is_in_mounter: bool,
}

/// One argument of the program.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Argument {
    Plain(OsString),
    /// `/dev/fd/N`.
    Device,
    /// A text, and after it the path of a file with this name and content.
    Credential {
        before: OsString,
        name: String,
        content: Vec<u8>,
    },
}

impl FuseDaemon {
    /// The program, by its path or by its name on `PATH`.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            device: None,
            environment: Vec::new(),
            secret: None,
            launcher: Vec::new(),
            mounter: None,
            identity: None,
            ready_time_limit: READY_TIME_LIMIT,
            unmount_time_limit: UNMOUNT_TIME_LIMIT,
            is_restarted: false,
            is_continued: false,
            continue_time_limit: CONTINUE_TIME_LIMIT,
            memory_limit: None,
            has_suid_and_dev: false,
            is_in_mounter: false,
        }
    }

    /// Adds an argument. Every user on the node can read arguments.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(Argument::Plain(argument.into()));
        self
    }

    /// Adds arguments. Every user on the node can read arguments.
    pub fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, arguments: I) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| Argument::Plain(argument.into())));
        self
    }

    /// Adds an argument that ends with the path of a file with this content: `--config=` and the path. Only the
    /// daemon's user can read the file, and only its path is in the argument.
    ///
    /// Each later [`stage`](crate::FuseVolumes::stage) of a running daemon replaces the file, so a program that
    /// reads it again gets new tokens without a restart. The name, of letters, digits, dots, dashes and underscores,
    /// is the file's; two files of a daemon have different names. The files are in the directory for temporary files,
    /// `TMPDIR` or `/tmp`, which should be in memory, and are removed with the daemon.
    ///
    /// ```
    /// use csi_mount::flow::fuse::FuseDaemon;
    /// let daemon = FuseDaemon::new("s3fs").arg("-o").arg_credential("passwd_file=", "keys", "key:secret");
    /// assert!(!format!("{daemon:?}").contains("key:secret"));
    /// ```
    pub fn arg_credential(
        mut self,
        before: impl Into<OsString>,
        name: impl Into<String>,
        content: impl Into<Vec<u8>>,
    ) -> Self {
        let before = before.into();
        self.arguments.push(Argument::Credential { before, name: name.into(), content: content.into() });
        self
    }

    /// Lets this process mount the filesystem, and adds the argument `/dev/fd/N` in place of a mount point: the
    /// open `/dev/fuse`, which the program inherits.
    ///
    /// The options are the kernel's (`allow_other`, `default_permissions`, `max_read`, mount attributes), and
    /// hold from the first moment. The program needs no `fusermount3` and no CAP_SYS_ADMIN, so a
    /// [launcher](Self::launcher) that executes it can take that away (`setpriv --bounding-set=-sys_admin`). A
    /// launcher that has another process start it does not pass the device on.
    ///
    /// A program in Rust takes the device by [`inherited_device`](super::inherited_device).
    /// Programs on libfuse 3.3 or later and on go-fuse can accept this argument: sshfs, fuse-overlayfs and
    /// gocryptfs do. One that does not can mount over `/dev/fuse` (bindfs), so try it first.
    ///
    /// ```
    /// use csi_mount::MountOptions;
    /// use csi_mount::flow::fuse::FuseDaemon;
    ///
    /// let options = MountOptions::parse(["allow_other", "default_permissions"])?;
    /// let daemon = FuseDaemon::new("sshfs").args(["-f", "user@host:/directory"]).arg_device(options);
    /// # drop(daemon);
    /// # Ok::<(), csi_mount::Error>(())
    /// ```
    pub fn arg_device(mut self, options: MountOptions) -> Self {
        self.device = Some(options);
        self.arguments.push(Argument::Device);
        self
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn program(&self) -> &std::ffi::OsStr {
        &self.program
    }

    /// Lets the mount of [`arg_device`](Self::arg_device) have set-user-ID programs and device nodes. Without this it has
    /// `nosuid` and `nodev`, also where the options don't say so: the program alone decides what its files are.
    pub fn allow_suid_and_dev(mut self) -> Self {
        self.has_suid_and_dev = true;
        self
    }

    /// Sets an environment variable. With a [launcher](Self::launcher), it reaches the program only if the
    /// launcher passes it on.
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// Sets a secret that the program reads from its standard input to the end: 64 KiB at most. Without a
    /// secret, standard input is empty.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Starts the program through this command, to which the program and its arguments are appended.
    ///
    /// With `["systemd-run", "--collect", "--pipe", "--unit=volume-1"]` or similar, the daemon is not a
    /// child of the driver and lives on when the driver's container ends. The launcher can end before the
    /// daemon, or stay. If the launcher has another program start the daemon, its command should contain a
    /// name for the volume, as `--unit` above: until such a daemon runs, a stage that is repeated after a
    /// crash can't see it.
    pub fn launcher<I: IntoIterator<Item: Into<OsString>>>(mut self, command: I) -> Self {
        self.launcher = command.into_iter().map(Into::into).collect();
        self
    }

    /// Starts the program in the pod of this mounter, instead of as a child of this process. It outlives this process
    /// there and needs no right to mount: it must have [`arg_device`](Self::arg_device), and stay in the foreground.
    ///
    /// Its output is in the log of that pod, and only the last lines of a program that ends are returned. The
    /// program must exist there, and [`launcher`](Self::launcher) can't be used.
    pub fn mounter(mut self, mounter: Mounter) -> Self {
        self.mounter = Some(mounter);
        self
    }

    /// Sets the words that identify what the daemon serves and how: for example a volume's id and its
    /// options.
    ///
    /// A stage that finds the place served under other words refuses it, also in a later process. The words
    /// are in the daemon's environment, and with a [launcher](Self::launcher) among its arguments, so don't
    /// put a secret in them.
    pub fn identity(mut self, identity: impl Into<OsString>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Sets how long to wait for the mount to appear and to answer. The default is one minute.
    pub fn ready_time_limit(mut self, limit: Duration) -> Self {
        self.ready_time_limit = limit;
        self
    }

    /// Sets how long to wait for an earlier daemon of the same place, which can still store what it has after an unmount,
    /// before it is killed; the time limit of [`unstage`](crate::FuseVolumes::unstage). The default is
    /// [`UNMOUNT_TIME_LIMIT`].
    pub fn unmount_time_limit(mut self, limit: Duration) -> Self {
        self.unmount_time_limit = limit;
        self
    }

    /// Starts the daemon again when it dies while its filesystem is staged, and binds the filesystem again at
    /// its targets. By default its death is only logged.
    ///
    /// This lasts as long as the driver's process, which keeps this value with its secret in memory; a later
    /// process continues it with the next [`stage`](crate::FuseVolumes::stage). A daemon
    /// that dies again soon is started after a pause of one second, which doubles each time up to one minute.
    /// The end of a daemon that is not visible from here is not noticed.
    pub fn restart_when_lost(mut self) -> Self {
        self.is_restarted = true;
        self
    }

    /// As [`restart_when_lost`](Self::restart_when_lost), and the next daemon continues the same mount: open files
    /// stay, and no user of the filesystem sees an error. For a program with a [`mounter`](Self::mounter).
    ///
    /// The program must be able to serve a device whose first request (`FUSE_INIT`) an earlier process has
    /// answered, with the numbers of files that this process gave. Its environment has
    /// `CSI_MOUNT_FUSE_CONTINUES=1` then. `flatfs` in examples/fuse can do it; programs on
    /// libfuse can't.
    ///
    /// The mounter and this process each keep the device open for that. A daemon that dies is replaced by the
    /// mounter, and after the end of the mounter this process gives the device to the next one. A later driver process
    /// gets it from the mounter. Until the next daemon answers, users wait, for at most the
    /// [`continue_time_limit`](Self::continue_time_limit). If none does, if it
    /// dies within a minute, or if the kernel is older than Linux 6.9, the mount is lost and the daemon is started as
    /// by `restart_when_lost`. If driver and mounter end at the same time, the volume is lost too.
    pub fn continue_when_lost(mut self) -> Self {
        self.is_continued = true;
        self.restart_when_lost()
    }

    /// Sets how long the users of a mount that can be [continued](Self::continue_when_lost) wait for the next mounter, while
    /// the pod of the last one exists: then they get an error. The default is six minutes, because Kubernetes starts a
    /// container again after pauses of up to five. For a pod that is gone it is 90 s at most.
    ///
    /// A driver can take it from a parameter of its class. One that has restarted takes the default until the volume is
    /// staged again.
    pub fn continue_time_limit(mut self, limit: Duration) -> Self {
        self.continue_time_limit = limit;
        self
    }

    /// Limits the memory of the daemon and of the processes that it starts, in bytes: with its part of the page
    /// cache, without what is swapped out. Over the limit the kernel kills all of them; the log and
    /// [`exceeded_memory_limit`](crate::FuseVolumes::exceeded_memory_limit) report it.
    ///
    /// Each daemon gets a control group (cgroup version 2, Linux 4.19) below the one of this process, which must
    /// be allowed to write there: in a privileged container, or by systemd with `Delegate=yes` and
    /// `DelegateSubgroup=csi-driver`. If its group has processes, they are moved to the child group `csi-driver`.
    /// A stage fails if a limit is not possible: [`Unsupported`](ErrorKind::Unsupported),
    /// [`PermissionDenied`](ErrorKind::PermissionDenied), or, with a [launcher](Self::launcher),
    /// [`InvalidInput`](ErrorKind::InvalidInput), because the launcher decides where the daemon runs
    /// (`systemd-run --property=MemoryMax=`).
    ///
    /// A repeated stage changes the limit of a running daemon, if that was started with one.
    ///
    /// In a [`mounter`](Self::mounter) that can't have a control group, as in a pod without privilege, each process of
    /// the daemon has the limit instead (`RLIMIT_DATA`, Linux 4.7). An allocation over it fails, which ends most
    /// programs, and the reason names the limit. It counts private writable memory, also memory that is reserved and not
    /// used: a thread's stack has 8 MiB, and Go takes 64 MiB at a time. It does not count shared memory and files. It
    /// stays as it is until the daemon's next start.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    pub(super) fn secrets(&self) -> Secrets {
        let values = self.environment.iter().map(|(_, value)| value.as_bytes());
        let credentials = self.credentials().map(|(_, content)| content);
        Secrets::new(self.secret.iter().map(Vec::as_slice).chain(credentials), values)
    }

    /// The files that the program reads, by their names.
    pub(super) fn credentials(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Credential { name, content, .. } => Some((name.as_str(), content.as_slice())),
            Argument::Plain(_) | Argument::Device => None,
        })
    }

    /// Refuses what contradicts itself.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |reason: &str, hint: &'static str| {
            let error = Error::new(ErrorKind::InvalidInput, START, reason.to_owned());
            Err(error.at(Path::new(&self.program)).hint(hint))
        };
        match &self.mounter {
            Some(_) if self.device.is_none() => {
                refuse("a daemon in another pod can't mount", "use FuseDaemon::arg_device")
            }
            Some(_) if !self.launcher.is_empty() => {
                refuse("a daemon in another pod has no launcher", "leave the launcher out")
            }
            None if self.is_continued => refuse(
                "a mount outlives its daemon only in another pod",
                "use FuseDaemon::mounter, or restart_when_lost",
            ),
            _ => Ok(()),
        }
    }

    /// Starts the daemon, to serve the place of this start, with the device of its mount if it does not mount.
    ///
    /// Invariant: when this returns, the child runs the program, and its close-on-exec descriptors are
    /// closed.
    pub(super) fn start(
        &self,
        start: &DaemonStart,
        output: &Output,
        device: Option<&OwnedFd>,
        first: First,
    ) -> Result<Child> {
        credentials::write(start.place(), self.credentials())?;
        let mut command = self.command(start, device);
        if first == First::Continues {
            command.env(CONTINUES, "1");
        }
        let memory = self.limit_memory(start.place())?;
        if let Some(device) = device {
            inherit(&mut command, device.as_fd());
        }
        // A launcher can give the program another output. This descriptor still shows whose daemon it is.
        inherit(&mut command, output.as_fd());
        let failed = |error| Error::os(START, Path::new(&self.program), error);
        command.stdin(self.input()?).process_group(0).current_dir("/");
        command.stdout(output.stdio().map_err(failed)?).stderr(output.stdio().map_err(failed)?);
        match memory {
            Some(MemoryLimit::Group(group)) => enter_control_group(&mut command, group.entrance()?),
            Some(MemoryLimit::EachProcess(bytes)) => limit_data(&mut command, bytes),
            None => {}
        }
        tracing::info!(daemon = ?self, at = %start.place().display(), "start a FUSE daemon");
        descriptor_copies::spawn(&mut command).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => failed(error)
                .with_kind(ErrorKind::MissingTool)
                .hint("install the program (with pods of its own, in their image), or use its full path"),
            _ => failed(error),
        })
    }

    fn limit_memory(&self, place: &Path) -> Result<Option<MemoryLimit>> {
        let Some(bytes) = self.memory_limit else { return Ok(None) };
        if !self.launcher.is_empty() {
            let reason = "the memory of a daemon that has a launcher can't be limited from here";
            let error = Error::new(ErrorKind::InvalidInput, START, reason).at(Path::new(&self.program));
            return Err(error.hint("let the launcher limit it: systemd-run --property=MemoryMax="));
        }
        let limit = if self.is_in_mounter { MemoryLimit::in_mounter } else { MemoryLimit::group };
        limit(place, bytes).map(Some)
    }

    /// What a message about its end says about its memory limit.
    pub(super) fn memory_reason(&self, place: &Path) -> String {
        match self.memory_limit {
            Some(bytes) if self.is_in_mounter && MemoryGroup::existing(place).is_none() => {
                format!(", with a limit of {bytes} bytes for the private memory of each process")
            }
            _ => over_memory_limit(place),
        }
    }

    /// Mounts the filesystem if the daemon does not, and returns its device.
    pub(super) fn mount(&self, staging: &Target) -> Result<Option<OwnedFd>> {
        let Some(options) = &self.device else { return Ok(None) };
        let forced = MountAttributes::NOSUID | MountAttributes::NODEV;
        let forced = if self.has_suid_and_dev { MountAttributes::empty() } else { forced };
        let options = &options.clone().with_attributes(forced);
        let source = Path::new(Path::new(&self.program).file_name().unwrap_or(&self.program));
        let pod = self.mounter.as_ref().and_then(|mounter| mounter.pod_of(staging.path()));
        match pod {
            Some(pod) => mount_fuse(START, &source_with_pod(source, &pod), options, staging),
            None => mount_fuse(START, source, options, staging),
        }
        .map(Some)
    }

    /// The arguments, with the device and the files among them.
    fn arguments(&self, place: &Path, device: Option<&OwnedFd>) -> Vec<OsString> {
        let directory = credentials::directory(place);
        let text = |argument: &Argument| match argument {
            Argument::Plain(text) => Some(text.clone()),
            Argument::Device => device.map(|device| format!("/dev/fd/{}", device.as_raw_fd()).into()),
            Argument::Credential { before, name, .. } => {
                let mut text = before.clone();
                text.push(directory.join(name));
                Some(text)
            }
        };
        self.arguments.iter().filter_map(text).collect()
    }

    fn command(&self, start: &DaemonStart, device: Option<&OwnedFd>) -> Command {
        let marks = start.processes().marks();
        let mut command = if self.launcher.is_empty() {
            Command::new(&self.program)
        } else {
            let mut command = Command::new(&self.launcher[0]);
            // The marks are set by `env`, because a launcher does not always pass the environment on.
            command
                .args(&self.launcher[1..])
                .arg("env")
                .args(marks.iter().map(assignment))
                .arg(&self.program);
            command
        };
        command.args(self.arguments(start.place(), device)).env_clear();
        if let Some(search) = std::env::var_os("PATH") {
            command.env("PATH", search);
        }
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command.envs(marks.iter().cloned());
        command
    }

    /// A pipe that already contains the secret, so that no thread has to stay to write it.
    fn input(&self) -> Result<Stdio> {
        let Some(secret) = &self.secret else { return Ok(Stdio::null()) };
        let failed = |error: io::Error| Error::os("pass a secret to", Path::new(&self.program), error);
        let (reader, mut writer) = io::pipe().map_err(failed)?;
        fcntl_setfl(&writer, OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        match writer.write(secret) {
            Ok(length) if length == secret.len() => Ok(reader.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(failed(error)),
            _ => {
                let reason = format!("the secret has {} bytes, more than fit into a pipe", secret.len());
                Err(Error::new(ErrorKind::InvalidInput, START, reason).at(Path::new(&self.program)))
            }
        }
    }
}

/// Whether a daemon is the first one of its mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    IsFirst,
    Continues,
}

/// Without the content of a file.
impl fmt::Debug for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => text.fmt(f),
            Self::Device => f.write_str("/dev/fd/N"),
            Self::Credential { before, name, .. } => write!(f, "{before:?}…/{name}"),
        }
    }
}

/// `KEY=value`, as `env` and the shell take it.
fn assignment((key, value): &(&str, OsString)) -> OsString {
    let mut text = OsString::from(format!("{key}="));
    text.push(value);
    text
}

impl fmt::Debug for FuseDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.environment.iter().map(|(key, _)| key).collect();
        f.debug_struct("FuseDaemon")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("environment", &keys)
            .field("launcher", &self.launcher)
            .field("identity", &self.identity)
            .field("memory_limit", &self.memory_limit)
            .field("mounter", &self.mounter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_nowhere() {
        let daemon = FuseDaemon::new("/no/such/daemon").arg("-f").env("TOKEN", "hunter2").secret("hunter2");
        let start = DaemonStart::new(Path::new("/staging"), None);
        let output = Output::new(start.place()).unwrap();
        let error = daemon.start(&start, &output, None, First::IsFirst).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingTool, "{error}");
        assert!(!format!("{daemon:?} {error:?}").contains("hunter2"));
        let error = daemon.secret(vec![0; 1 << 20]).start(&start, &output, None, First::IsFirst).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
