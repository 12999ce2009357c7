//! The SELinux context of a volume, decided alike by all ready-made node plugins: it is in force, or the
//! call fails.
//!
//! Kubernetes sends `context=…` as a mount flag of stage and publish if the CSIDriver object has
//! `seLinuxMount: true`. The option belongs to a filesystem (mount(8)): a flow that mounts one passes it on,
//! and the kernel refuses it where SELinux is off. A bind has the context of its source.

use std::collections::BTreeSet;
use std::ffi::OsStr;
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
        let found = staged.super_options.value(key).and_then(OsStr::to_str);
        found.is_none_or(|found| !is_same(found, value))
    };
    match contexts(options).find(differs) {
        None => Ok(()),
        Some((key, _)) => Err(Error::Incompatible(
            format!("volume_capability.mount.mount_flags: the volume is staged with another {key}, or none")
                .into(),
        )),
    }
}

/// Whether two contexts are the same. The kernel prints a level's categories in ascending order, and three in a row as
/// `c1.c3`; OpenShift writes them in descending order.
fn is_same(one: &str, other: &str) -> bool {
    one == other || Context::read(one).is_some_and(|context| Context::read(other) == Some(context))
}

/// A context with its range of levels.
#[derive(PartialEq, Eq)]
struct Context<'a> {
    user_role_type: [&'a str; 3],
    /// The sensitivity and the categories of each level.
    levels: Vec<(&'a str, BTreeSet<u16>)>,
}

impl<'a> Context<'a> {
    /// `None` for a context without a level, or with names that only its policy knows.
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(4, ':');
        let user_role_type = [parts.next()?, parts.next()?, parts.next()?];
        let levels = parts.next()?.split('-').map(|level| match level.split_once(':') {
            Some((sensitivity, list)) => Some((sensitivity, categories(list)?)),
            None => Some((level, BTreeSet::new())),
        });
        Some(Self { user_role_type, levels: levels.collect::<Option<_>>()? })
    }
}

/// The numbers of a list such as `c4,c27` or `c1.c3`.
fn categories(list: &str) -> Option<BTreeSet<u16>> {
    let number = |name: &str| -> Option<u16> { name.strip_prefix('c')?.parse().ok() };
    let mut found = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('.').unwrap_or((part, part));
        found.extend(number(first)?..=number(last)?);
    }
    Some(found)
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
        csi_mount::internal::parse_mountinfo(row.as_bytes()).unwrap().pop().unwrap()
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
    fn a_context_is_the_same_in_any_order_of_its_categories() {
        for (asked, printed) in [
            ("u:r:t:s0:c27,c4", "u:r:t:s0:c4,c27"),
            ("u:r:t:s0:c3,c1,c2", "u:r:t:s0:c1.c3"),
            ("u:r:t:s0-s0:c9,c7", "u:r:t:s0-s0:c7,c9"),
        ] {
            let flag = format!("context=\"{asked}\"");
            check(&options(&[&flag]), &staged(&format!(",context=\"{printed}\""))).unwrap();
        }
        for (asked, printed) in [
            ("u:r:t:s0:c27,c4", "u:r:t:s0:c4,c26"),
            ("u:r:t:s0:c1,c3", "u:r:t:s0:c1.c3"),
            ("u:r:t:s0:c1", "u:r:t:s1:c1"),
            ("u:r:t:s0:c1", "u:r:x:s0:c1"),
            ("u:r:t:s0:secret", "u:r:t:s0:other"),
        ] {
            check(&options(&[&format!("context={asked}")]), &staged(&format!(",context={printed}")))
                .unwrap_err();
        }
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
