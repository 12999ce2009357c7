//! CephFS by the kernel's client: the source, and what a failure means.

use std::net::SocketAddr;

use nix::libc;

use super::SharedSource;
use super::kernel_log::KernelLog;
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::diagnose;
use crate::path::paths;

const OPERATION: &str = "mount CephFS from";

/// The type in the mount table.
pub(super) const CEPH: &str = "ceph";

impl SharedSource {
    /// A directory of a CephFS filesystem: `/`, or a path in it. `monitors` are the addresses of the cluster's
    /// monitors.
    ///
    /// Give the user in the options `name` and `secret` (the key in base64): only the kernel gets them. The option
    /// `mds_namespace` names the filesystem, if the cluster has more than one. The kernel speaks the first version
    /// of the protocol (port 6789) unless an option names the second one (`ms_mode=prefer-crc`, Linux 5.11,
    /// port 3300).
    ///
    /// An existing mount is of this source if it was made with the same monitors, in the same order.
    ///
    /// ```
    /// use csi_mount::flow::shared::SharedSource;
    /// use csi_mount::MountOptions;
    ///
    /// let monitors = ["192.0.2.1:6789".parse()?, "[2001:db8::2]:6789".parse()?];
    /// let options = MountOptions::new().with_option("name", "csi")?.with_option("secret", "AQ…==")?;
    /// let source = SharedSource::ceph(&monitors, "/volumes/csi/a")?.options(options);
    /// # drop(source);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] without monitors, and for a path that is relative or contains `..`.
    #[doc(alias = "mount.ceph")]
    pub fn ceph(monitors: &[SocketAddr], path: &str) -> Result<Self> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, OPERATION, why).at(path));
        let absolute = paths::absolute(OPERATION, path.as_ref())?;
        match absolute.to_str() {
            _ if monitors.is_empty() => refuse("no monitor is given"),
            Some(text) if !text.contains(char::is_control) => {
                let monitors: Vec<String> = monitors.iter().map(SocketAddr::to_string).collect();
                Ok(Self::new(CEPH, format!("{}:{text}", monitors.join(","))))
            }
            _ => refuse("the path is not text"),
        }
    }
}

/// Adds what the error number means for a CephFS mount, and what the kernel's log says.
pub(super) fn explained(source: &SharedSource, error: Error, log: KernelLog) -> Error {
    explained_by(source, error, &log.messages(&["libceph: ", "ceph: "]))
}

fn explained_by(source: &SharedSource, error: Error, messages: &[String]) -> Error {
    // The first version of the protocol refuses a wrong key with the error number of a filesystem without a server.
    let error = if messages.iter().any(|message| says_refused(message)) {
        refused(error)
    } else {
        with_meaning(error)
    };
    messages
        .iter()
        .map(|message| diagnose::hidden(message, &source.options))
        .fold(error, |error, message| error.add_reason(format_args!("kernel log: {message}")))
}

/// The words of `net/ceph/auth.c`, before Linux 5.11 and since.
fn says_refused(message: &str) -> bool {
    let is_old = message.contains("auth method '") && message.contains("error -13");
    is_old || message.contains("authentication failed")
}

fn refused(error: Error) -> Error {
    error
        .with_kind(ErrorKind::WrongKey)
        .add_reason("the cluster refuses this user, the key, or the user's access to the directory")
        .hint("check the secret, and the user's capabilities")
}

fn with_meaning(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EKEYREJECTED) => refused(error),
        Some(libc::ENOENT) => error.hint("check whether the cluster has this filesystem and directory"),
        Some(libc::EHOSTUNREACH) => error
            .with_kind(ErrorKind::Unresponsive)
            .add_reason("no metadata server of the filesystem is active")
            .hint("check the cluster (`ceph fs status`)"),
        Some(libc::EIO | libc::ETIMEDOUT) => error
            .with_kind(ErrorKind::Unresponsive)
            .add_reason("no monitor, metadata server or OSD answers")
            .hint("check the monitors' addresses, and the network"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounting::options::MountOptions;

    #[test]
    fn a_source_is_a_directory_and_its_monitors() {
        let four = "192.0.2.1:6789".parse().unwrap();
        let six = "[2001:db8::1]:3300".parse().unwrap();
        let text =
            |monitors: &[SocketAddr], path| SharedSource::ceph(monitors, path).map(|found| found.source);
        assert_eq!(text(&[four], "/").unwrap(), "192.0.2.1:6789:/");
        assert_eq!(text(&[four, six], "/a//b/").unwrap(), "192.0.2.1:6789,[2001:db8::1]:3300:/a/b");
        for (monitors, path) in [(&[][..], "/a"), (&[four], "a"), (&[four], "/a/../b"), (&[four], "/a\n")] {
            let error = text(monitors, path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}: {error}");
        }
    }

    #[test]
    fn what_a_refusal_means_is_said_and_the_key_is_not() {
        let options = MountOptions::new().with_option("secret", "geheim").unwrap();
        let source = SharedSource::ceph(&["192.0.2.1:6789".parse().unwrap()], "/a").unwrap().options(options);
        assert!(!format!("{source:?}").contains("geheim"));
        for (number, kind, part) in [
            (libc::EACCES, ErrorKind::WrongKey, "capabilities"),
            (libc::EPERM, ErrorKind::WrongKey, "capabilities"),
            (libc::ENOENT, ErrorKind::NotFound, "directory"),
            (libc::EHOSTUNREACH, ErrorKind::Unresponsive, "metadata server"),
            (libc::EIO, ErrorKind::Unresponsive, "monitor"),
            (libc::ETIMEDOUT, ErrorKind::Unresponsive, "monitor"),
        ] {
            let error = Error::os("mount at", "/staging", std::io::Error::from_raw_os_error(number));
            let error = explained_by(&source, error, &[]);
            assert!(error.kind() == kind && error.to_string().contains(part), "{error:?}");
        }
        let unreachable = std::io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        let error = Error::os("mount at", "/staging", unreachable);
        let log = ["auth protocol 'cephx' mauth authentication failed: -13, geheim".to_owned()];
        let error = explained_by(&source, error, &log);
        assert!(error.kind() == ErrorKind::WrongKey && !error.to_string().contains("metadata"), "{error:?}");
        assert!(error.to_string().contains("mauth") && !error.to_string().contains("geheim"), "{error}");
    }
}
