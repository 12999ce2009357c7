//! What the kernel says about Fibre Channel: the ports of this node in `/sys/class/fc_host`, and those of targets
//! in `/sys/class/fc_remote_ports`.
//!
//! All reads are of attributes that the kernel answers from memory.

use std::fs;
use std::path::Path;

use super::target::Wwpn;
use crate::error::Result;
use crate::remote::ask::{entries, text};
use crate::remote::scsi::unit::{self, Nexus};

const LIST: &str = "list the Fibre Channel ports in";
/// States in which a port transfers data (`fc_port_state` of the kernel).
const LIVE: [&str; 2] = ["Online", "Marginal"];

/// The ports that this node knows, read at one time.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) hosts: Vec<Host>,
    pub(super) ports: Vec<RemotePort>,
}

/// A port of this node.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// `host2`
    pub(super) name: String,
    pub(super) wwpn: Wwpn,
    pub(super) state: String,
}

/// A port of a target, as one port of this node shows it.
#[derive(Debug, Clone)]
pub(super) struct RemotePort {
    pub(super) wwpn: Wwpn,
    /// The port of this node.
    pub(super) initiator: Option<Wwpn>,
    pub(super) nexus: Nexus,
}

impl Tree {
    /// Reads both classes below this root. A port that goes away meanwhile is left out.
    pub(super) fn read(sys: &Path) -> Result<Self> {
        let hosts = entries(LIST, &sys.join("class/fc_host"))?;
        let hosts: Vec<Host> = hosts.iter().filter_map(|path| host(path)).collect();
        let ports = entries(LIST, &sys.join("class/fc_remote_ports"))?;
        let ports = ports.iter().filter_map(|path| remote_port(sys, path, &hosts)).collect();
        Ok(Self { hosts, ports })
    }
}

impl Wwpn {
    /// The ports of this node, for the storage system that gives them access to a volume. Empty if the node has
    /// no Fibre Channel.
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io) if `/sys/class/fc_host` can't be read.
    pub fn of_node() -> Result<Vec<Self>> {
        let hosts = Tree::read(Path::new("/sys"))?.hosts;
        let mut ports: Vec<Self> = hosts.into_iter().map(|host| host.wwpn).collect();
        ports.sort_unstable();
        Ok(ports)
    }
}

fn host(path: &Path) -> Option<Host> {
    let attribute = |name: &str| text(&path.join(name));
    Some(Host {
        name: path.file_name()?.to_str()?.to_owned(),
        wwpn: attribute("port_name")?.parse().ok()?,
        state: attribute("port_state")?,
    })
}

fn remote_port(sys: &Path, path: &Path, hosts: &[Host]) -> Option<RemotePort> {
    let attribute = |name: &str| text(&path.join(name));
    // `rport-2:0-5`: the host, the channel, and a number that is not an address.
    let name = path.file_name()?.to_str()?;
    let (host, rest) = name.strip_prefix("rport-")?.split_once(':')?;
    let host = format!("host{host}");
    let found = fs::read_dir(path.join("device")).into_iter().flatten().flatten();
    let units: Vec<_> =
        found.filter_map(|entry| unit::target(sys, &entry.path())).flat_map(|target| target.units).collect();
    let state = attribute("port_state")?;
    // -1: it is no target, or not any more.
    let target: Option<u32> = attribute("scsi_target_id")?.parse().ok();
    Some(RemotePort {
        wwpn: attribute("port_name")?.parse().ok()?,
        initiator: hosts.iter().find(|found| found.name == host).map(|found| found.wwpn),
        nexus: Nexus {
            name: name.to_owned(),
            host,
            channel: rest.split_once('-')?.0.parse().ok()?,
            target: target.unwrap_or(0),
            is_live: target.is_some() && LIVE.contains(&&*state),
            is_asked: false,
            state,
            units,
        },
    })
}
