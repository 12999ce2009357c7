//! The servers behind the programs: on loopback, on a free port, with keys of their own.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use csi_core::mount::{Mount, Target};

use crate::daemons::signal;

pub(crate) const USER: &str = "vendor";
/// The bucket with all volumes: a directory of the server's.
pub(super) const BUCKET: &str = "volumes";

/// A server with all its processes. It is killed at the end.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    fn start(command: &mut Command, port: u16) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "{command:?} does not listen");
            sleep(Duration::from_millis(10));
        }
        server
    }

    /// Sends a signal to the server and to the processes that serve its connections.
    pub(crate) fn signal(&self, name: &str) {
        signal(name, &descendants(self.child.id()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("KILL");
        self.child.wait().unwrap();
    }
}

/// A process, its children, and theirs.
fn descendants(process: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> =
        numbers.filter_map(|number| parent(number).map(|parent| (number, parent))).collect();
    let mut found = vec![process];
    let mut next = 0;
    while let Some(known) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == known).map(|(number, _)| number));
        next += 1;
    }
    found
}

/// The fourth field of proc_pid_stat(5). The second one is a name in parentheses, which can have spaces.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Starts an sshd, and returns the private key of its only user.
pub(super) fn sshd(state: &Path) -> (Server, String) {
    let port = free_port();
    let made = |name: &str| {
        let path = state.join(name);
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(&path);
        assert!(command.status().unwrap().success());
        (fs::read_to_string(&path).unwrap(), fs::read_to_string(path.with_extension("pub")).unwrap())
    };
    let ((_, host), (key, user)) = (made("host"), made("user"));
    fs::remove_file(state.join("user")).unwrap();
    fs::write(state.join("authorized"), user).unwrap();
    fs::write(state.join("known_hosts"), format!("[127.0.0.1]:{port} {host}")).unwrap();
    let place = state.display();
    let configuration = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {place}/host\nAuthorizedKeysFile {place}/authorized\n\
         PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n\
         AuthenticationMethods publickey\nMaxStartups 100\nSubsystem sftp internal-sftp\n"
    );
    fs::write(state.join("sshd_config"), configuration).unwrap();
    // sshd insists on this directory. Only this mount namespace gets it.
    Mount::new("tmpfs", "run").at(&Target::new("/run").unwrap()).unwrap();
    fs::create_dir("/run/sshd").unwrap();
    let program = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
    // sshd starts itself again for each connection, so it wants its full path.
    let mut command = Command::new(program.expect("sshd is installed"));
    (Server::start(command.args(["-D", "-f"]).arg(state.join("sshd_config")), port), key)
}

/// Starts a WebDAV server on a directory.
pub(super) fn webdav(directory: &Path, password: &str) -> Server {
    let port = free_port();
    let mut command = Command::new("rclone");
    command.args(["serve", "webdav", "--config", "", "--addr", &format!("127.0.0.1:{port}")]).arg(directory);
    Server::start(command.env("RCLONE_USER", USER).env("RCLONE_PASS", password), port)
}

/// Starts an S3 server. A directory in this one is a bucket, and a file in it is an object.
pub(super) fn s3(directory: &Path, state: &Path, key: &str) -> Server {
    let program = std::env::var_os("SYSTEMS_S3_SERVER").expect("cargo xtask test --systems fuse sets it");
    let attributes = state.join("attributes");
    fs::create_dir(&attributes).unwrap();
    fs::create_dir(directory.join(BUCKET)).unwrap();
    let port = free_port();
    let mut command = Command::new(program);
    command
        .args(["--port", &format!("127.0.0.1:{port}"), "posix", "--sidecar"])
        .arg(attributes)
        .arg(directory);
    Server::start(command.env("ROOT_ACCESS_KEY", USER).env("ROOT_SECRET_KEY", key), port)
}
