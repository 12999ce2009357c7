//! The records of open-iscsi's database: one for each target, portal and interface.
//!
//! `iscsiadm -o update` takes a secret as an argument, which every user of the node can read. So the record is
//! written here. It has the node's own settings (those of `iscsid.conf`) and those of the attachment. A record
//! that an administrator made is kept, with the settings of the attachment in it.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zeroize::Zeroizing;

use super::DEFAULT_INTERFACE;
use super::target::{IscsiDisk, IscsiTarget};
use crate::error::{Error, Result};
use crate::sys::durable;
use crate::sys::hash::fnv1a;

const WRITE: &str = "write the record of open-iscsi";
const REMOVE: &str = "remove the record of open-iscsi";
/// The first line of a record that was made here. open-iscsi skips it.
const MARK: &str = "# made by csi-mount";
/// How often a login is tried again within iscsid: an orchestrator repeats the whole attach.
const LOGIN_RETRIES: u32 = 2;

/// The directory of the settings, and that of the records.
pub(super) struct Database {
    settings: PathBuf,
    records: PathBuf,
}

impl Database {
    /// Debian has all in `/etc/iscsi`, other distributions have the records in `/var/lib/iscsi`.
    pub(super) fn of_node() -> Self {
        let records = ["/var/lib/iscsi", "/etc/iscsi"].map(PathBuf::from);
        let found = records.into_iter().find(|place| place.is_dir());
        Self { settings: "/etc/iscsi".into(), records: found.unwrap_or_else(|| "/etc/iscsi".into()) }
    }

    #[cfg(test)]
    fn below(root: &Path) -> Self {
        Self { settings: root.to_owned(), records: root.to_owned() }
    }

    /// Writes the record for a login to this portal.
    pub(super) fn put(&self, target: &IscsiTarget, portal: SocketAddr) -> Result<()> {
        let disk = target.disk();
        let interface = interface_of(&disk);
        let place = self.place(&disk, portal)?;
        let before = match fs::read_to_string(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Zeroizing::new(self.defaults(interface)),
            text => Zeroizing::new(text.map_err(|error| Error::os(WRITE, &place, error))?),
        };
        let text = with_settings(&before, &settings(target, portal));
        let failed = |error: io::Error| Error::os(WRITE, &place, error);
        if let Some(directory) = place.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        }
        durable::write(&place, &self.unfinished(&disk, portal), text.as_bytes()).map_err(failed)
    }

    /// Whether a record that was made here exists.
    pub(super) fn has(&self, disk: &IscsiDisk, portal: SocketAddr) -> Result<bool> {
        let text = Zeroizing::new(fs::read_to_string(self.place(disk, portal)?).unwrap_or_default());
        Ok(text.starts_with(MARK))
    }

    /// Removes a record that was made here, and what a process left that was killed while it wrote one.
    pub(super) fn remove(&self, disk: &IscsiDisk, portal: SocketAddr) -> Result<()> {
        let remove = |place: &Path| match fs::remove_file(place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::os(REMOVE, place, error)),
            _ => Ok(()),
        };
        remove(&self.unfinished(disk, portal))?;
        let place = self.place(disk, portal)?;
        if self.has(disk, portal)? {
            remove(&place)?;
        }
        // Directories that others still use are not empty.
        for directory in place.ancestors().skip(1).take_while(|place| **place != self.nodes()) {
            if fs::remove_dir(directory).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                break;
            }
        }
        Ok(())
    }

    /// Where a record is written. Not among the records, where open-iscsi would read it.
    fn unfinished(&self, disk: &IscsiDisk, portal: SocketAddr) -> PathBuf {
        let key = format!("{}{portal}{}", disk.iqn, interface_of(disk));
        self.records.join(format!(".csi-mount-{:016x}", fnv1a(key.as_bytes())))
    }

    fn nodes(&self) -> PathBuf {
        self.records.join("nodes")
    }

    /// Where the record is: `nodes/IQN/ADDRESS,PORT`, or in a directory `nodes/IQN/ADDRESS,PORT,GROUP` if a
    /// discovery has made that.
    fn place(&self, disk: &IscsiDisk, portal: SocketAddr) -> Result<PathBuf> {
        let target = self.nodes().join(&disk.iqn);
        let name = format!("{},{}", portal.ip(), portal.port());
        let entries = match fs::read_dir(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(target.join(name)),
            entries => entries.map_err(|error| Error::os(WRITE, &target, error))?,
        };
        let with_group = format!("{name},");
        let is_group = |entry: &fs::DirEntry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(&with_group))
                && entry.path().is_dir()
        };
        let group = entries.flatten().find(is_group);
        Ok(group.map_or_else(|| target.join(name), |group| group.path().join(interface_of(disk))))
    }

    /// The lines of a new record: the node's settings for sessions, and those of the interface.
    fn defaults(&self, interface: &str) -> String {
        let mut text = format!("{MARK}\n");
        for (file, prefix) in [
            (self.settings.join("iscsid.conf"), "node."),
            (self.records.join("ifaces").join(interface), "iface."),
        ] {
            let settings = fs::read_to_string(file).unwrap_or_default();
            for line in settings.lines().map(str::trim).filter(|line| line.starts_with(prefix)) {
                text.extend([line, "\n"]);
            }
        }
        text
    }
}

fn interface_of(disk: &IscsiDisk) -> &str {
    disk.interface.as_deref().unwrap_or(DEFAULT_INTERFACE)
}

