//! What is mounted for a shared volume, and whether an existing mount is of that source.

use std::ffi::OsStr;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::mounting::mount::MOUNT_TIME_LIMIT;
use crate::mounting::options::MountOptions;
use crate::mounting::{MOUNT, attach};
use crate::place::on_device::block_device_at;
use crate::place::target::Target;
use crate::sys::attributes::MountAttributes;
use crate::table::details::Details;
use crate::table::mountinfo::MountEntry;

/// A filesystem of a server: its type, the source that the kernel mounts, and the options. `Debug` hides
/// option values.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct SharedSource {
    pub(crate) fs_type: String,
    pub(crate) source: String,
    pub(crate) options: MountOptions,
    pub(super) time_limit: Duration,
}

impl SharedSource {
    /// The filesystem of this type (`nfs`, `ceph`, `cifs`) from this source (`192.0.2.7:/export`).
    ///
    /// The mount table shows the source, and a mount is recognized by it. Do not put a password in it.
    pub fn new(fs_type: impl Into<String>, source: impl Into<String>) -> Self {
        let fs_type = fs_type.into();
        let source = source.into();
        Self { fs_type, source, options: MountOptions::new(), time_limit: MOUNT_TIME_LIMIT }
    }

    /// Sets the mount options.
    pub fn options(mut self, options: MountOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets how long to wait for the server. The default is one minute.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Adds the options that a caller requests. If both name the same option, the source's own option wins.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] as for [`MountOptions::parse`].
    pub fn requested_options(mut self, asked: MountOptions) -> Result<Self> {
        let own = &self.options;
        let with_attributes = asked.with_attributes(own.attributes());
        self.options =
            own.filesystem().iter().try_fold(with_attributes, |options, option| match option.value() {
                Some(value) => options.with_option(option.key(), value),
                None => options.with_flag_option(option.key()),
            })?;
        Ok(self)
    }

    /// Adds these mount attributes.
    pub fn with_attributes(mut self, attributes: MountAttributes) -> Self {
        self.options = self.options.with_attributes(attributes);
        self
    }

    /// Whether a mount is of this source.
    pub fn is_mounted_as(&self, entry: &MountEntry) -> bool {
        self.is(&entry.fs_type, &entry.source, |device| entry.is_on(device))
    }

    /// A block device is compared by its number, any other source by its name.
    fn is(&self, fs_type: &str, source: &OsStr, is_on: impl Fn(crate::DeviceNumber) -> bool) -> bool {
        is_same_type(fs_type, &self.fs_type)
            && match block_device_at(self.source.as_ref()) {
                Some(device) => is_on(device),
                None => without_slashes(source.as_bytes()) == without_slashes(self.source.as_bytes()),
            }
    }

    /// Refuses an existing mount unless it is of this source and has the same attributes.
    pub(super) fn accept(&self, target: &Target, found: &Details) -> Result<()> {
        if !self.is(&found.fs_type, &found.source, |device| found.is_on(device)) {
            let difference = format!("{} from {} is not mounted", self.fs_type, self.source);
            return Err(attach::refuse(MOUNT, target, found, &difference));
        }
        attach::require_attributes(MOUNT, target, found, self.options.attributes())?;
        if found.is_super_read_only && !self.options.is_read_only() {
            let reason = format!("the filesystem turned read-only: {found}");
            return Err(Error::new(ErrorKind::ReadOnly, MOUNT, reason)
                .at(target.path())
                .hint("read the kernel's log, and unmount it"));
        }
        Ok(())
    }
}

/// The kernel shows NFS version 4 as `nfs4`, also if it was mounted as `nfs`.
fn is_same_type(found: &str, asked: &str) -> bool {
    let plain = |fs_type| if fs_type == "nfs4" { "nfs" } else { fs_type };
    plain(found) == plain(asked)
}

/// The kernel shows `server:/export/` as `server:/export`.
fn without_slashes(source: &[u8]) -> &[u8] {
    let end = source.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &source[..end]
}

/// Whether the text can be a server's name or address. An IPv6 address has no brackets here.
pub(super) fn is_host(text: &str) -> bool {
    let is_other = |c: char| c.is_whitespace() || c.is_control() || "/\\,[]".contains(c);
    !text.is_empty() && !text.contains(is_other)
}

/// The first address that the system's resolver returns: the resolver sorts them by how well they can be
/// reached. The resolver has its own time limits (`resolv.conf(5)`).
pub(super) fn address(operation: &'static str, server: &str) -> Result<IpAddr> {
    let unknown = |why: &str| {
        Error::new(ErrorKind::Unresponsive, operation, format!("its name could not be resolved: {why}"))
            .at(server)
            .hint("check the name resolution of this host, or use an address")
    };
    let found = (server, 0).to_socket_addrs().map_err(|error| unknown(&error.to_string()))?;
    found.map(|address| address.ip()).next().ok_or_else(|| unknown("no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> MountEntry {
        crate::table::mountinfo::parse_mountinfo(format!("{line}\n").as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn a_mount_is_recognized_by_its_source_in_the_mount_table() {
        let found = entry("31 20 0:52 / /staging rw - nfs4 192.0.2.7:/export rw,vers=4.2");
        for (fs_type, source, is) in [
            ("nfs", "192.0.2.7:/export", true),
            ("nfs4", "192.0.2.7:/export/", true),
            ("nfs", "192.0.2.7:/export/sub", false),
            ("nfs", "192.0.2.8:/export", false),
            ("ceph", "192.0.2.7:/export", false),
        ] {
            assert_eq!(SharedSource::new(fs_type, source).is_mounted_as(&found), is, "{fs_type} {source}");
        }
        let root = entry("31 20 0:52 / /staging rw - nfs4 server:/ rw");
        assert!(SharedSource::new("nfs", "server:/").is_mounted_as(&root));
        assert!(!SharedSource::new("nfs", "server:/a").is_mounted_as(&root));
    }

    #[test]
    fn the_drivers_options_override_the_requested_ones() {
        let own = MountOptions::parse(["vers=4.2", "nosuid", "password=hunter2"]).unwrap();
        let asked = MountOptions::parse(["vers=3", "noatime", "nconnect=4"]).unwrap();
        let source = SharedSource::new("nfs", "s:/e").options(own).requested_options(asked).unwrap();
        let value = |key| source.options.filesystem().iter().find(|option| option.key() == key)?.value();
        assert_eq!((value("vers"), value("nconnect")), (Some("4.2"), Some("4")));
        let attributes = MountAttributes::NOSUID | MountAttributes::NOATIME;
        assert_eq!(source.options.attributes(), attributes);
        assert!(!format!("{source:?}").contains("hunter2"));
    }
}
