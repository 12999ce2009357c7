//! What the kernel says about NVMe controllers, in `/sys/class/nvme`.
//!
//! With native multipath a path `nvme0c1n2` leads to the disk `nvme0n2`; without it each path is a disk. All
//! reads are of attributes that the kernel answers from memory.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::target::{Name, NamespaceId, NvmeDisk, dashed};
use crate::error::Result;
use crate::remote::ask::{entries, text};
use crate::sys::ids::DeviceNumber;

/// The controllers of this node, read at one time.
#[derive(Debug, Default)]
pub(in crate::remote) struct Tree {
    pub(in crate::remote) controllers: Vec<Controller>,
}

/// A connection to a subsystem.
#[derive(Debug, Clone)]
pub(in crate::remote) struct Controller {
    /// `nvme3`
    pub(in crate::remote) name: String,
    pub(in crate::remote) transport: String,
    pub(in crate::remote) nqn: String,
    pub(in crate::remote) host_nqn: String,
    pub(in crate::remote) portal: Option<SocketAddr>,
    pub(in crate::remote) state: String,
    pub(in crate::remote) paths: Vec<NvmePath>,
}

/// A path to a namespace.
#[derive(Debug, Clone)]
pub(in crate::remote) struct NvmePath {
    /// The disk that it leads to: `nvme0n2`.
    pub(in crate::remote) disk: String,
    /// The number of the disk; none while the kernel has no usable path to it.
    pub(in crate::remote) number: Option<DeviceNumber>,
    pub(in crate::remote) namespace: u32,
    pub(in crate::remote) ids: Ids,
    /// None if the target has no asymmetric access.
    pub(in crate::remote) ana_state: Option<String>,
    /// The size of the path and of its disk, in bytes.
    pub(in crate::remote) sizes: [u64; 2],
}

/// The names of a namespace, in the kernel's words.
#[derive(Debug, Clone, Default)]
pub(in crate::remote) struct Ids {
    pub(in crate::remote) wwid: String,
    pub(in crate::remote) nguid: String,
    pub(in crate::remote) eui64: String,
}

impl Ids {
    pub(in crate::remote) fn has(&self, id: &NamespaceId) -> bool {
        let hex = |text: &str| -> String {
            let digits = text.chars().filter(char::is_ascii_hexdigit);
            digits.map(|digit| digit.to_ascii_lowercase()).collect()
        };
        match &id.0 {
            Name::Nguid(digits) => hex(&self.nguid) == *digits,
            Name::Eui64(digits) => hex(&self.eui64) == *digits,
            // The attribute `uuid` has the NGUID where a namespace has no UUID.
            Name::Uuid(digits) => self.wwid.eq_ignore_ascii_case(&format!("uuid.{}", dashed(digits))),
        }
    }
}

impl Controller {
    pub(in crate::remote) fn is_live(&self) -> bool {
        self.state == "live"
    }

    /// Whether it is on its way out; a new connection is not the same any more.
    pub(in crate::remote) fn is_ending(&self) -> bool {
        self.state.starts_with("deleting") || self.state == "dead"
    }

    pub(in crate::remote) fn is_of(&self, disk: &NvmeDisk) -> bool {
        self.transport == disk.transport.name() && self.nqn == disk.nqn && self.host_nqn == disk.host_nqn
    }
}

impl NvmePath {
    /// Whether reads and writes can go this way, as far as its target says.
    pub(in crate::remote) fn is_accessible(&self) -> bool {
        self.ana_state.as_deref().is_none_or(|state| state == "optimized" || state == "non-optimized")
    }
}

impl Tree {
    /// Reads `class/nvme` below this root. A controller that goes away meanwhile is left out.
    pub(in crate::remote) fn read(sys: &Path) -> Result<Self> {
        let entries = entries("list the NVMe controllers in", &sys.join("class/nvme"))?;
        Ok(Self { controllers: entries.iter().filter_map(|path| controller(sys, path)).collect() })
    }

