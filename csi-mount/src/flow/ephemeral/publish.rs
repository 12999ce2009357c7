//! The publish of known content.

use rustix::fs::FileType;

use super::{Change, Content, EphemeralPlan, memory, version};
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::MOUNT;
use crate::mounting::attach::{self, Outcome};
use crate::place::target::{Created, OpenTarget, Target};

/// How often a publish starts again because the volume was unmounted during it.
const MAX_ATTEMPTS: u32 = 3;

/// See [`EphemeralVolumes::publish`](crate::EphemeralVolumes::publish).
pub fn publish(target: &Target, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
    plan.check(content).map_err(|error| error.at(target.path()))?;
    let created = target.create_for_publish(FileType::Directory)?;
    put(target, content, plan).inspect_err(|_| {
        if created == Created::Created
            && let Err(left) = target.remove()
        {
            tracing::warn!(%left, "a target stays after a failed publish");
        }
    })
}

fn put(target: &Target, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
    for _ in 0..MAX_ATTEMPTS {
        let outcome = attach::mount_once(
            MOUNT,
            target,
            |_, found| plan.accept(target, found),
            |seen: OpenTarget| {
                let mount = memory::filled(target, content, plan)?;
                attach::attach(MOUNT, mount, target, &seen, plan.attributes)
            },
        )?;
        if outcome == Outcome::Mounted {
            return Ok(Change::Written);
        }
        // None: it was unmounted in the meantime.
        if let Some(view) = memory::writable_view(target, plan)? {
            return version::write(view.fd(), target.path(), content, plan.group);
        }
    }
    let reason = "another process mounts and unmounts there at the same time";
    Err(Error::new(ErrorKind::Busy, MOUNT, reason).at(target.path()))
}
