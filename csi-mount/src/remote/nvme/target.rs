//! What a driver says about a volume: which namespace of which subsystem, and how it is reached.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use zeroize::Zeroizing;

use super::tls_key::TlsKey;
use crate::device::expected::ExpectedDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::nvme_command::NvmeName;

const READ: &str = "read an NVMe target";
/// How long an attach waits for the namespace by default.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// NVMe Base Specification: an NQN has at most 223 bytes.
const MAX_NQN: usize = 223;

fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, READ, reason)
}

/// The name of an NVMe namespace that does not change: a namespace number (NSID) can be given to another
/// volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceId(pub(in crate::remote) Name);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) enum Name {
    Nguid(String),
    Eui64(String),
    Uuid(String),
}

impl NamespaceId {
    /// The NGUID: 16 bytes as hexadecimal digits, with or without separators.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if it is not that, or only zeros.
    pub fn nguid(text: &str) -> Result<Self> {
        digits(text, 32).map(|digits| Self(Name::Nguid(digits)))
    }

    /// The EUI-64: 8 bytes as hexadecimal digits, with or without separators.
    ///
    /// # Errors
    ///
    /// As for [`nguid`](Self::nguid).
    pub fn eui64(text: &str) -> Result<Self> {
        digits(text, 16).map(|digits| Self(Name::Eui64(digits)))
    }

    /// The UUID, with or without separators.
    ///
    /// # Errors
    ///
    /// As for [`nguid`](Self::nguid).
    pub fn uuid(text: &str) -> Result<Self> {
        digits(text, 32).map(|digits| Self(Name::Uuid(digits)))
    }

    pub(in crate::remote) fn bytes(&self) -> NvmeName {
        match &self.0 {
            Name::Nguid(digits) => NvmeName::Nguid(bytes(digits)),
            Name::Eui64(digits) => NvmeName::Eui64(bytes(digits)),
            Name::Uuid(digits) => NvmeName::Uuid(bytes(digits)),
        }
    }

    pub(in crate::remote) fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("nguid", digits) => Self::nguid(digits).ok(),
            ("eui64", digits) => Self::eui64(digits).ok(),
            ("uuid", digits) => Self::uuid(digits).ok(),
            _ => None,
        }
    }
}

/// `nguid:…`, `eui64:…` or `uuid:…`, with lower-case digits.
impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Name::Nguid(digits) => write!(f, "nguid:{digits}"),
            Name::Eui64(digits) => write!(f, "eui64:{digits}"),
            Name::Uuid(digits) => write!(f, "uuid:{digits}"),
        }
    }
}

/// The bytes that [`digits`] checked.
fn bytes<const N: usize>(digits: &str) -> [u8; N] {
    std::array::from_fn(|index| {
        digits.get(2 * index..2 * index + 2).and_then(|byte| u8::from_str_radix(byte, 16).ok()).unwrap_or(0)
    })
}

fn digits(text: &str, length: usize) -> Result<String> {
    let is_separator = |letter: char| matches!(letter, '-' | ':' | ' ');
    let digits = text.trim().replace(is_separator, "").to_ascii_lowercase();
    let is_valid = digits.len() == length
        && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        && digits.bytes().any(|digit| digit != b'0');
    if !is_valid {
        return Err(invalid(format!(
            "{text:?} is not the name of a namespace, of {length} hexadecimal digits"
        )));
    }
    Ok(digits)
}

/// The name under which this node connects. All drivers of a node must use the same: the kernel refuses two
/// NQNs with one id, and a connection of another host NQN is not shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeHost {
    pub(in crate::remote) nqn: String,
    pub(in crate::remote) id: String,
}

impl NvmeHost {
    /// A host with this NQN and this id, a UUID.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if they are not that.
    pub fn new(nqn: &str, id: &str) -> Result<Self> {
        let id = digits(id, 32)?;
        let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
        Ok(Self { nqn: valid_nqn(nqn)?, id: parts.join("-") })
    }

    /// The host's NQN, by which a target allows it.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The host of `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, which `nvme-cli` and the node's own
    /// connections use.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if a file does not exist.
    pub fn of_node() -> Result<Self> {
        let read = |name: &str| {
            let path = Path::new("/etc/nvme").join(name);
            let text = fs::read_to_string(&path).map_err(|error| {
                Error::os("read the node's NVMe name from", &path, error)
                    .hint("make it with nvme gen-hostnqn, and give a container the node's /etc/nvme")
            })?;
            Ok(text.trim().to_owned())
        };
        Self::new(&read("hostnqn")?, &read("hostid")?)
    }
}

/// A value of an option of `/dev/nvme-fabrics` ends at a comma.
fn valid_nqn(nqn: &str) -> Result<String> {
    let is_valid =
        (1..=MAX_NQN).contains(&nqn.len()) && nqn.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
    if !is_valid {
        return Err(invalid(format!("{nqn:?} is not an NQN")));
    }
    Ok(nqn.to_owned())
}

/// How a subsystem is reached: the kernel's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::remote) enum Transport {
    Tcp,
    Rdma,
}

