//! The SELinux context of a volume, decided alike by all ready-made node plugins: it is in force, or the
//! call fails.
//!
//! Kubernetes sends `context=…` as a mount flag of stage and publish if the CSIDriver object has
//! `seLinuxMount: true`. The option belongs to a filesystem (mount(8)): a flow that mounts one passes it on,
//! and the kernel refuses it where SELinux is off. A bind has the context of its source.

use std::path::Path;

use csi_mount::{Host, MountEntry, MountOptions};

use super::targets::MountTable;
use crate::error::{Error, Result};

/// The options by which a filesystem gets a context.
const OPTIONS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

/// Refuses a context that the filesystem staged at this path does not have.
///
/// # Errors
/// [`Error::Incompatible`], without the context itself.
pub(super) fn require_context(host: &Host, options: &MountOptions, staging: &Path) -> Result<()> {
    if contexts(options).next().is_none() {
        return Ok(());
    }
    match MountTable::read(host)?.at(staging) {
        Some(staged) => check(options, staged),
        None => Ok(()),
    }
}

fn check(options: &MountOptions, staged: &MountEntry) -> Result<()> {
    let differs = |(key, value): &(&str, &str)| {
        staged.super_options.value(key).is_none_or(|found| found != std::ffi::OsStr::new(value))
    };
    match contexts(options).find(differs) {
        None => Ok(()),
        Some((key, _)) => Err(Error::Incompatible(
            format!("volume_capability.mount.mount_flags: the volume is staged with another {key}, or none")
                .into(),
        )),
    }
}

/// Refuses options of a filesystem for a volume that is not a mounted filesystem.
///
/// # Errors
/// [`Error::InvalidArgument`] that names the option.
pub(super) fn refuse_filesystem_options(options: &MountOptions, what: &str) -> Result<()> {
    let Some(option) = options.filesystem().first() else { return Ok(()) };
    let key = option.key();
    let hint = if OPTIONS.contains(&key) { "; set seLinuxMount: false in the CSIDriver object" } else { "" };
    Err(Error::invalid(
        "volume_capability.mount.mount_flags",
        format!("{key} is an option of a filesystem, which {what} can't have{hint}"),
    ))
}

fn contexts(options: &MountOptions) -> impl Iterator<Item = (&str, &str)> {
    let pairs = options.filesystem().iter().filter_map(|option| Some((option.key(), option.value()?)));
    pairs.filter(|(key, _)| OPTIONS.contains(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(flags: &[&str]) -> MountOptions {
        MountOptions::parse(flags).unwrap()
    }

    /// The row of a filesystem with this context in the mount table.
    fn staged(context: &str) -> MountEntry {
        let row = format!("36 35 98:0 / /staging rw,noatime - ext4 /dev/sda rw{context}");
        csi_mount::parse_mountinfo(row.as_bytes()).unwrap().pop().unwrap()
    }

    #[test]
    fn a_context_is_the_staged_one_or_refused() {
        let asked = options(&["noatime", "data=ordered", "context=\"u:r:t:s0:c1,c2\""]);
        check(&asked, &staged(",context=\"u:r:t:s0:c1,c2\",data=ordered")).unwrap();
        for other in ["", ",context=\"u:r:t:s0:c1,c3\"", ",fscontext=\"u:r:t:s0:c1,c2\""] {
            let error = check(&asked, &staged(other)).unwrap_err();
            assert!(matches!(error, Error::Incompatible(_)), "{error}");
            assert!(
                error.to_string().contains("another context") && !error.to_string().contains("s0"),
                "{error}"
            );
        }
        check(&options(&["noatime", "data=ordered"]), &staged(",context=u:r:t:s0")).unwrap();
    }

    #[test]
    fn the_refusal_says_what_to_set_in_kubernetes() {
        let error =
            refuse_filesystem_options(&options(&["context=u:r:t:s0"]), "a bind").unwrap_err().to_string();
        assert!(error.contains("seLinuxMount: false") && !error.contains("s0"), "{error}");
        let error = refuse_filesystem_options(&options(&["data=ordered"]), "a bind").unwrap_err().to_string();
        assert!(error.ends_with("data is an option of a filesystem, which a bind can't have"), "{error}");
        refuse_filesystem_options(&options(&["noatime"]), "a bind").unwrap();
    }
}
