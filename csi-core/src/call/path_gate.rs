//! The check of every path in a Node RPC: it must not be, contain or lie inside a protected directory of
//! the system, the orchestrator or the driver.

use std::path::{Path, PathBuf};

use crate::call::request::PluginContext;
use crate::error::{Error, Result};

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

/// A directory that can't be a volume's target or staging path.
#[derive(Debug)]
struct Protected {
    /// Without "." and double slashes.
    path: PathBuf,
    /// Whether everything inside is protected too.
    is_tree: bool,
    /// Whose it is, with the flag that names it.
    of: &'static str,
}

/// The directories that can't be a volume's target or staging path.
#[derive(Debug)]
pub(crate) struct PathGate {
    protected: Vec<Protected>,
    /// The same directories, identified as files.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    files: std::sync::Arc<csi_mount::ProtectedPaths>,
}

impl PathGate {
    /// Creates the gate of a driver that keeps its data in `trees`, has a socket in each of `directories`,
    /// and whose volumes are in the `roots` of an orchestrator.
    pub(crate) fn new(trees: Vec<PathBuf>, mut directories: Vec<PathBuf>, roots: &[PathBuf]) -> Self {
        let mut protected = Vec::new();
        let mut protect = |path: &Path, is_tree, of| {
            protected.push(Protected { path: clean(path), is_tree, of });
        };
        for path in SYSTEM_TREES {
            protect(path.as_ref(), true, "of the system");
        }
        for path in SYSTEM_DIRECTORIES {
            protect(path.as_ref(), false, "of the system");
        }
        for path in &trees {
            protect(path, true, "of this driver");
        }
        for path in &directories {
            protect(path, false, "of a socket of this driver");
        }
        for path in roots.iter().flat_map(|root| OF_KUBELET.map(|name| root.join(name))) {
            protect(&path, false, "of all volumes (VOLUME_ROOTS)");
            directories.push(path);
        }
        Self {
            protected,
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
            for Protected { path: protected, is_tree, of } in &self.protected {
                let holds = is_at_or_below(protected, &path);
                if holds || *is_tree && is_at_or_below(&path, protected) {
                    let lies = if holds { "is or contains" } else { "is inside" };
                    let why = format!("it {lies} {}, a protected directory {of}", protected.display());
                    return Err(refuse(field, given, &why));
                }
            }
        }
        Ok(())
    }

    /// Refuses a path that leads to a protected directory through a symbolic link or a bind mount.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) async fn check_identity(
        &self,
        plugin: &PluginContext,
        mut paths: Vec<(&'static str, PathBuf)>,
    ) -> Result<()> {
        paths.retain(|(_, path)| path.is_absolute());
        if paths.is_empty() {
            return Ok(());
        }
        let files = std::sync::Arc::clone(&self.files);
        let host = plugin.host.clone();
        crate::blocking(move || {
            for (field, path) in paths {
                match host.mounts().check_protected(&files, &path) {
                    Err(error) if error.kind() == csi_mount::ErrorKind::Protected => {
                        return Err(refuse(field, &path, &format!("it is protected: {error}")));
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
    pub(crate) async fn check_identity(
        &self,
        _: &PluginContext,
        _: Vec<(&'static str, PathBuf)>,
    ) -> Result<()> {
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
    let path = path.as_os_str().as_encoded_bytes();
    let directory = directory.as_os_str().as_encoded_bytes();
    match path.strip_prefix(directory) {
        Some(rest) => rest.is_empty() || rest[0] == b'/' || directory == b"/",
        None => false,
    }
}

fn refuse(field: &str, path: &Path, why: &str) -> Error {
    let path = path.display();
    Error::invalid(field, format!("{path} can't be a volume's path: {why}"))
}

#[cfg(all(test, feature = "mount", target_os = "linux"))]
mod tests {
    #[test]
    fn the_lists_are_those_of_csi_mount() {
        assert_eq!(super::SYSTEM_TREES, csi_mount::internal::SYSTEM_TREES);
        assert_eq!(super::SYSTEM_DIRECTORIES, csi_mount::internal::SYSTEM_DIRECTORIES);
    }
}
