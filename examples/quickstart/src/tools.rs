//! What a run needs of the machine, looked up before it starts.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use csi_mount::Filesystem;

/// Where programs for root are, also when they are not on `PATH`.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

/// Looks for what volumes with this filesystem on loop devices need.
///
/// # Errors
/// What is missing, and the Debian package that has it.
pub(crate) fn look_up(filesystem: Filesystem) -> Result<(), String> {
    let (programs, package): (&[&str], _) = match filesystem {
        Filesystem::Xfs => (&["mkfs.xfs"], "xfsprogs"),
        Filesystem::Btrfs => (&["mkfs.btrfs"], "btrfs-progs"),
        _ => (&["mkfs.ext4", "e2fsck", "resize2fs"], "e2fsprogs"),
    };
    if let Some(missing) = programs.iter().find(|program| !is_there(program)) {
        return Err(format!(
            "{missing} is not on PATH nor in /usr/sbin: install it (`apt-get install {package}`), choose another \
             filesystem with --fs, or run `--only dirs`"
        ));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("/dev/loop-control is missing: load the kernel module `loop` (a container needs the host's /dev), \
                    or run `--only dirs`"
            .to_owned());
    }
    Ok(())
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: PathBuf| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.map(PathBuf::from))
        .any(|directory| is_program(directory.join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name() {
        assert!(is_there("sh"));
        assert!(!is_there("mkfs.none"));
    }
}
