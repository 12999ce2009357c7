//! A driver for FUSE programs that others wrote. Each program is one row of every `match`.

mod controller;
mod servers;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use csi_core::mount::MountOptions;
use csi_core::mount::flow::fuse::{FuseDaemon, Mounter, MounterServer};
use csi_core::types::MountFlags;
use csi_core::*;

pub(crate) use servers::Server;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Sshfs,
    RcloneLocal,
    RcloneWebdav,
    Gocryptfs,
    Bindfs,
    FuseOverlayfs,
    S3fs,
}

impl Program {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RcloneLocal => "rclone, a directory",
            Self::RcloneWebdav => "rclone, WebDAV",
            _ => self.command(),
        }
    }

    /// The name of its process.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Sshfs => "sshfs",
            Self::RcloneLocal | Self::RcloneWebdav => "rclone",
            Self::Gocryptfs => "gocryptfs",
            Self::Bindfs => "bindfs",
            Self::FuseOverlayfs => "fuse-overlayfs",
            Self::S3fs => "s3fs",
        }
    }

    /// The line of its output that has its version.
    pub(crate) fn version(self) -> String {
        let argument = match self {
            Self::RcloneLocal | Self::RcloneWebdav => "version",
            Self::Gocryptfs => "-version",
            _ => "--version",
        };
        let output = Command::new(self.command()).arg(argument).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_own = |line: &&str| line.to_lowercase().starts_with(self.command());
        text.lines().find(is_own).unwrap_or(&text).to_owned()
    }
}

/// Who mounts the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountedBy {
    Program,
    /// The program gets the open device.
    Driver,
    /// The same from a mounter, as another user and without capabilities.
    DriverForMounter,
}

const MOUNTER: &str = "FUSE_PROGRAMS_MOUNTER";
/// The user of a mounter.
const USER: u32 = 65534;

/// This is not a test. It is the mounter, if this program was started as one.
#[test]
fn serve_as_mounter() {
    let Some(directory) = std::env::var_os(MOUNTER) else { return };
    MounterServer::bind(directory).unwrap().serve();
}

/// A mounter's process, which ends with the test.
struct MounterProcess(Child, Mounter);

impl MounterProcess {
    fn start(directory: &Path) -> Self {
        fs::create_dir(directory).unwrap();
        chown(directory, Some(USER), Some(USER)).unwrap();
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "fuse_programs::serve_as_mounter", "--nocapture"]).env(MOUNTER, directory);
        let child =
            program.env("TMPDIR", directory).uid(USER).gid(USER).stdin(Stdio::null()).spawn().unwrap();
        Self(child, Mounter::at(directory))
    }
}

impl Drop for MounterProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The driver. Everything that it makes is below one directory.
pub(crate) struct Vendor {
    pub(crate) program: Program,
    mounted_by: MountedBy,
    place: PathBuf,
    pub(crate) server: Option<Server>,
    secret: String,
    mounter: Option<MounterProcess>,
    /// Where each volume was mounted last.
    mounted: Mutex<BTreeMap<String, PathBuf>>,
}

impl Vendor {
    /// Starts the program's server, if it has one.
    pub(crate) fn start(program: Program, mounted_by: MountedBy, place: &Path) -> Self {
        for directory in ["volumes", "state"] {
            fs::create_dir(place.join(directory)).unwrap();
        }
        let state = place.join("state");
        let volumes = place.join("volumes");
        let (server, secret) = match program {
            Program::Sshfs => {
                let (server, key) = servers::sshd(&state);
                (Some(server), key)
            }
            Program::RcloneWebdav => {
                let password = "correct-horse-battery".to_owned();
                (Some(servers::webdav(&volumes, &password)), password)
            }
            Program::S3fs => {
                let key = "correct-horse-battery".to_owned();
                (Some(servers::s3(&volumes, &state, &key)), key)
            }
            _ => (None, "correct-horse-battery".to_owned()),
        };
        let mounter = (mounted_by == MountedBy::DriverForMounter).then(|| {
            for directory in [place, &place.join("state")] {
                fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
            }
            MounterProcess::start(&place.join("state/mounter"))
        });
        let mounted = Mutex::default();
        Self { program, mounted_by, place: place.to_owned(), server, secret, mounter, mounted }
    }

