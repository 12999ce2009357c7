//! Which disk an attachment has, whatever its transport.

use std::fmt;

use super::fc::target::{FcDisk, FcTarget, list, parse_list};
use super::iscsi::target::{IscsiDisk, IscsiTarget};
use super::nvme::target::{NamespaceId, NvmeDisk, NvmeTarget, Transport};
use super::rbd::target::{RbdDisk, RbdTarget};
use super::scsi::LunId;
use crate::device::expected::ExpectedDevice;

/// What a driver says about a volume: [`RemoteDisks::attach`](super::RemoteDisks::attach) accepts each kind of
/// target, and this type where the kind is chosen when the program runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RemoteTarget {
    /// A namespace of an NVMe subsystem.
    Nvme(NvmeTarget),
    /// A logical unit of an iSCSI target.
    Iscsi(IscsiTarget),
    /// A logical unit that is reached over Fibre Channel.
    Fc(FcTarget),
    /// An image of a Ceph cluster.
    Rbd(RbdTarget),
}

impl RemoteTarget {
    /// What identifies the disk, for [`StagePlan::expect`](crate::flow::block::StagePlan::expect): the stage
    /// then asks the device again who it is.
    pub fn expected(&self) -> ExpectedDevice {
        match self {
            Self::Nvme(target) => target.expected(),
            Self::Iscsi(target) => target.expected(),
            Self::Fc(target) => target.expected(),
            Self::Rbd(target) => target.expected(),
        }
    }
}

impl From<NvmeTarget> for RemoteTarget {
    fn from(target: NvmeTarget) -> Self {
        Self::Nvme(target)
    }
}

impl From<IscsiTarget> for RemoteTarget {
    fn from(target: IscsiTarget) -> Self {
        Self::Iscsi(target)
    }
}

impl From<FcTarget> for RemoteTarget {
    fn from(target: FcTarget) -> Self {
        Self::Fc(target)
    }
}

impl From<RbdTarget> for RemoteTarget {
    fn from(target: RbdTarget) -> Self {
        Self::Rbd(target)
    }
}

impl<T: Clone + Into<Self>> From<&T> for RemoteTarget {
    fn from(target: &T) -> Self {
        target.clone().into()
    }
}

/// What a record says about a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Disk {
    Nvme(NvmeDisk),
    Iscsi(IscsiDisk),
    Fc(FcDisk),
    Rbd(RbdDisk),
}

impl Disk {
    /// The name of the lock that attachments with common connections share.
    pub(super) fn lock_name(&self) -> &str {
        match self {
            Self::Nvme(disk) => &disk.nqn,
            Self::Iscsi(disk) => &disk.iqn,
            // The lock is per unit, because a detach closes no port.
            Self::Fc(disk) => disk.id.name(),
            // A map has a client of its own, or shares one that the kernel counts.
            Self::Rbd(disk) => &disk.image_id,
        }
    }

