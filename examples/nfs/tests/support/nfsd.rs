//! The kernel's NFS server, started without nfs-utils, which also use only `/proc/fs/nfsd`
//! and `/proc/net/rpc`.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use csi_mount::{Mount, Target, unmount};
use nfs::try_out::Class;

use super::rpc;

/// From `linux/nfsd/export.h`: NFSEXP_INSECURE_PORT (any port), NFSEXP_ASYNC, NFSEXP_NOSUBTREECHECK, and
/// NFSEXP_FSID (the export has a number, 0).
const FLAGS: u32 = 0x0002 | 0x0010 | 0x0400 | 0x2000;

/// The exported directory, as the server sees it.
const EXPORT: &str = "/run/export";

/// A time that never comes, in seconds since 1970.
const NEVER: u32 = i32::MAX as u32;

/// Serves a directory in memory until it is dropped. Only one can run on a machine.
pub(crate) struct Nfsd {
    /// The exported directory, as the server sees it.
    pub(crate) export: PathBuf,
    mount_port: u16,
}

fn write(path: &str, text: &str) {
    let file = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| panic!("{path}: {text:?}: {error}"));
}

impl Nfsd {
    pub(crate) fn start() -> Self {
        super::raise_loopback();
        let control = Target::new("/proc/fs/nfsd").unwrap();
        Mount::new("nfsd", "nfsd").at(&control).unwrap();
        let export = PathBuf::from(EXPORT);
        let target = Target::new(&export).unwrap();
        target.create_dir().unwrap();
        Mount::new("tmpfs", "export").at(&target).unwrap();
        fs::create_dir_all(export.join("share")).unwrap();

        // The server's lock manager registers at the port mapper.
        static PORT_MAPPER: OnceLock<u16> = OnceLock::new();
        PORT_MAPPER.get_or_init(|| rpc::serve(111, agree));
        // A server that a failed test left running refuses new versions, so stop it first.
        write("/proc/fs/nfsd/threads", "0\n");
        write("/proc/fs/nfsd/versions", "+3 +4 +4.1 +4.2\n");
        for time in ["nfsv4leasetime", "nfsv4gracetime"] {
            write(&format!("/proc/fs/nfsd/{time}"), "10\n");
        }
        write("/proc/fs/nfsd/portlist", "tcp 2049\n");
        write("/proc/fs/nfsd/threads", "4\n");
        // Ends the grace period: no client has an earlier lock to reclaim. The write fails if the server
        // already knows that.
        let _ = fs::write("/proc/fs/nfsd/v4_end_grace", "Y\n");
        let path = export.display();
        write("/proc/net/rpc/auth.unix.ip/channel", &format!("nfsd 127.0.0.1 {NEVER} local\n"));
        write("/proc/net/rpc/nfsd.export/channel", &format!("local {path} {NEVER} {FLAGS} 65534 65534 0\n"));
        write("/proc/net/rpc/nfsd.fh/channel", &format!("local 1 \\x00000000 {NEVER} {path}\n"));
        Self { export, mount_port: rpc::serve(0, let_in) }
    }

    /// Version 4.2: the path is relative to the server's root, which is the export.
    pub(crate) fn version_4(&self) -> Class {
        class("/share", &["nfsvers=4.2", "proto=tcp"])
    }

    /// Version 3, which has no root of its own: the client mounts a full path of the server.
    pub(crate) fn version_3(&self) -> Class {
        let port = format!("mountport={}", self.mount_port);
        class(
            &format!("{EXPORT}/share"),
            &["nfsvers=3", "proto=tcp", "mountproto=tcp", "port=2049", "nolock", &port],
        )
    }
}

fn class(share: &str, options: &[&str]) -> Class {
    let parameters = [("server", "127.0.0.1"), ("share", share)];
    Class {
        parameters: parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        mount_options: options.iter().map(|&option| option.to_owned()).collect(),
    }
}

/// `rpcbind` that accepts everything.
fn agree(procedure: u32, _: &[u8]) -> Vec<u8> {
    if procedure == 0 { Vec::new() } else { rpc::words(&[1]) }
}

/// `rpc.mountd` that admits everybody (RFC 1813, appendix I).
fn let_in(procedure: u32, arguments: &[u8]) -> Vec<u8> {
    const MNT: u32 = 1;
    const NO_ENTRY: u32 = 2;
    const AUTH_SYS: u32 = 1;
    if procedure != MNT {
        return Vec::new();
    }
    let path = String::from_utf8_lossy(rpc::bytes(arguments).0).into_owned();
    let Ok(handle) = handle(Path::new(&path)) else { return rpc::words(&[NO_ENTRY]) };
    let mut reply = rpc::words(&[0, handle.len() as u32]);
    reply.extend(&handle);
    reply.resize(reply.len().next_multiple_of(4), 0);
    reply.extend(rpc::words(&[1, AUTH_SYS]));
    reply
}

/// The server's file handle of a directory.
fn handle(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).write(true).open("/proc/fs/nfsd/filehandle")?;
    file.write_all(format!("local {} 64\n", path.display()).as_bytes())?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let hex = text.trim().strip_prefix("\\x").unwrap_or_else(|| panic!("no handle: {text:?}"));
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    Ok((0..hex.len()).step_by(2).map(byte).collect())
}

impl Drop for Nfsd {
    fn drop(&mut self) {
        // After a panic, mounts of the export can be left; they end with the machine.
        if std::thread::panicking() {
            return;
        }
        write("/proc/fs/nfsd/threads", "0\n");
        for channel in ["nfsd.fh", "nfsd.export"] {
            write(&format!("/proc/net/rpc/{channel}/flush"), &format!("{NEVER}\n"));
        }
        unmount(&Target::new(&self.export).unwrap()).unwrap();
        fs::remove_dir(&self.export).unwrap();
        unmount(&Target::new("/proc/fs/nfsd").unwrap()).unwrap();
    }
}