    pub(crate) fn name(&self) -> String {
        match self.mounted_by {
            MountedBy::Program => self.program.name().to_owned(),
            MountedBy::Driver => format!("{} with a device", self.program.name()),
            MountedBy::DriverForMounter => format!("{} in a mounter", self.program.name()),
        }
    }

    /// What the caller sends with each stage and publish.
    pub(crate) fn secrets(&self) -> BTreeMap<String, String> {
        [("key".to_owned(), self.secret.clone())].into()
    }

    /// Where the volumes' data is.
    pub(crate) fn volumes(&self) -> PathBuf {
        match self.program {
            Program::S3fs => self.place.join("volumes").join(servers::BUCKET),
            _ => self.place.join("volumes"),
        }
    }

    fn volume(&self, id: &str) -> PathBuf {
        self.volumes().join(id)
    }

    /// The program's own files: keys and caches.
    fn state(&self, name: &str) -> PathBuf {
        self.place.join("state").join(name)
    }

    /// Where a file of the volume is stored; none if it can't be read there.
    pub(crate) fn stored(&self, id: &str, file: &str) -> Option<PathBuf> {
        match self.program {
            Program::Gocryptfs => None,
            Program::FuseOverlayfs => Some(self.volume(id).join("upper").join(file)),
            _ => Some(self.volume(id).join(file)),
        }
    }

    /// Makes an empty volume, as CreateVolume would.
    pub(crate) fn create(&self, id: &str) {
        let volume = self.volume(id);
        fs::create_dir(&volume).unwrap();
        match self.program {
            Program::Gocryptfs => {
                // The key is derived in a time that a test can wait for.
                let mut init = Command::new("gocryptfs");
                init.args(["-init", "-q", "-scryptn", "10"]).arg(&volume);
                if self.mounter.is_some() {
                    chown(&volume, Some(USER), Some(USER)).unwrap();
                    init.uid(USER).gid(USER);
                }
                answered(&mut init, &self.secret);
            }
            Program::FuseOverlayfs => {
                for part in ["lower", "upper", "work"] {
                    fs::create_dir(volume.join(part)).unwrap();
                }
            }
            _ => {}
        }
    }

    /// Adds the mount point as the last argument, or the device in its place.
    fn mounted(&self, daemon: FuseDaemon, at: &Path) -> FuseDaemon {
        let options = MountOptions::parse(["allow_other", "default_permissions", "nosuid", "nodev"]);
        match self.mounted_by {
            MountedBy::Program => daemon.arg(at),
            MountedBy::DriverForMounter => daemon.arg_device(options.unwrap()),
            MountedBy::Driver => {
                // Without CAP_SYS_ADMIN a program could not mount it.
                let launcher = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
                daemon.arg_device(options.unwrap()).launcher(launcher)
            }
        }
    }

    fn sshfs(&self, id: &str, secret: &str, at: &Path) -> FuseDaemon {
        let key = self.state(&format!("{id}.key"));
        write_private(&key, secret);
        let server = self.server.as_ref().unwrap();
        let known_hosts = self.state("known_hosts");
        let daemon = FuseDaemon::new("sshfs")
            .args(["-f", "-F", "/dev/null", "-p", &server.port.to_string()])
            .args(["-o", "allow_other,default_permissions", "-o", "IdentitiesOnly=yes,BatchMode=yes"])
            // Without these a server that does not answer keeps its client waiting for ever.
            .args(["-o", "ConnectTimeout=5,ServerAliveInterval=2,ServerAliveCountMax=2"])
            .args(["-o", "StrictHostKeyChecking=yes", "-o"])
            .arg(format!("IdentityFile={},UserKnownHostsFile={}", key.display(), known_hosts.display()))
            .arg(format!("root@127.0.0.1:{}", self.volume(id).display()));
        self.mounted(daemon, at)
    }

