//! Directories on which no volume is mounted, and which no step unmounts or removes.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::{Error, ErrorKind, Result};
use crate::path::{lookup, paths};
use crate::place::nesting::{ancestry, is_same_place};
use crate::place::target::Target;
use crate::table::facts::{self, Facts};

/// Directories of the system in which no volume can be placed at any depth.
pub const SYSTEM_TREES: [&str; 12] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr",
];

/// Directories of the system that are not a place for a volume themselves, but can contain one.
///
/// Every directory above one of these is in this list too.
pub const SYSTEM_DIRECTORIES: [&str; 16] = [
    "/",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/srv",
    "/tmp",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/spool",
    "/var/tmp",
];

const OPERATION: &str = "use as a volume's path";

/// Paths that are not a place for a volume: directories of the system, and those that a driver adds.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{ErrorKind, Host, ProtectedPaths};
///
/// let protected = ProtectedPaths::system().tree("/var/lib/example").directory("/var/lib/kubelet");
/// let check = |path: &str| Host::kernel().mounts().check_protected(&protected, path.as_ref());
/// check("/var/lib/kubelet/pods/1/volumes/data/mount")?;
/// for path in ["/proc", "/etc/example", "/var", "/var/lib/kubelet", "/var/lib/example/volume-1"] {
///     assert_eq!(check(path).unwrap_err().kind(), ErrorKind::Protected);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ProtectedPaths(Vec<Entry>);

#[derive(Debug, Clone)]
struct Entry {
    path: PathBuf,
    reach: Reach,
    owner: Owner,
}

/// How much of a directory is protected. All directories above it are protected too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The directory itself.
    Directory,
    /// The directory and everything in it.
    Tree,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// All directories above it are entries of their own.
    System,
    Driver,
}

impl ProtectedPaths {
    /// Protects [`SYSTEM_TREES`] and [`SYSTEM_DIRECTORIES`].
    pub fn system() -> Self {
        let entry = |path: &str, reach| Entry { path: path.into(), reach, owner: Owner::System };
        let trees = SYSTEM_TREES.iter().map(|path| entry(path, Reach::Tree));
        let directories = SYSTEM_DIRECTORIES.iter().map(|path| entry(path, Reach::Directory));
        Self(trees.chain(directories).collect())
    }

    /// Adds a directory with everything in it, and all directories above it. Use it for a driver's data.
    #[must_use]
    pub fn tree(self, path: impl Into<PathBuf>) -> Self {
        self.with_entry(path.into(), Reach::Tree)
    }

    /// Adds a directory and all directories above it, but not its content.
    #[must_use]
    pub fn directory(self, path: impl Into<PathBuf>) -> Self {
        self.with_entry(path.into(), Reach::Directory)
    }

    fn with_entry(mut self, path: PathBuf, reach: Reach) -> Self {
        // Without "." and double slashes, so that paths can be compared byte by byte.
        let path = path.components().collect();
        self.0.push(Entry { path, reach, owner: Owner::Driver });
        self
    }

    /// See [`Mounts::check_protected`](crate::Mounts::check_protected).
    pub(crate) fn check(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = paths::absolute(OPERATION, path.as_ref())?;
        self.check_text(&path)?;
        self.check_identity(&path)
    }

    /// The part of [`check`](Self::check) that compares the text of a clean path and accesses no file.
    pub(crate) fn check_text(&self, path: &Path) -> Result<()> {
        for Entry { path: protected, reach, .. } in &self.0 {
            let relation = match (is_at_or_below(protected, path), is_at_or_below(path, protected)) {
                (true, true) => Relation::Same,
                (true, false) => Relation::Contains,
                (false, true) if *reach == Reach::Tree => Relation::Inside,
                _ => continue,
            };
            return Err(refuse(path, relation, protected));
        }
        Ok(())
    }

    fn check_identity(&self, path: &Path) -> Result<()> {
        let target = Target::new(path)?;
        if !target.has_parent() {
            return Ok(());
        }
        let os = |error| Error::os(OPERATION, path, error);
        let place = target.facts(OPERATION)?;
        let directory = target.directory().map_err(os)?;
        let above = ancestry(target.parent(OPERATION)?, directory, |_| false).map_err(os)?;
        // The ancestors of the driver's directories that are checked already: none of them is the path's
        // place.
        let mut others: Vec<Facts> = Vec::new();
        let is_place = |other: &Facts| place.is_some_and(|place| place.is_same_file(other));
        // A path at which nothing exists can only be inside a tree.
        let can_match = |entry: &&Entry| place.is_some() || entry.reach == Reach::Tree;
        for Entry { path: protected, reach, owner } in self.0.iter().filter(can_match) {
            let Ok(fd) = lookup::open_path(protected, OFlags::DIRECTORY) else { continue };
            let Ok(facts) = facts::from_fd(&fd) else { continue };
            if is_place(&facts) {
                return Err(refuse(path, Relation::Same, protected));
            }
            if *reach == Reach::Tree && above.iter().any(|directory| directory.is_same_file(&facts)) {
                return Err(refuse(path, Relation::Inside, protected));
            }
            if *owner == Owner::System || place.is_none() {
                continue;
            }
            let is_known = |here: &Facts| others.iter().any(|other| is_same_place(other, here));
            if let Ok(holders) = ancestry(fd.as_fd(), facts, is_known) {
                if holders.iter().any(is_place) {
                    return Err(refuse(path, Relation::Contains, protected));
                }
                others.extend(holders);
            }
        }
        Ok(())
    }
}