impl Transport {
    pub(in crate::remote) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// A namespace of an NVMe subsystem, reached over TCP or RDMA.
///
/// ```
/// use csi_mount::remote::{NamespaceId, NvmeHost, NvmeTarget};
///
/// # fn main() -> csi_mount::Result<()> {
/// let host = NvmeHost::new("nqn.2026-01.org.example:node-1", "3f2504e0-4f89-41d3-9a0c-0305e82c3301")?;
/// let namespace = NamespaceId::uuid("9f1b2c3d-0000-4000-8000-00000000002a")?;
/// let target = NvmeTarget::tcp(host, "nqn.2026-01.org.example:pool", namespace)?
///     .portal("10.0.0.1:4420".parse().expect("an address"))
///     .portal("10.0.1.1:4420".parse().expect("an address"));
/// # drop(target);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct NvmeTarget {
    pub(in crate::remote) transport: Transport,
    pub(in crate::remote) host: NvmeHost,
    pub(in crate::remote) nqn: String,
    pub(in crate::remote) namespace: NamespaceId,
    pub(in crate::remote) portals: Vec<SocketAddr>,
    pub(in crate::remote) wait_limit: Duration,
    pub(in crate::remote) ctrl_loss_tmo: Option<Duration>,
    pub(in crate::remote) reconnect_delay: Option<Duration>,
    pub(in crate::remote) fast_io_fail_tmo: Option<Duration>,
    pub(in crate::remote) is_single_path_allowed: bool,
    pub(in crate::remote) keys: Keys,
}

/// A namespace as a record names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) struct NvmeDisk {
    pub(in crate::remote) transport: Transport,
    pub(in crate::remote) nqn: String,
    pub(in crate::remote) host_nqn: String,
    pub(in crate::remote) namespace: NamespaceId,
}

impl NvmeDisk {
    /// Whether a controller of one is a controller of the other.
    pub(in crate::remote) fn shares_controllers(&self, other: &Self) -> bool {
        self.transport == other.transport && self.nqn == other.nqn && self.host_nqn == other.host_nqn
    }
}

/// The keys of DH-HMAC-CHAP and TLS, which are never printed, and wiped from memory.
#[derive(Clone, Default)]
pub(in crate::remote) struct Keys {
    pub(in crate::remote) host: Option<Zeroizing<String>>,
    pub(in crate::remote) controller: Option<Zeroizing<String>>,
    pub(in crate::remote) tls: Option<TlsKey>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_one = self.host.is_some() || self.tls.is_some();
        f.write_str(if has_one { "Keys(..)" } else { "None" })
    }
}

impl NvmeTarget {
    /// This namespace of the subsystem with this NQN. It needs at least one [`portal`](Self::portal).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if `nqn` is not an NQN.
    pub fn tcp(host: NvmeHost, nqn: &str, namespace: NamespaceId) -> Result<Self> {
        Self::over(Transport::Tcp, host, nqn, namespace)
    }

    /// The same over RDMA: RoCE, iWARP or InfiniBand with IP addresses. The kernel finds the adapter by the
    /// portal's address, in the node's network also for a caller with a network namespace of its own.
    ///
    /// A namespace that is attached over one transport is refused over the other.
    ///
    /// # Errors
    ///
    /// As for [`tcp`](Self::tcp).
    pub fn rdma(host: NvmeHost, nqn: &str, namespace: NamespaceId) -> Result<Self> {
        Self::over(Transport::Rdma, host, nqn, namespace)
    }

    fn over(transport: Transport, host: NvmeHost, nqn: &str, namespace: NamespaceId) -> Result<Self> {
        Ok(Self {
            transport,
            host,
            nqn: valid_nqn(nqn)?,
            namespace,
            portals: Vec::new(),
            wait_limit: WAIT_LIMIT,
            ctrl_loss_tmo: None,
            reconnect_delay: None,
            fast_io_fail_tmo: None,
            is_single_path_allowed: false,
            keys: Keys::default(),
        })
    }

    /// Adds an address at which the subsystem is reached. The usual port is 4420.
    ///
    /// Several portals need the kernel's native multipath (`nvme_core.multipath`, on by default), or multipathd on
    /// the node.
    pub fn portal(mut self, portal: SocketAddr) -> Self {
        if !self.portals.contains(&portal) {
            self.portals.push(portal);
        }
        self
    }

    /// Also uses a disk with one path and no multipath map: where native multipath is off and multipathd does
    /// not run or makes no map. Without this, only a target with one portal is used in this way. A second
    /// path that comes later is not used while the volume is attached.
    pub fn allow_single_path(mut self) -> Self {
        self.is_single_path_allowed = true;
        self
    }

    /// Sets how long an attach waits for the namespace. The default is 30 seconds. The time for connections
    /// that are not answered is not included: up to 20 seconds for each portal.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Sets how long the kernel tries to connect again, in full seconds. After that it gives the path up, and
    /// with the last path the disk goes away. The kernel's default is 10 minutes.
    pub fn ctrl_loss_tmo(mut self, time: Duration) -> Self {
        self.ctrl_loss_tmo = Some(time);
        self
    }

