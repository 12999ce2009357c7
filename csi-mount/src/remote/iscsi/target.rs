//! What a driver says about a volume: which logical unit of which target, and how it is reached.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::device::expected::ExpectedDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::scsi::LunId;

const READ: &str = "read an iSCSI target";
/// How long an attach waits for the disk by default.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// RFC 7143: an iSCSI name has at most 223 bytes.
const MAX_IQN: usize = 223;
/// open-iscsi keeps 255 bytes of a name or secret.
const MAX_TEXT: usize = 255;

fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, READ, reason)
}

/// A logical unit as a record names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) struct IscsiDisk {
    pub(in crate::remote) iqn: String,
    pub(in crate::remote) interface: Option<String>,
    pub(in crate::remote) lun: u64,
    pub(in crate::remote) id: LunId,
}

/// A logical unit of an iSCSI target.
///
/// ```
/// use csi_mount::remote::{IscsiTarget, LunId};
///
/// # fn main() -> csi_mount::Result<()> {
/// let id = LunId::wwid("naa.60014051234567890abcdef012345678")?;
/// let target = IscsiTarget::new("iqn.2026-01.org.example:pool", 3, id)?
///     .portal("10.0.0.1:3260".parse().expect("an address"))
///     .chap("node-1", "at-least-12-letters")?;
/// # drop(target);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct IscsiTarget {
    pub(in crate::remote) iqn: String,
    pub(super) lun: u64,
    pub(super) id: LunId,
    pub(in crate::remote) portals: Vec<SocketAddr>,
    pub(super) interface: Option<String>,
    pub(in crate::remote) is_single_path: bool,
    pub(super) wait_limit: Duration,
    pub(super) replacement_timeout: Option<Duration>,
    pub(super) chap: Chap,
}

/// The secrets of CHAP, which are never printed, and wiped from memory.
#[derive(Clone, Default)]
pub(super) struct Chap {
    pub(super) node: Option<Login>,
    pub(super) target: Option<Login>,
}

/// A name and its secret.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) name: String,
    pub(super) secret: Zeroizing<String>,
}

impl fmt::Debug for Chap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.node.is_some() { "Chap(..)" } else { "None" })
    }
}

impl IscsiTarget {
    /// The logical unit with this number at the target with this name. The number is the one in the last part
    /// of `lsscsi`'s address, and `id` is its name: a unit with another name is never returned. It needs at
    /// least one [`portal`](Self::portal).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if `iqn` is not the name of a target.
    pub fn new(iqn: &str, lun: u64, id: LunId) -> Result<Self> {
        let is_name = |letter: u8| letter.is_ascii_alphanumeric() || b".-:_".contains(&letter);
        let is_valid = (5..=MAX_IQN).contains(&iqn.len())
            && ["iqn.", "eui.", "naa."].iter().any(|kind| iqn.starts_with(kind))
            && iqn.bytes().all(is_name);
        if !is_valid {
            return Err(invalid(format!("{iqn:?} is not the name of an iSCSI target")));
        }
        Ok(Self {
            iqn: iqn.to_owned(),
            lun,
            id,
            portals: Vec::new(),
            interface: None,
            is_single_path: false,
            wait_limit: WAIT_LIMIT,
            replacement_timeout: None,
            chap: Chap::default(),
        })
    }

    /// Adds an address at which the target is reached. The usual port is 3260. The kernel makes one disk for
    /// each of several, and multipathd must run on the node to make one of them, unless a
    /// [`single_path`](Self::single_path) is enough.
    pub fn portal(mut self, portal: SocketAddr) -> Self {
        if !self.portals.contains(&portal) {
            self.portals.push(portal);
        }
        self
    }

    /// Uses only the first of several portals that answers. If that one is lost later, the volume waits for
    /// it: no other one takes its place before the volume is attached again.
    pub fn single_path(mut self) -> Self {
        self.is_single_path = true;
        self
    }

