//! What the kernel says about iSCSI sessions, in `/sys/class/iscsi_session`.
//!
//! All reads are of attributes that the kernel answers from memory.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::error::Result;
use crate::remote::ask::{entries, text};
use crate::remote::scsi::unit::{self, Nexus};

/// The sessions of this node, read at one time.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) sessions: Vec<Session>,
}

/// A login to a target at one portal.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) iqn: String,
    pub(super) portal: Option<SocketAddr>,
    /// The name of open-iscsi's interface record.
    pub(super) interface: String,
    pub(super) nexus: Nexus,
}

impl Session {
    pub(super) fn name(&self) -> &str {
        &self.nexus.name
    }
}

impl Tree {
    /// Reads `class/iscsi_session` below this root. A session that goes away meanwhile is left out.
    pub(super) fn read(sys: &Path) -> Result<Self> {
        let entries = entries("list the iSCSI sessions in", &sys.join("class/iscsi_session"))?;
        Ok(Self { sessions: entries.iter().filter_map(|path| session(sys, path)).collect() })
    }
}

fn session(sys: &Path, path: &Path) -> Option<Session> {
    let attribute = |name: &str| text(&path.join(name));
    let device = fs::canonicalize(path.join("device")).ok()?;
    let host = device.parent()?.file_name()?.to_str()?.to_owned();
    let mut portal = None;
    let mut address = None;
    let mut units = Vec::new();
    for entry in fs::read_dir(&device).ok()?.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.starts_with("connection") {
            portal = connection(&entry.path().join("iscsi_connection").join(&name)).or(portal);
        } else if let Some(found) = unit::target(sys, &entry.path()) {
            address = Some((found.channel, found.number));
            units.extend(found.units);
        }
    }
    let state = attribute("state")?;
    // Without units the session says where they will be.
    let number = || attribute("target_id")?.parse().ok();
    let (channel, target) = address.unwrap_or_else(|| (0, number().unwrap_or(0)));
    Some(Session {
        iqn: attribute("targetname")?,
        portal,
        interface: attribute("ifacename").unwrap_or_default(),
        nexus: Nexus {
            name: path.file_name()?.to_str()?.to_owned(),
            host,
            channel,
            target,
            is_live: state == "LOGGED_IN",
            is_asked: true,
            state,
            units,
        },
    })
}

/// The portal that was asked for, and not the one to which the target redirects.
fn connection(path: &Path) -> Option<SocketAddr> {
    let ip: IpAddr = text(&path.join("persistent_address"))?.parse().ok()?;
    Some(SocketAddr::new(ip, text(&path.join("persistent_port"))?.parse().ok()?))
}