    /// Sets the pause between two tries, in full seconds. The kernel's default is 10 seconds.
    pub fn reconnect_delay(mut self, time: Duration) -> Self {
        self.reconnect_delay = Some(time);
        self
    }

    /// Sets after how long without any path reads and writes fail, in full seconds. The kernel's default is
    /// never: they wait until `ctrl_loss_tmo`. Linux 5.11 or later; older kernels wait.
    pub fn fast_io_fail_tmo(mut self, time: Duration) -> Self {
        self.fast_io_fail_tmo = Some(time);
        self
    }

    /// Authenticates this node with a DH-HMAC-CHAP key (`DHHC-1:…`), and with a second one also the target.
    /// The keys are given to the kernel only: they are in no file, argument, log line or error. Linux 6.0 or
    /// later.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if a key does not have this form.
    pub fn dhchap(mut self, key: &str, controller_key: Option<&str>) -> Result<Self> {
        let valid = |key: &str| {
            let is_valid = key.starts_with("DHHC-1:")
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-:+/=".contains(&byte));
            if !is_valid {
                return Err(invalid("a DH-HMAC-CHAP key does not have the form DHHC-1:…"));
            }
            Ok(Zeroizing::new(key.to_owned()))
        };
        self.keys.host = Some(valid(key)?);
        self.keys.controller = controller_key.map(valid).transpose()?;
        Ok(self)
    }

    /// Connects with TLS 1.3, by this pre-shared key (`NVMeTLSkey-1:…`) of the node and the target. It needs `tlshd`
    /// (ktls-utils) on the node, for the handshake, and Linux 6.7 or later with `CONFIG_NVME_TCP_TLS`.
    ///
    /// The key that is derived from it for this node and this subsystem is in the kernel's keyring `.nvme` while a
    /// volume of the subsystem is attached: the kernel and `tlshd` need it for each connection. The key itself is
    /// in no file, argument, log line or error. A key that an administrator put into the keyring is used, and stays.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the key does not have this form, or a wrong checksum; also over
    /// RDMA, which has no TLS.
    pub fn tls(mut self, key: &str) -> Result<Self> {
        if self.transport != Transport::Tcp {
            return Err(invalid("only NVMe over TCP has TLS"));
        }
        self.keys.tls = Some(TlsKey::parse(key)?);
        Ok(self)
    }

    pub(in crate::remote) fn disk(&self) -> NvmeDisk {
        NvmeDisk {
            transport: self.transport,
            nqn: self.nqn.clone(),
            host_nqn: self.host.nqn.clone(),
            namespace: self.namespace.clone(),
        }
    }

    /// What identifies the disk, for [`StagePlan::expect`](crate::flow::block::StagePlan::expect): the stage
    /// then asks the device again who it is.
    pub fn expected(&self) -> ExpectedDevice {
        match &self.namespace.0 {
            Name::Nguid(digits) => ExpectedDevice::new().nguid(digits),
            Name::Eui64(digits) => ExpectedDevice::new().eui64(digits),
            Name::Uuid(digits) => ExpectedDevice::new().wwn(format!("uuid.{}", dashed(digits))),
        }
    }
}

pub(in crate::remote) fn dashed(uuid: &str) -> String {
    [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

    #[test]
    fn names_are_checked_and_keys_are_not_printed() {
        assert_eq!(NamespaceId::uuid(ID).unwrap().to_string(), "uuid:3f2504e04f8941d39a0c0305e82c3301");
        assert_eq!(
            NamespaceId::eui64("01 23 45 67 89 AB cd ef").unwrap().to_string(),
            "eui64:0123456789abcdef"
        );
        let eui64 = NamespaceId::eui64("0123456789abcdef").unwrap().bytes();
        assert_eq!(eui64, NvmeName::Eui64([1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]));
        for wrong in ["", "1", "00000000000000000000000000000000", "g23456789012345678901234567890ab", "é"] {
            assert!(NamespaceId::nguid(wrong).is_err(), "{wrong}");
        }
        for name in [NamespaceId::uuid(ID), NamespaceId::eui64("0123456789abcdef"), NamespaceId::nguid(ID)] {
            let name = name.unwrap();
            assert_eq!(NamespaceId::parse(&name.to_string()), Some(name));
        }
        for wrong in ["", "nqn,dhchap_secret=x", "nqn\n", "a b", &"n".repeat(224)] {
            assert!(NvmeHost::new(wrong, ID).is_err(), "{wrong}");
        }
        let host = NvmeHost::new("nqn.h", &ID.replace('-', "")).unwrap();
        assert_eq!(host.id, ID);
        let target = NvmeTarget::tcp(host, "nqn.s", NamespaceId::uuid(ID).unwrap()).unwrap();
        assert!(target.clone().dhchap("DHHC-1:00:a,b", None).is_err());
        let target = target.dhchap("DHHC-1:00:c2VjcmV0:", Some("DHHC-1:01:b3RoZXI=:")).unwrap();
        let printed = format!("{target:?}");
        assert!(!printed.contains("c2Vj") && !printed.contains("b3Ro"), "{printed}");
    }
}
