//! A tmpfs that is filled before it is visible, and that can be changed although its mount is read-only.

use std::os::fd::AsFd;

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::{Content, EphemeralPlan, version};
use crate::detached::prepared::{self, Prepared};
use crate::error::{Error, Result};
use crate::mounting::legacy;
use crate::mounting::mount::Mount;
use crate::mounting::options::MountOptions;
use crate::mounting::runner::MountRunner;
use crate::place::target::Target;
use crate::sys::attributes::MountAttributes;
use crate::sys::features::{self, Feature};
use crate::sys::mount_api::{self, Depth};

const REFRESH: &str = "refresh";

/// Returns a tmpfs with the content and the plan's attributes, ready to be attached to the target.
pub(super) fn filled(target: &Target, content: &Content, plan: &EphemeralPlan) -> Result<Prepared> {
    let mount = without_swap(target, plan)?;
    version::write(mount.fd(), target.path(), content, plan.group)?;
    if let Prepared::Detached(fd) = &mount {
        // No file on it is open for writing any more: such a file would prevent a read-only mount.
        mount_api::mount_setattr(fd, plan.attributes, Depth::Single)
            .map_err(|error| Error::os("set attributes of", target.path(), error))?;
        return Ok(mount);
    }
    prepared::bind(target.path(), mount.fd(), Depth::Single, plan.attributes, FileType::Directory)
}

/// An empty, writable, detached tmpfs that does not go to swap if the kernel supports that.
fn without_swap(target: &Target, plan: &EphemeralPlan) -> Result<Prepared> {
    let options = plan.options()?;
    if !features::has(Feature::NoSwap) {
        return empty(target, plan, &options);
    }
    match empty(target, plan, &options.clone().with_flag_option("noswap")?) {
        // `noswap` is unknown before Linux 6.4, and not permitted in a user namespace.
        Err(error) if is_refusal(&error) => empty(target, plan, &options),
        mounted => mounted,
    }
}

fn is_refusal(error: &Error) -> bool {
    let refusals = [Errno::INVAL, Errno::PERM, Errno::OPNOTSUPP].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| refusals.contains(&number))
}

fn empty(target: &Target, plan: &EphemeralPlan, options: &MountOptions) -> Result<Prepared> {
    if features::has(Feature::FsContext) && features::has(Feature::MountSetattr) {
        Ok(Prepared::Detached(
            Mount::new("tmpfs", plan.source()).options(options).detached(target, &MountRunner::Caller)?,
        ))
    } else {
        legacy::prepare("tmpfs", plan.source().as_ref(), options, target, &MountRunner::Caller)
    }
}

/// Returns a writable, detached mount of the volume that is mounted at the target. None if nothing is
/// mounted there any more.
pub(super) fn writable_view(target: &Target, plan: &EphemeralPlan) -> Result<Option<Prepared>> {
    let Some((opened, details)) = target.open_mounted(REFRESH)? else { return Ok(None) };
    plan.accept(target, &details)?;
    let attributes = plan.attributes.difference(MountAttributes::RDONLY);
    if !features::has(Feature::FsContext) || !features::has(Feature::MountSetattr) {
        return prepared::bind(target.path(), &opened.fd, Depth::Single, attributes, FileType::Directory)
            .map(Some);
    }
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let os = |error| Error::os(REFRESH, target.path(), error);
    let view = open_tree(opened.fd.as_fd(), c"", flags).map_err(|error| os(error.into()))?;
    mount_api::make_writable(&view).map_err(os)?;
    Ok(Some(Prepared::Detached(view)))
}
