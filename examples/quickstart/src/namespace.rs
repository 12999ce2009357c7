//! The mount namespace of the quickstart, which ends with its process.

use csi_cli::lifecycle::internal::Keep;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

/// What the quickstart is allowed to do here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Privileges {
    /// Everything: mounts and loop devices.
    Root,
    /// Mounts in a user namespace of its own, but no loop devices.
    User {
        /// Why there are no loop devices, and how to fix it.
        reason: &'static str,
    },
}

/// Enters a mount namespace of its own, and for an ordinary user a user namespace. The process must have one
/// thread.
///
/// Root with [`Keep::Everything`] stays in its namespace, because mounts in a new namespace vanish with it.
///
/// # Errors
/// When the system allows no namespaces; the message names the settings that forbid them.
pub(crate) fn enter(keep: Keep) -> Result<Privileges, String> {
    if !geteuid().is_root() {
        enter_user_namespace()?;
        return Ok(Privileges::User {
            reason: "only root can attach loop devices; run the quickstart as root to include this driver",
        });
    }
    if keep == Keep::Everything {
        return Ok(Privileges::Root);
    }
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => {
            stop_propagation()?;
            Ok(Privileges::Root)
        }
        Err(Errno::EPERM) => {
            enter_user_namespace()?;
            Ok(Privileges::User {
                reason: "root has no CAP_SYS_ADMIN here, which is needed to attach loop devices",
            })
        }
        Err(error) => Err(format!("can't create a mount namespace: {error}")),
    }
}

/// Keeps mounts made here out of all other namespaces.
fn stop_propagation() -> Result<(), String> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(|error| format!("can't make the mounts of this namespace private: {error}"))
}

/// Enters a user namespace in which this user is root; see user_namespaces(7).
fn enter_user_namespace() -> Result<(), String> {
    let user = geteuid();
    let group = getegid();
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(|error| {
        format!(
            "can't create a user namespace ({error}): run it as root, or allow user namespaces for ordinary users; a \
             container can forbid them, and the sysctls user.max_user_namespaces, \
             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"
        )
    })?;
    // Without this the kernel accepts no gid_map from an ordinary user.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {user} 1"))?;
    write("/proc/self/gid_map", &format!("0 {group} 1"))?;
    stop_propagation()
}

fn write(path: &str, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("can't set up a user namespace: {path}: {error}"))
}
