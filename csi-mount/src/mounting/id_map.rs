//! Owners and groups of files as one mount shows them, independent of what is on the disk.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::user_namespace;

const MAKE: &str = "create a user namespace for the id map of";
/// The largest number of ranges that the kernel takes in one direction.
const MAX_RANGES: usize = 340;

/// A map of the owners and groups that one mount shows: pairs of ids are swapped, all others stay.
///
/// Nothing changes on the disk, so the cost does not depend on the number of files. Because ids are swapped,
/// each file still has a visible owner, and a file written through the mount gets the id that belongs on the
/// disk. Permissions are those on the disk: a group can write only to files that are group-writable.
///
/// ```
/// use csi_mount::{Bind, IdMap};
///
/// // What belongs to group 0 on the disk belongs to group 2000 for this workload.
/// let bind = Bind::new("/srv/volumes/data").id_map(IdMap::new().group(0, 2000)?);
/// # drop(bind);
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[doc(alias = "MOUNT_ATTR_IDMAP")]
#[must_use]
pub struct IdMap {
    users: IdPairs,
    groups: IdPairs,
}

/// Both directions of each pair.
type IdPairs = BTreeMap<u32, u32>;

impl IdMap {
    /// The identity: all ids as on the disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Swaps the users `on_disk` and `shown`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if one of them is swapped already, or is 4294967295, which is not a valid
    /// id.
    pub fn user(mut self, on_disk: u32, shown: u32) -> Result<Self> {
        add_pair(&mut self.users, on_disk, shown)?;
        Ok(self)
    }

    /// Swaps the groups `on_disk` and `shown`.
    ///
    /// # Errors
    /// Those of [`user`](Self::user).
    pub fn group(mut self, on_disk: u32, shown: u32) -> Result<Self> {
        add_pair(&mut self.groups, on_disk, shown)?;
        Ok(self)
    }

    /// Returns the user and the group that the mount shows for these on the disk. A map swaps ids, so for those that
    /// the mount shows it returns the ones on the disk.
    pub fn shown(&self, (user, group): (u32, u32)) -> (u32, u32) {
        let of = |pairs: &IdPairs, id| pairs.get(&id).copied().unwrap_or(id);
        (of(&self.users, user), of(&self.groups, group))
    }

    pub(crate) fn is_identity(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// The user namespace that passes the map to the kernel.
    pub(crate) fn namespace(&self, path: &std::path::Path) -> Result<OwnedFd> {
        user_namespace::with_maps(&lines(&self.users), &lines(&self.groups)).map_err(|error: io::Error| {
            let is_forbidden = matches!(error.raw_os_error(), Some(nix::libc::ENOSPC | nix::libc::EPERM));
            let error = Error::os(MAKE, path, error);
            if is_forbidden {
                error.with_kind(ErrorKind::Unsupported).hint(
                    "the node has to allow user namespaces (user.max_user_namespaces), and the process needs \
                     CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID",
                )
            } else {
                error
            }
        })
    }
}

fn add_pair(pairs: &mut IdPairs, on_disk: u32, shown: u32) -> Result<()> {
    let refuse = |reason: String| Err(Error::new(ErrorKind::InvalidInput, "map owners", reason));
    if on_disk == u32::MAX || shown == u32::MAX {
        return refuse("4294967295 is not a valid id".to_owned());
    }
    if on_disk == shown {
        return Ok(());
    }
    if let Some(taken) = [on_disk, shown].into_iter().find(|id| pairs.contains_key(id)) {
        return refuse(format!("{taken} is already mapped"));
    }
    pairs.extend([(on_disk, shown), (shown, on_disk)]);
    // Each id is a range, and so are the ids before it.
    if 2 * pairs.len() + 1 > MAX_RANGES {
        return refuse(format!("the kernel accepts at most {MAX_RANGES} ranges"));
    }
    Ok(())
}

/// The format of `uid_map` in `user_namespaces(7)`: first id on the disk, first id shown, count.
fn lines(pairs: &IdPairs) -> String {
    let mut text = String::new();
    let mut next = 0;
    let mut line = |from: u32, to: u32, count: u32| {
        if count > 0 {
            text.push_str(&format!("{from} {to} {count}\n"));
        }
    };
    for (&on_disk, &shown) in pairs {
        line(next, next, on_disk - next);
        line(on_disk, shown, 1);
        next = on_disk + 1;
    }
    line(next, next, u32::MAX - next);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_shown_as_exactly_one_id() {
        assert_eq!(lines(&IdPairs::new()), "0 0 4294967295\n");
        let map = IdMap::new().group(0, 2000).unwrap().group(7, 7).unwrap();
        assert_eq!(lines(&map.groups), "0 2000 1\n1 1 1999\n2000 0 1\n2001 2001 4294965294\n");
        let last = u32::MAX - 1;
        let map = IdMap::new().user(1, last).unwrap();
        assert_eq!(lines(&map.users), format!("0 0 1\n1 {last} 1\n2 2 4294967292\n{last} 1 1\n"));
        assert_eq!(map.shown((1, 1)), (last, 1));
        assert!(IdMap::new().is_identity() && !map.is_identity());
    }

    #[test]
    fn no_id_is_mapped_twice() {
        let map = IdMap::new().group(0, 2000).unwrap();
        for (on_disk, shown) in [(0, 5), (5, 2000), (2000, 6), (u32::MAX, 1), (1, u32::MAX)] {
            assert!(map.clone().group(on_disk, shown).is_err(), "{on_disk} {shown}");
        }
        let many = (0..100).try_fold(IdMap::new(), |map, id| map.user(id, id + 1000));
        assert_eq!(many.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
