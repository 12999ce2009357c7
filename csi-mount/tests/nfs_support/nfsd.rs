//! The kernel's NFS server, started without nfs-utils, directly through `/proc/fs/nfsd` and `/proc/net/rpc`.
//! A machine has only one such server, so the test must have the machine to itself.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use csi_mount::{Mount, Target};

use super::rpc;

pub(crate) const PORT: u16 = 2049;

/// The exported directory, as a path on the server. `share` inside it is for volumes.
pub(crate) const EXPORT: &str = "/run/export";

const CONTROL: &str = "/proc/fs/nfsd";

/// `NFSEXP_…` of `linux/nfsd/export.h`: any client port, asynchronous, no subtree check, and fsid 0.
const FLAGS: u32 = 0x0002 | 0x0010 | 0x0400 | 0x2000;

/// A time that is never reached, in seconds since 1970.
const NEVER: u32 = i32::MAX as u32;

/// Exports a directory in memory until the machine ends. The server is started only once: it begins with a
/// grace period, in which no client can open an NFSv4 file for about ten seconds.
pub(crate) fn start() {
    let is_running = fs::read_to_string(Path::new(CONTROL).join("threads"));
    if is_running.is_ok_and(|threads| threads.trim() != "0") {
        return;
    }
    // The loopback interface of the emulated machine is down at boot.
    let raised = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(raised.success(), "ip link set lo up: {raised}");
    Mount::new("nfsd", "nfsd").at(&Target::new(CONTROL).unwrap()).unwrap();
    let export = Target::new(EXPORT).unwrap();
    export.create_dir().unwrap();
    Mount::new("tmpfs", "export").at(&export).unwrap();
    fs::create_dir(export.path().join("share")).unwrap();

    // The server's lock manager registers with the port mapper.
    rpc::serve(111, agree);
    control("versions", "+3 +4 +4.1 +4.2");
    for time in ["nfsv4leasetime", "nfsv4gracetime"] {
        control(time, "10");
    }
    control("portlist", &format!("tcp {PORT}"));
    control("threads", "4");
    tell("auth.unix.ip", &format!("nfsd 127.0.0.1 {NEVER} local"));
    tell("nfsd.export", &format!("local {EXPORT} {NEVER} {FLAGS} 65534 65534 0"));
    tell("nfsd.fh", &format!("local 1 \\x00000000 {NEVER} {EXPORT}"));
}

/// Starts the service that an NFSv3 client queries first, for the life of the process. Returns its port.
pub(crate) fn mountd() -> u16 {
    rpc::serve(0, let_in)
}

fn control(file: &str, text: &str) {
    write(&Path::new(CONTROL).join(file), text);
}

/// Writes what the server would otherwise request from `mountd`.
fn tell(channel: &str, text: &str) {
    write(&PathBuf::from(format!("/proc/net/rpc/{channel}/channel")), text);
}

fn write(path: &Path, text: &str) {
    let file = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {text:?}: {error}", path.display()));
}

/// An `rpcbind` that agrees to everything.
fn agree(procedure: u32, _: &[u8]) -> Vec<u8> {
    if procedure == 0 { Vec::new() } else { rpc::words(&[1]) }
}

/// A `mountd` that admits every client (RFC 1813, appendix I).
fn let_in(procedure: u32, arguments: &[u8]) -> Vec<u8> {
    const MNT: u32 = 1;
    const NO_ENTRY: u32 = 2;
    const AUTH_SYS: u32 = 1;
    if procedure != MNT {
        return Vec::new();
    }
    let path = String::from_utf8_lossy(rpc::bytes(arguments).0).into_owned();
    let Ok(handle) = handle(&path) else { return rpc::words(&[NO_ENTRY]) };
    let mut reply = rpc::words(&[0, handle.len() as u32]);
    reply.extend(&handle);
    reply.resize(reply.len().next_multiple_of(4), 0);
    reply.extend(rpc::words(&[1, AUTH_SYS]));
    reply
}

/// Returns the file handle by which the server knows a directory.
fn handle(path: &str) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).write(true).open(Path::new(CONTROL).join("filehandle"))?;
    file.write_all(format!("local {path} 64\n").as_bytes())?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let hex = text.trim().strip_prefix("\\x").unwrap_or_else(|| panic!("no handle: {text:?}"));
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    Ok((0..hex.len()).step_by(2).map(byte).collect())
}