    fn rclone(&self, id: &str, source: String, at: &Path) -> FuseDaemon {
        FuseDaemon::new("rclone")
            .args(["mount", "--allow-other", "--vfs-cache-mode", "writes"])
            // By default it stores a file five seconds after its close, and an unmount does not wait for that.
            .args(["--vfs-write-back", "0s"])
            .args(["--timeout", "5s", "--contimeout", "5s", "--retries", "1", "--low-level-retries", "1"])
            .arg("--cache-dir")
            .arg(self.state(&format!("{id}.cache")))
            .arg(source)
            .arg(at)
    }

    fn s3fs(&self, id: &str, secret: &str, at: &Path) -> FuseDaemon {
        let server = self.server.as_ref().unwrap();
        let keys = self.state(&format!("{id}.keys"));
        write_private(&keys, &format!("{}:{secret}\n", servers::USER));
        // It stores a file at its close, and keeps it here until then.
        let files = self.state(&format!("{id}.files"));
        fs::create_dir_all(&files).unwrap();
        FuseDaemon::new("s3fs")
            .args([&format!("{}:/{id}", servers::BUCKET), "-f", "-o", "allow_other,use_path_request_style"])
            .args(["-o", "connect_timeout=5,readwrite_timeout=5,retries=1"])
            .args(["-o", &format!("url=http://localhost:{}", server.port), "-o"])
            .arg(format!("passwd_file={},tmpdir={}", keys.display(), files.display()))
            .arg(at)
    }

    fn webdav(&self, id: &str, secret: &str, at: &Path) -> FuseDaemon {
        let server = self.server.as_ref().unwrap();
        let password = answered(Command::new("rclone").args(["obscure", "-"]), secret);
        let port = server.port;
        let user = servers::USER;
        let password = password.trim();
        let configuration = format!(
            "[store]\ntype = webdav\nvendor = other\nurl = http://localhost:{port}\nuser = {user}\n\
             pass = {password}\n"
        );
        // Not by the environment: the name of the cache would then contain a hash of the obscured password,
        // which differs at each start, and what was not stored yet would never be.
        let file = self.state(&format!("{id}.conf"));
        write_private(&file, &configuration);
        self.rclone(id, format!("store:{id}"), at).arg("--config").arg(file)
    }
}

#[async_trait]
impl FuseFilesystems for Vendor {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }

    async fn daemon(&self, volume: &Attachment, flags: &MountFlags, at: &Path) -> Result<FuseDaemon> {
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        let id = volume.volume_id.as_str();
        let secret = volume.secrets.require("key")?;
        self.mounted.lock().unwrap().insert(id.to_owned(), at.to_owned());
        let source = self.volume(id);
        let daemon = match self.program {
            Program::Sshfs => self.sshfs(id, secret, at),
            Program::RcloneLocal => self.rclone(id, source.display().to_string(), at).args(["--config", ""]),
            Program::RcloneWebdav => self.webdav(id, secret, at),
            Program::Gocryptfs => {
                let daemon = FuseDaemon::new("gocryptfs").args(["-fg", "-q", "-nosyslog", "-allow_other"]);
                self.mounted(daemon.arg(source), at).secret(format!("{secret}\n"))
            }
            Program::S3fs => self.s3fs(id, secret, at),
            Program::Bindfs => FuseDaemon::new("bindfs").arg("-f").arg(source).arg(at),
            Program::FuseOverlayfs => {
                let [lower, upper, work] = ["lower", "upper", "work"].map(|part| source.join(part));
                let lower = lower.display();
                let upper = upper.display();
                let work = work.display();
                let daemon = FuseDaemon::new("fuse-overlayfs")
                    .args(["-f", "-o", "allow_other", "-o"])
                    .arg(format!("lowerdir={lower},upperdir={upper},workdir={work}"));
                self.mounted(daemon, at)
            }
        };
        let daemon = daemon.args(flags.iter().flat_map(|flag| ["-o", flag]));
        Ok(daemon.ready_time_limit(Duration::from_secs(10)))
    }

    fn mounter(&self) -> Option<Mounter> {
        self.mounter.as_ref().map(|mounter| mounter.1.clone())
    }

    fn unmount_time_limit(&self) -> Duration {
        Duration::from_secs(5)
    }
}

fn write_private(path: &Path, text: &str) {
    let mut file =
        fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Runs a command with this on its standard input, and returns what it printed.
fn answered(command: &mut Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{input}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
