//! A driver's own directories, in places that others can write to: renamed, and given permissions.

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::place::target::Target;
use crate::sys::descriptor::reopen_directory;

const RENAME: &str = "rename";
const MODE: &str = "change the mode of";

impl Target {
    /// Renames a directory or file to a target on the same mount that does not exist yet.
    ///
    /// If the filesystem cannot guarantee that (NFS has no `RENAME_NOREPLACE`), the call checks before it
    /// renames. An empty directory that appears in between is replaced; nothing that holds data is.
    ///
    /// # Errors
    /// - [`ErrorKind::Busy`]: the new name exists.
    /// - [`ErrorKind::NotFound`]: there is nothing to rename.
    #[doc(alias = "renameat2")]
    pub fn rename_to(&self, to: &Target) -> Result<()> {
        let from = self.parent(RENAME)?;
        let onto = to.parent(RENAME)?;
        let taken = || Error::new(ErrorKind::Busy, RENAME, "something exists there already").at(to.path());
        let renamed =
            match rustix::fs::renameat_with(from, self.name(), onto, to.name(), RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS) => rename_looking(self, to)?,
                renamed => renamed,
            };
        match renamed {
            Err(Errno::EXIST | Errno::NOTEMPTY) => Err(taken()),
            Err(error) => {
                Err(self.error(RENAME, error).add_reason(format_args!("to {}", to.path().display())))
            }
            Ok(()) => to.sync_parent(RENAME).and_then(|()| self.sync_parent(RENAME)),
        }
    }

    /// Sets the permissions of a directory, regardless of the umask.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`]: it is not a directory.
    /// - [`ErrorKind::PermissionDenied`]: the process is not allowed to change it.
    #[doc(alias = "fchmod")]
    pub fn set_directory_mode(&self, mode: u32) -> Result<()> {
        let directory = self.open_directory(MODE)?;
        let changed = rustix::fs::fchmod(directory, Mode::from_raw_mode(mode));
        changed.map_err(|error| self.error(MODE, error))
    }

    /// Syncs the parent directory, so that names survive a loss of power.
    fn sync_parent(&self, operation: &'static str) -> Result<()> {
        match reopen_directory(self.parent(operation)?).and_then(rustix::fs::fsync) {
            // Filesystems that have nothing to sync.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(self.error(operation, error)),
        }
    }
}

/// The fallback without `RENAME_NOREPLACE`. A file is hard-linked to its new name, because a link replaces
/// nothing.
fn rename_looking(from: &Target, onto: &Target) -> Result<rustix::io::Result<()>> {
    let directory = from.parent(RENAME)?;
    let other = onto.parent(RENAME)?;
    let Some(facts) = from.facts(RENAME)? else { return Ok(Err(Errno::NOENT)) };
    if onto.facts(RENAME)?.is_some() {
        return Ok(Err(Errno::EXIST));
    }
    if facts.file_type == FileType::Directory {
        return Ok(rustix::fs::renameat(directory, from.name(), other, onto.name()));
    }
    let linked = rustix::fs::linkat(directory, from.name(), other, onto.name(), AtFlags::empty());
    Ok(linked.and_then(|()| rustix::fs::unlinkat(directory, from.name(), AtFlags::empty())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::root::Root;

    /// As on NFS, which has no `RENAME_NOREPLACE`.
    #[test]
    fn a_rename_that_must_not_replace_replaces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let [from, to, taken] = ["from", "to", "taken"].map(|name| root.target(name).unwrap());
        let write = |name: &str, content: &str| std::fs::write(directory.path().join(name), content).unwrap();
        write("taken", "theirs");
        assert_eq!(rename_looking(&from, &to).unwrap(), Err(Errno::NOENT));
        write("from", "ours");
        assert_eq!(rename_looking(&from, &taken).unwrap(), Err(Errno::EXIST));
        assert_eq!(rename_looking(&from, &to).unwrap(), Ok(()));
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).ok();
        assert_eq!(
            [read("from"), read("to"), read("taken")],
            [None, Some("ours".into()), Some("theirs".into())]
        );
        from.create_dir().unwrap();
        assert_eq!(rename_looking(&from, &to).unwrap(), Err(Errno::EXIST));
        std::fs::remove_file(directory.path().join("to")).unwrap();
        assert_eq!(rename_looking(&from, &to).unwrap(), Ok(()));
        assert!(to.is_directory().unwrap());
    }
}
