//! Which disk an attachment has, whatever its transport.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use super::iscsi::target::{IscsiDisk, IscsiTarget, LunId};
use super::nvme::target::{NamespaceId, NvmeDisk, NvmeTarget};
use super::{iscsi, nvme};
use crate::{ExpectedDevice, Result};

/// What a driver says about a volume: [`RemoteDisks::attach`](super::RemoteDisks::attach) accepts each kind of
/// target, and this type where the kind is chosen when the program runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RemoteTarget {
    /// A namespace of an NVMe subsystem.
    Nvme(NvmeTarget),
    /// A logical unit of an iSCSI target.
    Iscsi(IscsiTarget),
}

impl RemoteTarget {
    /// What identifies the disk, for [`StagePlan::expect`](crate::flow::block::StagePlan::expect): the stage
    /// then asks the device again who it is.
    pub fn expected(&self) -> ExpectedDevice {
        match self {
            Self::Nvme(target) => target.expected(),
            Self::Iscsi(target) => target.expected(),
        }
    }

    pub(super) fn disk(&self) -> Disk {
        match self {
            Self::Nvme(target) => Disk::Nvme(target.disk()),
            Self::Iscsi(target) => Disk::Iscsi(target.disk()),
        }
    }

    pub(super) fn is_single_path(&self) -> bool {
        matches!(self, Self::Iscsi(target) if target.is_single_path)
    }
}

impl From<NvmeTarget> for RemoteTarget {
    fn from(target: NvmeTarget) -> Self {
        Self::Nvme(target)
    }
}

impl From<&NvmeTarget> for RemoteTarget {
    fn from(target: &NvmeTarget) -> Self {
        Self::Nvme(target.clone())
    }
}

impl From<IscsiTarget> for RemoteTarget {
    fn from(target: IscsiTarget) -> Self {
        Self::Iscsi(target)
    }
}

impl From<&IscsiTarget> for RemoteTarget {
    fn from(target: &IscsiTarget) -> Self {
        Self::Iscsi(target.clone())
    }
}

impl From<&RemoteTarget> for RemoteTarget {
    fn from(target: &RemoteTarget) -> Self {
        target.clone()
    }
}

/// What a record says about a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Disk {
    Nvme(NvmeDisk),
    Iscsi(IscsiDisk),
}

impl Disk {
    /// The name of the target, whose attachments have one lock.
    pub(super) fn target(&self) -> &str {
        match self {
            Self::Nvme(disk) => &disk.nqn,
            Self::Iscsi(disk) => &disk.iqn,
        }
    }

    /// Whether connections of one can be connections of the other.
    pub(super) fn shares_connections(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nvme(one), Self::Nvme(other)) => one.nqn == other.nqn && one.host_nqn == other.host_nqn,
            (Self::Iscsi(one), Self::Iscsi(other)) => one.iqn == other.iqn,
            _ => false,
        }
    }

    /// Whether this is another disk with the same address: its number was reused.
    pub(super) fn has_address_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Iscsi(one), Self::Iscsi(other)) => {
                one.iqn == other.iqn && one.lun == other.lun && one.id != other.id
            }
            // An address of NVMe is never looked at.
            _ => false,
        }
    }

    /// The portals of the target that have a connection.
    pub(super) fn connected(&self, sys: &Path) -> Result<Vec<SocketAddr>> {
        match self {
            Self::Nvme(disk) => nvme::decide::connected(sys, disk),
            Self::Iscsi(disk) => iscsi::decide::connected(sys, disk),
        }
    }

    /// The lines of a record.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Nvme(NvmeDisk { nqn, host_nqn, namespace }) => {
                format!("nqn={nqn}\nhostnqn={host_nqn}\nnamespace={namespace}\n")
            }
            Self::Iscsi(IscsiDisk { iqn, interface, lun, id }) => {
                let interface = interface.as_deref().unwrap_or_default();
                format!("iqn={iqn}\ninterface={interface}\nlun={lun}\nid={id}\n")
            }
        }
    }

    /// Reads the lines of a record, and leaves those that follow.
    pub(super) fn parse<'l>(lines: &mut impl Iterator<Item = &'l str>) -> Option<Self> {
        let (key, target) = lines.next()?.split_once('=')?;
        let target = target.to_owned();
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        match key {
            "nqn" => {
                let (host_nqn, namespace) = (value("hostnqn")?, NamespaceId::parse(&value("namespace")?)?);
                Some(Self::Nvme(NvmeDisk { nqn: target, host_nqn, namespace }))
            }
            "iqn" => {
                let interface = Some(value("interface")?).filter(|name| !name.is_empty());
                let (lun, id) = (value("lun")?.parse().ok()?, LunId::parse(&value("id")?)?);
                Some(Self::Iscsi(IscsiDisk { iqn: target, interface, lun, id }))
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
        }
    }
}
