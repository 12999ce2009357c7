//! What the kernel says about iSCSI sessions, in `/sys/class/iscsi_session`.
//!
//! All reads are of attributes that the kernel answers from memory.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::remote::scsi::unit::{self, Nexus, text};
use crate::{Error, Result};

const LIST: &str = "list the iSCSI sessions in";

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
        let class = sys.join("class/iscsi_session");
        let entries = match fs::read_dir(&class) {
            // The module is not loaded.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(|error| Error::os(LIST, &class, error))?,
        };
        let mut sessions = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| Error::os(LIST, &class, error))?.path();
            sessions.extend(session(sys, &path));
        }
        sessions.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(Self { sessions })
    }
}

fn session(sys: &Path, path: &Path) -> Option<Session> {
    let attribute = |name: &str| text(&path.join(name));
    let device = fs::canonicalize(path.join("device")).ok()?;
    let host = device.parent()?.file_name()?.to_str()?.to_owned();
    let (mut portal, mut address, mut units) = (None, None, Vec::new());
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
