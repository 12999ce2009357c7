//! Mount options that `mount.nfs` would otherwise find out for the kernel: the server's address and the NFS
//! version.

use nix::libc;

use super::SharedSource;
use super::source::{address, is_host};
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::options::MountOptions;
use crate::path::paths;

const OPERATION: &str = "mount NFS from";

/// The version if the options name none.
const VERSION: &str = "4.2";

impl SharedSource {
    /// An export of an NFS server, or a directory below one.
    ///
    /// The server is a name or an address: `nfs.example.org`, `192.0.2.7` or `2001:db8::7`. The export is a
    /// path: `/export/a`.
    ///
    /// The version is 4.2 unless an option names another: `nfsvers=4.1`, `nfsvers=3`. Version 3 can need
    /// more options: `nolock` where no `rpcbind` and `rpc.statd` run on the node, which makes locks local
    /// to the node; and `port=` with `mountport=` for a server without a port mapper.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an invalid server name, and for a path that is relative or contains
    /// `..`.
    #[doc(alias = "mount.nfs")]
    pub fn nfs(server: &str, export: &str) -> Result<Self> {
        let refuse =
            |what: &str, why: &str| Err(Error::new(ErrorKind::InvalidInput, OPERATION, why).at(what));
        let host = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(server);
        let is_address = host.contains(':');
        if !is_host(host) {
            return refuse(server, "it is not a name or address of a server");
        }
        let path = paths::absolute(OPERATION, export.as_ref())?;
        let Some(path) = path.to_str() else { return refuse(export, "it is not UTF-8") };
        let source = if is_address { format!("[{host}]:{path}") } else { format!("{host}:{path}") };
        Ok(Self::new("nfs", source))
    }
}

pub(super) fn is_nfs(fs_type: &str) -> bool {
    matches!(fs_type, "nfs" | "nfs4")
}

/// Returns the options for the kernel: the given ones, plus the NFS address and version if they are
/// missing.
pub(super) fn complete(source: &SharedSource) -> Result<MountOptions> {
    let options = source.options.clone();
    if !is_nfs(&source.fs_type) {
        return Ok(options);
    }
    let says = |named: fn(&str) -> bool| options.filesystem().iter().any(|option| named(option.key()));
    let has_address = says(|key| key == "addr");
    let has_version = says(is_version);
    let options = if has_address {
        options
    } else {
        options.with_option("addr", &address(OPERATION, server(&source.source)?)?.to_string())?
    };
    if has_version { Ok(options) } else { options.with_option("vers", VERSION) }
}

/// Adds what the error number means for an NFS mount: see `exports(5)`.
pub(super) fn explained(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => error
            .add_reason("the server does not allow this node to mount the export")
            .hint(
                "check the export's list of clients; with the mount option noresvport, or from another network \
                 namespace, the export also needs the option insecure, because the client's port is above 1023",
            ),
        Some(libc::ENOENT) => error.hint("check whether the server exports this directory to this node"),
        _ => error,
    }
}

/// `vers=3`, `nfsvers=4.1`, `v4.2`, and `minorversion=1`, which is used with the type nfs4.
fn is_version(key: &str) -> bool {
    matches!(key, "vers" | "nfsvers" | "minorversion")
        || key.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The server part of `server:/export` and of `[2001:db8::7]:/export`.
fn server(source: &str) -> Result<&str> {
    let server = match source.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").map(|(server, _)| server),
        None => source.split_once(":/").map(|(server, _)| server),
    };
    server.filter(|server| !server.is_empty()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, OPERATION, "it does not have the form server:/export").at(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(source: SharedSource, flags: &[&str]) -> Vec<String> {
        let options = MountOptions::parse(flags).unwrap();
        let options = complete(&source.options(options)).unwrap();
        let word = |option: &crate::FsOption| format!("{}={}", option.key(), option.value().unwrap_or(""));
        options.filesystem().iter().map(word).collect()
    }

    #[test]
    fn missing_options_are_added_and_given_options_stay() {
        let source = |server| SharedSource::nfs(server, "/export").unwrap();
        assert_eq!(completed(source("192.0.2.7"), &[]), ["addr=192.0.2.7", "vers=4.2"]);
        assert_eq!(completed(source("::1"), &["nfsvers=3"]), ["nfsvers=3", "addr=::1"]);
        assert_eq!(completed(source("x.invalid"), &["addr=192.0.2.1", "v4.1"]), ["addr=192.0.2.1", "v4.1="]);
        assert_eq!(completed(SharedSource::new("tmpfs", "x"), &["size=1m"]), ["size=1m"]);
        assert_eq!(
            completed(SharedSource::new("nfs4", "127.0.0.1:/"), &["minorversion=1"])[1],
            "addr=127.0.0.1"
        );
    }

    #[test]
    fn a_source_is_what_the_kernel_calls_it() {
        for (server, export, source) in [
            ("nfs.example.org", "/", "nfs.example.org:/"),
            ("nfs.example.org", "/a//b/./c/", "nfs.example.org:/a/b/c"),
            ("2001:db8::7", "/a", "[2001:db8::7]:/a"),
            ("[2001:db8::7]", "/a", "[2001:db8::7]:/a"),
        ] {
            assert_eq!(SharedSource::nfs(server, export).unwrap().source, source);
        }
        for (server, export) in
            [("", "/a"), ("a b", "/a"), ("a/b", "/a"), ("a,b", "/a"), ("a", "a"), ("a", "/a/../b")]
        {
            let error = SharedSource::nfs(server, export).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{server} {export}");
        }
    }

    #[test]
    fn a_refusal_names_what_the_export_has_to_allow() {
        for (number, part) in [
            (libc::EACCES, "list of clients"),
            (libc::EPERM, "needs the option insecure"),
            (libc::ENOENT, "exports this directory"),
        ] {
            let error = Error::os("mount at", "/staging", std::io::Error::from_raw_os_error(number));
            let error = explained(error).to_string();
            assert!(error.contains("/staging") && error.contains(part), "{error}");
        }
        let other = std::io::Error::from_raw_os_error(libc::EINVAL);
        let error = explained(Error::os("mount at", "/staging", other)).to_string();
        assert!(!error.contains("export"), "{error}");
    }

    #[test]
    fn a_source_without_a_server_and_a_name_without_an_address_are_reported() {
        let error = complete(&SharedSource::new("nfs", "/export")).unwrap_err();
        assert!(error.to_string().contains("server:/export"), "{error}");
        let error = complete(&SharedSource::new("nfs", "nothing.invalid:/e")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive);
        assert!(error.to_string().contains("nothing.invalid: its name could not be resolved"), "{error}");
    }
}