    /// Logs in through this interface record of open-iscsi (`iscsiadm -m iface`), which binds a session to a
    /// network interface. By default any session to a portal is used, and a new one has the record `default`.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if it is not such a name.
    pub fn interface(mut self, name: &str) -> Result<Self> {
        let is_name = |letter: u8| letter.is_ascii_alphanumeric() || b".-:_".contains(&letter);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(is_name) {
            return Err(invalid(format!("{name:?} is not the name of an interface record")));
        }
        self.interface = Some(name.to_owned());
        Ok(self)
    }

    /// Sets how long an attach waits for the disk. The default is 30 seconds. The time for logins that are
    /// not answered is not included: up to a minute for each portal.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Sets after how long without a session reads and writes fail, in full seconds. It holds for sessions
    /// that this attachment makes. The default is that of the node's `iscsid.conf`, usually two minutes.
    pub fn replacement_timeout(mut self, time: Duration) -> Self {
        self.replacement_timeout = Some(time);
        self
    }

    /// Authenticates this node with CHAP. The secret is in no argument, log line or error. It is in
    /// open-iscsi's record of the session, in a file that only root can read, while the session exists.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the name or the secret is empty, too long, or has spaces
    /// or letters outside of ASCII, which open-iscsi does not read back.
    pub fn chap(mut self, name: &str, secret: &str) -> Result<Self> {
        self.chap.node = Some(Login::new(name, secret)?);
        Ok(self)
    }

    /// Requires that the target authenticates itself too, with this name and secret. It needs
    /// [`chap`](Self::chap).
    ///
    /// # Errors
    ///
    /// As for [`chap`](Self::chap).
    pub fn mutual_chap(mut self, name: &str, secret: &str) -> Result<Self> {
        self.chap.target = Some(Login::new(name, secret)?);
        Ok(self)
    }

    /// What identifies the disk, for [`StagePlan::expect`](crate::flow::block::StagePlan::expect): the stage
    /// then asks the device again who it is. A world-wide name must then be the one that the kernel prefers
    /// (`/sys/block/sdX/device/wwid`).
    pub fn expected(&self) -> ExpectedDevice {
        self.id.expected()
    }

    /// Whether the node logs in at several portals.
    pub(super) fn has_several_paths(&self) -> bool {
        self.portals.len() > 1 && !self.is_single_path
    }

    pub(in crate::remote) fn disk(&self) -> IscsiDisk {
        IscsiDisk {
            iqn: self.iqn.clone(),
            interface: self.interface.clone(),
            lun: self.lun,
            id: self.id.clone(),
        }
    }
}

impl Login {
    fn new(name: &str, secret: &str) -> Result<Self> {
        let is_text = |text: &str| {
            (1..=MAX_TEXT).contains(&text.len()) && text.bytes().all(|letter| letter.is_ascii_graphic())
        };
        if !is_text(name) || !is_text(secret) {
            return Err(invalid(
                "a name or secret of CHAP is empty, too long, or has other letters than ASCII",
            ));
        }
        Ok(Self { name: name.to_owned(), secret: Zeroizing::new(secret.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_secrets_are_not_printed() {
        let id = LunId::wwid("naa.6001405").unwrap();
        for wrong in ["", "iqn", "iqn.a/b", "iqn.a,b", "../x", &format!("iqn.{}", "n".repeat(223))] {
            assert!(IscsiTarget::new(wrong, 0, id.clone()).is_err(), "{wrong}");
        }
        let target = IscsiTarget::new("iqn.2026-01.org.example:a", 0, id).unwrap();
        for wrong in ["", "a b", "a\nnode.startup=automatic", &"x".repeat(256)] {
            assert!(target.clone().chap("name", wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "..", "a/b"] {
            assert!(target.clone().interface(wrong).is_err(), "{wrong}");
        }
        let target = target.chap("node", "geheim1").unwrap().mutual_chap("target", "geheim2").unwrap();
        assert!(!format!("{target:?}").contains("geheim"), "{target:?}");
    }
}
