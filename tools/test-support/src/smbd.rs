//! Samba's file server `smbd` on the loopback address, with a configuration and directories of its own.
//!
//! `smbd` and not the kernel's `ksmbd`: Linux 5.10 has no `ksmbd`, and only processes can be stopped and killed.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::process::until;

/// The server's TCP port.
pub const PORT: u16 = 4450;

/// The kernel's client makes all channels but the first one to the usual port.
const OTHER_CHANNELS: u16 = 445;

/// The share, as a source of mounts.
pub const SHARE: &str = "//127.0.0.1/share";

/// The name by which clients know the user.
pub const USER: &str = "csi-user";

/// The user on this machine: Samba takes only users that the machine has, and an emulated one has no other.
const ACCOUNT: &str = "root";

/// A server that runs until it is dropped. It is not a child of this process.
#[derive(Debug)]
pub struct Smbd {
    directory: PathBuf,
}

impl Smbd {
    /// Starts the server. Its files are in this empty directory; the share is the directory `share` in it.
    pub fn start(directory: &Path, password: &str) -> Self {
        for name in ["share", "state"] {
            fs::create_dir(directory.join(name)).unwrap();
        }
        fs::write(directory.join("smb.conf"), configuration(directory)).unwrap();
        fs::write(directory.join("state/users"), format!("{ACCOUNT} = {USER}\n")).unwrap();
        let server = Self { directory: directory.to_owned() };
        server.set_password(password);
        server.start_again();
        server
    }

    /// The shared directory, as the server sees it.
    pub fn share(&self) -> PathBuf {
        self.directory.join("share")
    }

    /// Changes the user's password. Sessions that exist stay.
    pub fn set_password(&self, password: &str) {
        let mut program = Command::new("smbpasswd");
        program.arg("-c").arg(self.configuration()).args(["-L", "-s", "-a", ACCOUNT]);
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        write!(program.stdin.take().unwrap(), "{password}\n{password}\n").unwrap();
        assert!(program.wait().unwrap().success(), "smbpasswd");
    }

    /// Starts the server after [`kill`](Self::kill), and waits until it accepts connections.
    pub fn start_again(&self) {
        let option = format!("--configfile={}", self.configuration().display());
        let log = format!("--log-basename={}", self.directory.display());
        let status = Command::new("smbd").args(["--daemon", &option, &log]).status().unwrap();
        assert!(status.success(), "smbd: {status}");
        until("smbd accepts connections", || TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_ok());
    }

    /// Stops all processes of the server: connections stay, and nothing is answered.
    pub fn stop(&self) {
        kill_process_group(self.group().unwrap(), Signal::STOP).unwrap();
    }

    /// Undoes [`stop`](Self::stop).
    pub fn go_on(&self) {
        kill_process_group(self.group().unwrap(), Signal::CONT).unwrap();
    }

    /// Kills all processes of the server, and waits for their end: connections are refused.
    pub fn kill(&self) {
        let Some(group) = self.group() else { return };
        // The group can end on its own meanwhile.
        let _ = kill_process_group(group, Signal::KILL);
        until("smbd ends", || test_kill_process_group(group).is_err());
    }

    fn configuration(&self) -> PathBuf {
        self.directory.join("smb.conf")
    }

    /// The process group of the server. None before its first start.
    fn group(&self) -> Option<Pid> {
        let number = fs::read_to_string(self.directory.join("state/smbd.pid")).ok()?;
        Pid::from_raw(number.trim().parse().ok()?)
    }
}

impl Drop for Smbd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn configuration(directory: &Path) -> String {
    let state = directory.join("state");
    let state = state.display();
    let directories: String =
        ["private dir", "lock directory", "state directory", "cache directory", "pid directory"]
            .map(|name| format!("{name} = {state}\n"))
            .concat();
    format!(
        "[global]\n\
         server role = standalone server\n\
         interfaces = \"127.0.0.1;if_index=1,speed=1000000000,capability=RSS\"\n\
         bind interfaces only = yes\n\
         smb ports = {PORT} {OTHER_CHANNELS}\n\
         {directories}\
         ncalrpc dir = {state}/ncalrpc\n\
         passdb backend = smbpasswd:{state}/smbpasswd\n\
         guest account = {ACCOUNT}\n\
         username map = {state}/users\n\
         server multi channel support = yes\n\
         load printers = no\n\
         disable spoolss = yes\n\
         host msdfs = no\n\
         [share]\n\
         path = {}\n\
         read only = no\n",
        directory.join("share").display()
    )
}
