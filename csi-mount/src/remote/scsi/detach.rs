//! The steps of a detach: the paths of a disk are deleted.

use std::path::Path;
use std::time::{Duration, Instant};

use super::LogicalUnit;
use super::decide::View;
use super::unit::Unit;
use crate::remote::ask;
use crate::remote::detach::{claim, not_written};
use crate::{Error, ErrorKind, Result};

const DELETE: &str = "delete a path with";
const DELETE_LIMIT: Duration = Duration::from_secs(30);
/// How long another program can have the disk open: udev looks at it when it comes, and after each write.
const OPENERS_LIMIT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Deletes every path to a disk that nobody uses, and whose data was written out.
pub(in crate::remote) fn delete_paths(
    sys: &Path,
    unit: &dyn LogicalUnit,
    not_flushed: Option<&Error>,
) -> Result<()> {
    let view = View::read(sys, unit)?;
    if let Some(error) = not_flushed.filter(|_| !view.are_paths_dead()) {
        return Err(not_written(&unit.target(), error));
    }
    view.paths().try_for_each(|(_, path)| delete(path))
}

/// Deletes a unit, if it is no disk that somebody uses. What the target has stays as it is.
pub(super) fn delete(unit: &Unit) -> Result<()> {
    let end = Instant::now() + OPENERS_LIMIT;
    let held = loop {
        match unit.number.map(claim).transpose() {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => {
                std::thread::sleep(POLL_INTERVAL);
            }
            held => break held?,
        }
    };
    let switch = unit.place.join("delete");
    let end = Instant::now() + DELETE_LIMIT;
    let deleted = ask::write(DELETE, &switch, b"1", DELETE_LIMIT);
    drop(held);
    deleted?;
    while unit.place.exists() {
        if Instant::now() > end {
            let reason = format!("it still exists after {DELETE_LIMIT:?}");
            return Err(Error::new(ErrorKind::Unresponsive, DELETE, reason).at(switch));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
