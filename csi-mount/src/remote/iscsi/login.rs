//! `iscsiadm`: log in and log out. `iscsid` does the work, and repeats a login whose connection was lost.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::node_record::Database;
use super::target::{IscsiDisk, IscsiTarget};
use super::tree::{Session, Tree};
use super::{DEFAULT_INTERFACE, stale_lock};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::tool::program::{Program, ProgramOutput};

const LOGIN: &str = "log in to an iSCSI target at";
const LOGOUT: &str = "log out of an iSCSI target with";
/// iscsid gives a login up after 15 seconds, and tries it as often as the record says.
const LOGIN_LIMIT: Duration = Duration::from_secs(60);
const LOGOUT_LIMIT: Duration = Duration::from_secs(60);
/// How long a login of a process that was killed can take.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The exit statuses of `iscsiadm` (its man page has them).
mod status {
    pub(super) const TRANSPORT: i32 = 4;
    pub(super) const TRANSPORT_TIMEOUT: i32 = 8;
    pub(super) const SESSION_EXISTS: i32 = 15;
    pub(super) const NO_DAEMON: i32 = 20;
    pub(super) const NOTHING_FOUND: i32 = 21;
    pub(super) const AUTHENTICATION: i32 = 24;
}

fn iscsiadm(arguments: &[&str], limit: Duration) -> Result<ProgramOutput> {
    stale_lock::remove();
    Program::new("iscsiadm").package("open-iscsi").args(arguments).time_limit(limit).output()
}

fn log_in(disk: &IscsiDisk, portal: SocketAddr) -> Result<ProgramOutput> {
    let at = portal.to_string();
    let interface = disk.interface.as_deref().unwrap_or(DEFAULT_INTERFACE);
    let node = ["-m", "node", "-T", &disk.iqn, "-p", &at, "-I", interface, "--login"];
    iscsiadm(&node, LOGIN_LIMIT)
}

/// Logs in at one portal. A session that exists is a success.
pub(super) fn login(target: &IscsiTarget, portal: SocketAddr) -> Result<()> {
    let disk = target.disk();
    let database = Database::of_node();
    database.put(target, portal)?;
    let output = log_in(&disk, portal)?;
    match output.status.code() {
        Some(0 | status::SESSION_EXISTS) => Ok(()),
        code => {
            // The record of a login that has not ended says so: see `settle`.
            database.remove(&disk, portal)?;
            let error = Error::new(ErrorKind::Io, LOGIN, output.error().to_string()).at(portal.to_string());
            Err(explain(error, code))
        }
    }
}

fn explain(error: Error, code: Option<i32>) -> Error {
    match code {
        Some(status::TRANSPORT | status::TRANSPORT_TIMEOUT) => error.with_kind(ErrorKind::Unresponsive),
        Some(status::AUTHENTICATION) => error
            .with_kind(ErrorKind::PermissionDenied)
            .hint("check the CHAP names and secrets, and that the target allows this initiator name"),
        Some(status::NO_DAEMON) => error
            .with_kind(ErrorKind::Unsupported)
            .hint("start iscsid on the node; a container needs the host's network and /etc/iscsi"),
        _ => error.hint("check that the target has this name at this portal; iscsid's log has its answer"),
    }
}

/// Waits for a login that a killed process has begun. Its record of open-iscsi shows it.
pub(super) fn settle(sys: &Path, disk: &IscsiDisk, portal: SocketAddr) -> Result<()> {
    let database = Database::of_node();
    if !database.has(disk, portal)? {
        // It can have been killed before the record was whole.
        return database.remove(disk, portal);
    }
    let output = log_in(disk, portal)?;
    let end = Instant::now() + SETTLE_LIMIT;
    let is_connected = |tree: Tree| {
        tree.sessions.iter().any(|session| session.iqn == disk.iqn && session.portal == Some(portal))
    };
    while output.status.code() == Some(status::SESSION_EXISTS)
        && !is_connected(Tree::read(sys)?)
        && Instant::now() < end
    {
        std::thread::sleep(POLL_INTERVAL);
    }
    if !is_connected(Tree::read(sys)?) {
        database.remove(disk, portal)?;
    }
    Ok(())
}

/// Logs a session out, waits until it is gone, and removes its record. One that does not exist is a success.
pub(super) fn logout(sys: &Path, disk: &IscsiDisk, session: &str) -> Result<()> {
    let find = || -> Result<Option<Session>> {
        Ok(Tree::read(sys)?.sessions.into_iter().find(|found| found.name() == session))
    };
    let Some(found) = find()? else { return Ok(()) };
    let number = session.trim_start_matches("session");
    let end = Instant::now() + LOGOUT_LIMIT;
    let output = iscsiadm(&["-m", "session", "-r", number, "--logout"], LOGOUT_LIMIT)?;
    if !matches!(output.status.code(), Some(0 | status::NOTHING_FOUND)) {
        return Err(Error::new(ErrorKind::Io, LOGOUT, output.error().to_string()).at(session));
    }
    while find()?.is_some() {
        if Instant::now() > end {
            let reason = format!("the session still exists after {LOGOUT_LIMIT:?}");
            return Err(Error::new(ErrorKind::Unresponsive, LOGOUT, reason).at(session));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    match found.portal {
        Some(portal) => Database::of_node().remove(disk, portal),
        None => Ok(()),
    }
}