type Setting = (&'static str, Zeroizing<String>);

/// What the attachment sets.
fn settings(target: &IscsiTarget, portal: SocketAddr) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    let mut set = |key, value: &str| all.push((key, Zeroizing::new(value.to_owned())));
    let disk = target.disk();
    set("node.name", &disk.iqn);
    set("node.conn[0].address", &portal.ip().to_string());
    set("node.conn[0].port", &portal.port().to_string());
    set("node.startup", "manual");
    set("node.conn[0].startup", "manual");
    set("node.session.scan", "manual");
    set("node.session.nr_sessions", "1");
    set("node.session.initial_login_retry_max", &LOGIN_RETRIES.to_string());
    set("iface.iscsi_ifacename", interface_of(&disk));
    if disk.interface.is_none() {
        set("iface.transport_name", "tcp");
    }
    if let Some(time) = target.replacement_timeout {
        set("node.session.timeo.replacement_timeout", &seconds(time).to_string());
    }
    if target.chap.node.is_some() || target.chap.target.is_some() {
        set("node.session.auth.authmethod", "CHAP");
    }
    if let Some(login) = &target.chap.node {
        set("node.session.auth.username", &login.name);
        set("node.session.auth.password", &login.secret);
    }
    if let Some(login) = &target.chap.target {
        set("node.session.auth.username_in", &login.name);
        set("node.session.auth.password_in", &login.secret);
    }
    all
}

/// open-iscsi takes 0 and less for other things than a time.
fn seconds(time: Duration) -> u64 {
    time.as_secs().clamp(1, i32::MAX as u64)
}

/// The text with these settings instead of its own. The memory is wiped afterwards.
fn with_settings(before: &str, settings: &[Setting]) -> Zeroizing<String> {
    let key_of = |line: &str| line.split_once('=').map(|(key, _)| key.trim().to_owned());
    let is_set = |line: &str| key_of(line).is_some_and(|key| settings.iter().any(|(set, _)| *set == key));
    let added: usize = settings.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    // Long enough that it is not moved, which would leave a copy of the secrets.
    let mut text = Zeroizing::new(String::with_capacity(before.len() + added + 64));
    let kept = before.lines().filter(|line| !is_set(line) && *line != "# END RECORD");
    for line in kept {
        text.extend([line, "\n"]);
    }
    for (key, value) in settings {
        text.extend([*key, " = ", value.as_str(), "\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::remote::LunId;

    fn target() -> IscsiTarget {
        IscsiTarget::new("iqn.2026-01.org.example:a", 3, LunId::serial("s").unwrap()).unwrap()
    }

    #[test]
    fn a_record_has_the_nodes_settings_and_the_attachments_and_goes() {
        let root = tempfile::tempdir().unwrap();
        fs::write(
            root.path().join("iscsid.conf"),
            "iscsid.startup = x\n#node.a = 1\nnode.session.scan = auto\nnode.session.iscsi.A = Yes\n",
        )
        .unwrap();
        let database = Database::below(root.path());
        let portal = "[fd00::1]:3261".parse().unwrap();
        let target = target().chap("node", "geheim").unwrap().mutual_chap("t", "auch").unwrap();
        database.put(&target, portal).unwrap();
        let place = root.path().join("nodes/iqn.2026-01.org.example:a/fd00::1,3261");
        let text = fs::read_to_string(&place).unwrap();
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
        for line in [
            MARK,
            "node.session.scan = manual",
            "node.session.iscsi.A = Yes",
            "node.conn[0].address = fd00::1",
            "node.conn[0].port = 3261",
            "node.session.auth.password = geheim",
            "node.session.auth.password_in = auch",
            "iface.iscsi_ifacename = default",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("auto\n") && !text.contains("iscsid."), "{text}");
        // Again: the same.
        database.put(&target, portal).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap().lines().count(), text.lines().count());
        assert!(database.has(&target.disk(), portal).unwrap());
        database.remove(&target.disk(), portal).unwrap();
        database.remove(&target.disk(), portal).unwrap();
        assert_eq!(fs::read_dir(root.path().join("nodes")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "iscsid.conf and nodes");
        // A process was killed before it had renamed the record, which has the secrets.
        fs::create_dir(place.parent().unwrap()).unwrap();
        fs::write(database.unfinished(&target.disk(), portal), "geheim").unwrap();
        database.remove(&target.disk(), portal).unwrap();
        assert_eq!(fs::read_dir(root.path().join("nodes")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "iscsid.conf and nodes");
    }

    #[test]
    fn an_administrators_record_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let database = Database::below(root.path());
        let portal = "10.0.0.1:3260".parse().unwrap();
        let group = root.path().join("nodes/iqn.2026-01.org.example:a/10.0.0.1,3260,1");
        fs::create_dir_all(&group).unwrap();
        let record = "# BEGIN RECORD 2.1.8\nnode.tpgt = 1\nnode.session.scan = auto\n# END RECORD\n";
        fs::write(group.join("default"), record).unwrap();
        database.put(&target(), portal).unwrap();
        let text = fs::read_to_string(group.join("default")).unwrap();
        assert!(text.contains("node.tpgt = 1\n") && text.contains("scan = manual\n"), "{text}");
        assert!(!database.has(&target().disk(), portal).unwrap());
        database.remove(&target().disk(), portal).unwrap();
        // Through another interface there was none.
        fs::create_dir(root.path().join("ifaces")).unwrap();
        fs::write(root.path().join("ifaces/eth1"), "iface.net_ifacename = eth1\n").unwrap();
        let other = target().interface("eth1").unwrap();
        database.put(&other, portal).unwrap();
        let text = fs::read_to_string(group.join("eth1")).unwrap();
        assert!(
            text.contains("iface.net_ifacename = eth1\n") && text.contains("ifacename = eth1\n"),
            "{text}"
        );
        database.remove(&other.disk(), portal).unwrap();
        assert!(group.join("default").exists() && !group.join("eth1").exists());
    }
}