impl Target {
    /// The last check against a directory of the system, on the resolved path. Callers check the given path
    /// before.
    pub(crate) fn refuse_system(&self, operation: &'static str) -> Result<()> {
        if !self.has_parent() {
            return Ok(());
        }
        let place = self.resolved_parent(operation)?.join(self.name());
        ProtectedPaths::system().check_text(&place).map_err(|error| error.at(self.path()))
    }
}

/// Whether a clean absolute path is the directory or is in it. Faster than `Path::starts_with`, which splits
/// both.
fn is_at_or_below(path: &Path, directory: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    let directory = directory.as_os_str().as_bytes();
    match path.strip_prefix(directory) {
        Some(rest) => rest.is_empty() || rest[0] == b'/' || directory == b"/",
        None => false,
    }
}

/// The relation of a path to a protected directory.
#[derive(Debug, Clone, Copy)]
enum Relation {
    Same,
    Contains,
    Inside,
}

fn refuse(path: &Path, relation: Relation, protected: &Path) -> Error {
    let relation = match relation {
        Relation::Same => "it is the directory",
        Relation::Contains => "it contains the directory",
        Relation::Inside => "it is inside the directory",
    };
    let reason = format!("{relation} {}, which belongs to the system or to the driver", protected.display());
    Error::new(ErrorKind::Protected, OPERATION, reason)
        .at(path)
        .hint("use a separate directory for each volume")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_directories_and_their_parents_are_refused_by_path() {
        let system = ProtectedPaths::system();
        for path in
            ["/", "/proc", "/proc/self", "/etc/x", "/usr/local/x", "/dev/shm/x", "/var", "/var/lib", "/tmp"]
        {
            assert_eq!(system.check_text(path.as_ref()).unwrap_err().kind(), ErrorKind::Protected, "{path}");
        }
        for path in ["/tmp/x", "/var/lib/kubelet", "/mnt/x", "/procs", "/data", "/run/x", "/home/x"] {
            assert!(system.check_text(path.as_ref()).is_ok(), "{path}");
        }
        for path in SYSTEM_TREES.iter().chain(&SYSTEM_DIRECTORIES) {
            let above = Path::new(path).parent();
            let is_entry = |above: &Path| SYSTEM_DIRECTORIES.iter().any(|entry| Path::new(entry) == above);
            assert!(above.is_none_or(is_entry), "{path}");
        }
    }

    #[test]
    fn a_drivers_directory_is_refused_by_every_path_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(path("data/deep/own/volume")).unwrap();
        std::fs::create_dir_all(path("socket/target")).unwrap();
        std::os::unix::fs::symlink(path("data"), path("link")).unwrap();
        let protected = ProtectedPaths::system().tree(path("data/deep/own")).directory(path("socket"));
        for bad in
            ["data", "data/deep", "data/deep/own", "data/deep/own/volume", "data/deep/own/new", "socket"]
        {
            let error = protected.check(path(bad)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protected, "{bad}: {error}");
        }
        for bad in ["link/deep", "link/deep/own", "link/deep/own/new", "data/./deep//own"] {
            assert_eq!(protected.check(path(bad)).unwrap_err().kind(), ErrorKind::Protected, "{bad}");
        }
        for good in ["data/deep/other", "data/new", "socket/target", "socket/new", "absent/parent"] {
            protected.check(path(good)).unwrap();
        }
    }
}

#[cfg(test)]
mod needs_root {
    use super::*;
    use crate::testing::private_mount_namespace;

    fn bind(source: &Path, target: &Path) {
        std::fs::create_dir_all(target).unwrap();
        rustix::mount::mount_bind(source, target).unwrap();
    }

    #[test]
    fn a_bind_of_a_protected_directory_is_protected() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(path("deep/own")).unwrap();
        private_mount_namespace(|| {
            let protected = ProtectedPaths::system().tree(path("deep/own"));
            bind(&path("deep/own"), &path("alias"));
            bind(&path("deep"), &path("deep-alias"));
            for bad in ["alias", "alias/new", "deep-alias", "deep-alias/own", "deep-alias/own/new"] {
                assert_eq!(protected.check(path(bad)).unwrap_err().kind(), ErrorKind::Protected, "{bad}");
            }
            protected.check(path("deep-alias/other")).unwrap();
        });
    }
}
