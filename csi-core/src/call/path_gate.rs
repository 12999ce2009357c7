//! The check of every path in a Node RPC: it must not be, contain or lie inside a protected directory of
//! the system, the orchestrator or the driver.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

#[cfg(all(feature = "mount", target_os = "linux"))]
use csi_mount::Machine as _;

/// The list of csi-mount, which a driver that mounts by other means does not have. A test compares them.
const SYSTEM_TREES: [&str; 12] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr",
];
/// The same.
const SYSTEM_DIRECTORIES: [&str; 16] = [
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

/// Directories in the kubelet's directory that contain the targets and staging directories of all drivers.
const OF_KUBELET: [&str; 7] = [
    "",
    "device-plugins",
    "plugins",
    "plugins/kubernetes.io",
    "plugins/kubernetes.io/csi",
    "plugins_registry",
    "pods",
];

/// The directories that can't be a volume's target or staging path.
#[derive(Debug)]
pub(crate) struct PathGate {
    /// The directories as text without "." and double slashes; `true` if everything inside is protected
    /// too.
    protected: Vec<(PathBuf, bool)>,
    /// The same directories, identified as files.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    files: std::sync::Arc<csi_mount::ProtectedPaths>,
}

impl PathGate {
    /// Creates the gate of a driver that keeps its data in `trees`, has a socket in each of `directories`,
    /// and whose volumes are in the `roots` of an orchestrator.
    pub(crate) fn new(trees: Vec<PathBuf>, mut directories: Vec<PathBuf>, roots: &[PathBuf]) -> Self {
        directories.extend(roots.iter().flat_map(|root| OF_KUBELET.map(|name| root.join(name))));
        let system_trees = SYSTEM_TREES.iter().map(PathBuf::from);
        let system_directories = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
        let protected = system_trees.chain(trees.iter().map(|path| clean(path))).map(|path| (path, true));
        let directories_alone = system_directories.chain(directories.iter().map(|path| clean(path)));
        Self {
            protected: protected.chain(directories_alone.map(|path| (path, false))).collect(),
            #[cfg(all(feature = "mount", target_os = "linux"))]
            files: {
                let files = csi_mount::ProtectedPaths::system();
                let files = trees.iter().fold(files, csi_mount::ProtectedPaths::tree);
                directories.iter().fold(files, csi_mount::ProtectedPaths::directory).into()
            },
        }
    }

    /// Refuses a path that is protected by its text. A path that is not absolute is left to the driver.
    // spec: node.paths-absolute
    pub(crate) fn check_text(&self, paths: &[(&'static str, PathBuf)]) -> Result<()> {
        for (field, given) in paths.iter().filter(|(_, path)| path.is_absolute()) {
            let path = clean(given);
            for (protected, is_tree) in &self.protected {
                let holds = is_at_or_below(protected, &path);
                if holds || *is_tree && is_at_or_below(&path, protected) {
                    let lies = if holds { "is or holds" } else { "is inside" };
                    return Err(refuse(
                        field,
                        given,
                        &format!("{lies} the directory {}", protected.display()),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Refuses a path that leads to a protected directory through a symbolic link or a bind mount.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) async fn check_identity(&self, mut paths: Vec<(&'static str, PathBuf)>) -> Result<()> {
        paths.retain(|(_, path)| path.is_absolute());
        if paths.is_empty() {
            return Ok(());
        }
        let files = std::sync::Arc::clone(&self.files);
        crate::blocking(move || {
            let machine = crate::machine();
            for (field, path) in paths {
                match machine.mounts().check_protected(&files, &path) {
                    Err(error) if error.kind() == csi_mount::ErrorKind::Protected => {
                        return Err(refuse(field, &path, &error.to_string()));
                    }
                    // A path that can't be examined is reported by the driver's step, which examines it in
                    // the same way.
                    _ => {}
                }
            }
            Ok(())
        })
        .await
    }

    #[cfg(not(all(feature = "mount", target_os = "linux")))]
    pub(crate) async fn check_identity(&self, _: Vec<(&'static str, PathBuf)>) -> Result<()> {
        Ok(())
    }
}

/// The path without "." and double slashes.
fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Whether a clean path is the directory, or lies inside it. `Path::starts_with` would parse both paths
/// each time.
fn is_at_or_below(path: &Path, directory: &Path) -> bool {
    let (path, directory) = (path.as_os_str().as_encoded_bytes(), directory.as_os_str().as_encoded_bytes());
    match path.strip_prefix(directory) {
        Some(rest) => rest.is_empty() || rest[0] == b'/' || directory == b"/",
        None => false,
    }
}

fn refuse(field: &str, path: &Path, why: &str) -> Error {
    let path = path.display();
    Error::invalid(field, format!("{path} can't be a volume's place: {why}, which is protected"))
}

#[cfg(all(test, feature = "mount", target_os = "linux"))]
mod tests {
    #[test]
    fn the_lists_are_those_of_csi_mount() {
        assert_eq!(super::SYSTEM_TREES, csi_mount::SYSTEM_TREES);
        assert_eq!(super::SYSTEM_DIRECTORIES, csi_mount::SYSTEM_DIRECTORIES);
    }
}