    /// The controllers of the disk's subsystem over its transport, at whatever portal.
    pub(in crate::remote) fn of<'t>(&'t self, disk: &'t NvmeDisk) -> impl Iterator<Item = &'t Controller> {
        self.controllers.iter().filter(|controller| controller.is_of(disk))
    }
}

/// Whether the kernel makes one disk of all paths. Without the parameter it was built without.
pub(in crate::remote) fn has_native_multipath(sys: &Path) -> bool {
    text(&sys.join("module/nvme_core/parameters/multipath")).as_deref() == Some("Y")
}

fn controller(sys: &Path, path: &Path) -> Option<Controller> {
    let attribute = |name: &str| text(&path.join(name));
    let address = attribute("address").unwrap_or_default();
    let mut paths: Vec<NvmePath> = fs::read_dir(path)
        .ok()?
        .flatten()
        .filter_map(|entry| nvme_path(sys, &entry.path(), &entry.file_name().into_string().ok()?))
        .collect();
    paths.sort_by(|one, other| one.disk.cmp(&other.disk));
    Some(Controller {
        name: path.file_name()?.to_str()?.to_owned(),
        transport: attribute("transport")?,
        nqn: attribute("subsysnqn").unwrap_or_default(),
        host_nqn: attribute("hostnqn").unwrap_or_default(),
        portal: portal(&address),
        state: attribute("state")?,
        paths,
    })
}

fn nvme_path(sys: &Path, path: &Path, name: &str) -> Option<NvmePath> {
    let disk = disk_of_path(name)?;
    let attribute = |name: &str| text(&path.join(name));
    let block: PathBuf = sys.join("block").join(&disk);
    let bytes = |directory: &Path| {
        text(&directory.join("size")).and_then(|size| size.parse::<u64>().ok()).unwrap_or(0) * 512
    };
    Some(NvmePath {
        number: text(&block.join("dev")).and_then(|number| DeviceNumber::parse(&number)),
        namespace: attribute("nsid")?.parse().ok()?,
        ids: Ids {
            wwid: attribute("wwid").unwrap_or_default(),
            nguid: attribute("nguid").unwrap_or_default(),
            eui64: attribute("eui").unwrap_or_default(),
        },
        ana_state: attribute("ana_state"),
        sizes: [bytes(path), bytes(&block)],
        disk,
    })
}

/// The disk that a path leads to: `nvme0n2` for `nvme0c1n2` and for itself.
fn disk_of_path(name: &str) -> Option<String> {
    let (subsystem, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (subsystem, controller) = match subsystem.split_once('c') {
        Some((subsystem, controller)) => (subsystem, Some(controller)),
        None => (subsystem, None),
    };
    let is_path = is_number(subsystem) && is_number(namespace) && controller.is_none_or(is_number);
    is_path.then(|| format!("nvme{subsystem}n{namespace}"))
}

/// `traddr=10.0.0.1,trsvcid=4420,src_addr=10.0.0.2`
fn portal(address: &str) -> Option<SocketAddr> {
    let value =
        |name: &str| address.split(',').filter_map(|part| part.split_once('=')).find(|(key, _)| *key == name);
    let ip: IpAddr = value("traddr")?.1.parse().ok()?;
    Some(SocketAddr::new(ip, value("trsvcid")?.1.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_parsed() {
        for (name, disk) in [
            ("nvme0c1n2", Some("nvme0n2")),
            ("nvme10n3", Some("nvme10n3")),
            ("nvme0", None),
            ("nvme0n1p1", None),
            ("nvme0cxn1", None),
            ("hwmon1", None),
            ("ng0n1", None),
        ] {
            assert_eq!(disk_of_path(name).as_deref(), disk, "{name}");
        }
        let all = "traddr=10.0.0.1,trsvcid=4420,src_addr=10.0.0.2";
        assert_eq!(portal(all), "10.0.0.1:4420".parse().ok());
        assert_eq!(portal("traddr=fd00::1,trsvcid=8009"), "[fd00::1]:8009".parse().ok());
        for other in ["0000:00:1f.0", "", "traddr=nn-0x1:pn-0x2,host_traddr=x"] {
            assert_eq!(portal(other), None, "{other}");
        }
    }
}
