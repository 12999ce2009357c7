//! The kernel's NFS server, started without nfs-utils, directly through `/proc/fs/nfsd` and `/proc/net/rpc`.
//! A machine has only one such server, so a test that starts it must have the machine to itself.
//!
//! The caller mounts `nfsd` at [`CONTROL`] and a filesystem at [`EXPORT`]. Then it calls [`start`] and
//! [`export`].

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

/// The server's TCP port.
pub const PORT: u16 = 2049;

/// The exported directory, as a path on the server.
pub const EXPORT: &str = "/run/export";

/// Where the filesystem `nfsd` is mounted.
pub const CONTROL: &str = "/proc/fs/nfsd";

/// `NFSEXP_…` of `linux/nfsd/export.h`: any client port (`INSECURE_PORT`), `ASYNC`, `NOSUBTREECHECK`, and
/// `FSID` (the export has a number, 0).
const FLAGS: u32 = 0x0002 | 0x0010 | 0x0400 | 0x2000;

/// A time that is never reached, in seconds since 1970.
const NEVER: u32 = i32::MAX as u32;

/// Sets the loopback interface up: in an emulated machine it is down at boot.
pub fn raise_loopback() {
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(status.success(), "ip link set lo up: {status}");
}

/// Returns the number of the server's threads; none if [`CONTROL`] is not mounted.
pub fn threads() -> Option<u32> {
    fs::read_to_string(Path::new(CONTROL).join("threads")).ok()?.trim().parse().ok()
}

/// Starts the server, with versions 3 to 4.2. It begins with a grace period, in which no client can open an
/// NFSv4 file for about ten seconds.
///
/// # Panics
/// If a server runs: it refuses new versions. [`stop`] ends it.
pub fn start() {
    // The server's lock manager registers with the port mapper.
    static PORT_MAPPER: OnceLock<u16> = OnceLock::new();
    PORT_MAPPER.get_or_init(|| serve_rpc(111, agree));
    control("versions", "+3 +4 +4.1 +4.2");
    for time in ["nfsv4leasetime", "nfsv4gracetime"] {
        control(time, "10");
    }
    control("portlist", &format!("tcp {PORT}"));
    control("threads", "4");
}

/// Ends the grace period: no client has an earlier lock to reclaim. The write fails if the server already
/// knows that.
pub fn end_grace() {
    let _ = fs::write(Path::new(CONTROL).join("v4_end_grace"), "Y\n");
}

/// Exports [`EXPORT`] to the loopback address, as the root of NFSv4 too.
pub fn export() {
    tell("auth.unix.ip", &format!("nfsd 127.0.0.1 {NEVER} local"));
    tell("nfsd.export", &format!("local {EXPORT} {NEVER} {FLAGS} 65534 65534 0"));
    tell("nfsd.fh", &format!("local 1 \\x00000000 {NEVER} {EXPORT}"));
}

/// Stops the server's threads.
pub fn stop() {
    control("threads", "0");
}

/// Makes the server forget its exports, so that their filesystem can be unmounted.
pub fn forget_exports() {
    for channel in ["nfsd.fh", "nfsd.export"] {
        write(&PathBuf::from(format!("/proc/net/rpc/{channel}/flush")), &NEVER.to_string());
    }
}

/// Starts the service that an NFSv3 client queries first, for the life of the process. Returns its port.
pub fn mountd() -> u16 {
    serve_rpc(0, let_in)
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
    if procedure == 0 { Vec::new() } else { words(&[1]) }
}

/// A `mountd` that admits every client (RFC 1813, appendix I).
fn let_in(procedure: u32, arguments: &[u8]) -> Vec<u8> {
    const MNT: u32 = 1;
    const NO_ENTRY: u32 = 2;
    const AUTH_SYS: u32 = 1;
    if procedure != MNT {
        return Vec::new();
    }
    let path = String::from_utf8_lossy(bytes(arguments).0).into_owned();
    let Ok(handle) = handle(&path) else { return words(&[NO_ENTRY]) };
    let mut reply = words(&[0, handle.len() as u32]);
    reply.extend(&handle);
    reply.resize(reply.len().next_multiple_of(4), 0);
    reply.extend(words(&[1, AUTH_SYS]));
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

/// Returns the answer for a procedure's number and arguments.
type Answer = fn(u32, &[u8]) -> Vec<u8>;

/// Answers calls on this port of the loopback address for the life of the process. Returns the port.
fn serve_rpc(port: u16, answer: Answer) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A caller that disconnects does not affect the others.
            thread::spawn(move || drop(converse(connection, answer)));
        }
    });
    port
}

fn converse(mut connection: TcpStream, answer: Answer) -> io::Result<()> {
    loop {
        let mut mark = [0; 4];
        connection.read_exact(&mut mark)?;
        let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        connection.read_exact(&mut call)?;
        // The call has its number, its kind, the RPC version, the program, the program's version and the
        // procedure. The credential and the verifier follow, each with a flavor and bytes.
        let arguments = [(); 2].iter().fold(&call[24..], |rest, ()| bytes(&rest[4..]).1);
        // A reply to this number: accepted, without a verifier, success.
        let mut reply = [&call[..4], &words(&[1, 0, 0, 0, 0])].concat();
        reply.extend(answer(word(&call[20..]), arguments));
        let mark = (reply.len() as u32 | 0x8000_0000).to_be_bytes();
        connection.write_all(&[&mark[..], &reply].concat())?;
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// Returns these words as they go over the wire: each of four bytes, the highest first.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Reads a length and that many bytes, padded to whole words. Returns the bytes and the rest.
fn bytes(from: &[u8]) -> (&[u8], &[u8]) {
    let length = word(from) as usize;
    (&from[4..4 + length], &from[4 + length.next_multiple_of(4)..])
}