    /// Whether both are one disk with one address. An attachment of it can get more ports.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fc(one), Self::Fc(other)) => one.is_same(other),
            (Self::Rbd(one), Self::Rbd(other)) => one.is_same(other),
            _ => self == other,
        }
    }

    /// Keeps what an earlier attach of the same disk can have left.
    pub(super) fn add_earlier(&mut self, earlier: &Self) {
        if let (Self::Fc(disk), Self::Fc(earlier)) = (self, earlier) {
            disk.add_ports_of(earlier);
        }
    }

    /// Whether connections of one can be connections of the other.
    pub(super) fn shares_connections(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nvme(one), Self::Nvme(other)) => one.shares_controllers(other),
            (Self::Iscsi(one), Self::Iscsi(other)) => one.iqn == other.iqn,
            // An attachment opens no connection, but it adds and deletes paths of the same disk.
            (Self::Fc(one), Self::Fc(other)) => one.id == other.id,
            // The map itself.
            (Self::Rbd(one), Self::Rbd(other)) => one.is_same(other),
            _ => false,
        }
    }

    /// Whether this keeps the other one from being attached: another disk with the same address, because its
    /// number was reused; or the same disk over another transport, whose paths would be taken away with it.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Iscsi(one), Self::Iscsi(other)) => {
                one.iqn == other.iqn && one.lun == other.lun && one.id != other.id
            }
            (Self::Fc(one), Self::Fc(other)) => one.has_address_of(other) && one.id != other.id,
            // An address of NVMe is never looked at.
            (Self::Nvme(one), Self::Nvme(other)) => {
                one.nqn == other.nqn && one.namespace == other.namespace && one.transport != other.transport
            }
            // An image is known by its id, so a reused name excludes nothing.
            _ => false,
        }
    }

    /// The lines of a record.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Nvme(NvmeDisk { transport, nqn, host_nqn, namespace }) => {
                let key = match transport {
                    Transport::Tcp => "nqn",
                    Transport::Rdma => "rdma",
                };
                format!("{key}={nqn}\nhostnqn={host_nqn}\nnamespace={namespace}\n")
            }
            Self::Iscsi(IscsiDisk { iqn, interface, lun, id }) => {
                let interface = interface.as_deref().unwrap_or_default();
                format!("iqn={iqn}\ninterface={interface}\nlun={lun}\nid={id}\n")
            }
            Self::Fc(FcDisk { ports, initiators, lun, id }) => {
                let [ports, initiators] = [ports, initiators].map(|ports| list(ports));
                format!("fc={ports}\ninitiators={initiators}\nlun={lun}\nid={id}\n")
            }
            Self::Rbd(RbdDisk { fsid, pool_id, pool, namespace, image_id, image }) => {
                format!(
                    "rbd={fsid}\npool={pool_id} {pool}\nnamespace={namespace}\nimage={image_id} {image}\n"
                )
            }
        }
    }

    /// Reads the lines of a record, and leaves those that follow.
    pub(super) fn parse<'l>(lines: &mut impl Iterator<Item = &'l str>) -> Option<Self> {
        let (key, target) = lines.next()?.split_once('=')?;
        let target = target.to_owned();
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        match key {
            "nqn" | "rdma" => {
                let transport = if key == "nqn" { Transport::Tcp } else { Transport::Rdma };
                let host_nqn = value("hostnqn")?;
                let namespace = NamespaceId::parse(&value("namespace")?)?;
                Some(Self::Nvme(NvmeDisk { transport, nqn: target, host_nqn, namespace }))
            }
            "iqn" => {
                let interface = Some(value("interface")?).filter(|name| !name.is_empty());
                let lun = value("lun")?.parse().ok()?;
                let id = LunId::parse(&value("id")?)?;
                Some(Self::Iscsi(IscsiDisk { iqn: target, interface, lun, id }))
            }
            "fc" => {
                let ports = parse_list(&target)?;
                let initiators = parse_list(&value("initiators")?)?;
                let lun = value("lun")?.parse().ok()?;
                let id = LunId::parse(&value("id")?)?;
                Some(Self::Fc(FcDisk { ports, initiators, lun, id }))
            }
            "rbd" => {
                let pool = value("pool")?;
                let namespace = value("namespace")?;
                let image = value("image")?;
                let (pool_id, pool) = pool.split_once(' ')?;
                let (image_id, image) = image.split_once(' ')?;
                Some(Self::Rbd(RbdDisk {
                    fsid: target,
                    pool_id: pool_id.parse().ok()?,
                    pool: pool.to_owned(),
                    namespace,
                    image_id: image_id.to_owned(),
                    image: image.to_owned(),
                }))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvme(disk) => write!(f, "{} of {}", disk.namespace, disk.nqn),
            Self::Iscsi(disk) => write!(f, "{} with the LUN {} of {}", disk.id, disk.lun, disk.iqn),
            Self::Fc(disk) => write!(f, "{} with the LUN {} of {}", disk.id, disk.lun, list(&disk.ports)),
            Self::Rbd(disk) => write!(f, "{disk}"),
        }
    }
}
