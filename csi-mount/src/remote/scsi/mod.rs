//! Disks of SCSI, whatever connects their target: which unit is the volume, which paths are usable, what is
//! scanned and deleted.
//!
//! A transport says which connections reach the target of an attachment ([`LogicalUnit`]). The rest is common.
//!
//! | file | has |
//! |---|---|
//! | `lun_id.rs` | the name of a unit, which the driver says |
//! | `unit.rs` | what the kernel says about connections and their units |
//! | `decide.rs` | which path is usable, what is scanned and deleted |
//! | `commands.rs` | the unit itself is asked for its names, by this crate and by the kernel |
//! | `attach.rs` | the steps: scan one LUN, wait, read a new size |

pub(super) mod attach;
mod commands;
pub(super) mod decide;
mod lun_id;
pub(super) mod unit;

use std::net::SocketAddr;
use std::path::Path;

use self::decide::View;
pub use self::lun_id::LunId;
use self::unit::Nexus;
use super::multipath::Multipath;
use super::paths::Paths;
use super::transport::{Transport, not_written};
use crate::error::{Error, Result};
use crate::sys::ids::DeviceNumber;

pub(super) trait LogicalUnit {
    fn sys(&self) -> &Path;

    /// Its number, at each connection.
    fn lun(&self) -> u64;

    fn id(&self) -> &LunId;

    /// The name of its target, for messages.
    fn target_name(&self) -> String;

    /// The connections that can show the unit, as the kernel shows them now. The first ones are preferred.
    fn nexuses(&self) -> Result<Vec<Nexus>>;

    /// What happens to a unit of another volume with this number.
    fn foreign(&self) -> ForeignUnit;

    /// See [`Transport::connected`].
    fn connected(&self) -> Result<Vec<SocketAddr>> {
        Ok(Vec::new())
    }

    /// See [`Transport::connections`]. The kernel of this node can connect and disconnect by itself.
    fn own_connections(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// See [`Transport::disconnect`].
    fn end(&self, _connection: &str) -> Result<()> {
        Ok(())
    }
}

/// What happens to a unit with the number of an attachment, and the name of another volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForeignUnit {
    /// If nothing uses it, it is deleted, and the number scanned again: only attachments bring units here.
    Delete,
    /// It is asked again who it is. It stays if it is still another volume's: the kernel has found it by itself.
    Keep,
}

impl<U: LogicalUnit> Transport for U {
    fn target(&self) -> String {
        self.target_name()
    }

    fn connected(&self) -> Result<Vec<SocketAddr>> {
        LogicalUnit::connected(self)
    }

    fn paths(&self) -> Result<Paths> {
        Ok(View::read(self)?.disks())
    }

    fn multipath(&self) -> Option<Multipath> {
        Some(Multipath::new(self.sys()))
    }

    fn ask_again(&self) -> Result<()> {
        attach::ask_again(self)
    }

    fn deletes_paths(&self) -> bool {
        true
    }

    fn remove_paths(&self, not_flushed: Option<&Error>) -> Result<()> {
        let view = View::read(self)?;
        if let Some(error) = not_flushed.filter(|_| !view.are_paths_dead())
            && !commands::is_taken_away(&view)?
        {
            return Err(not_written(&self.target_name(), error));
        }
        view.paths().try_for_each(|(_, path)| unit::delete(path))
    }

    fn connections(&self) -> Result<Vec<String>> {
        self.own_connections()
    }

    fn disks_of(&self, connections: &[String]) -> Result<Vec<(DeviceNumber, Option<String>)>> {
        let mut nexuses = self.nexuses()?;
        nexuses.retain(|nexus| connections.contains(&nexus.name));
        let units = nexuses.into_iter().flat_map(|nexus| nexus.units);
        Ok(units.filter_map(|unit| Some((unit.number?, unit.wwid))).collect())
    }

    fn disconnect(&self, connection: &str) -> Result<()> {
        self.end(connection)
    }

    fn refresh(&self, name: &str) -> Result<u64> {
        attach::refresh(self, name)
    }
}
