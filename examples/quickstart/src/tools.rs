//! The programs that a run needs, looked up before it starts.

use std::path::Path;

use csi_mount::Filesystem;

/// TargetChecks for the programs that volumes with this filesystem on loop devices need.
///
/// # Errors
/// Names the missing program, and the Debian package that has it.
pub(crate) fn look_up(filesystem: Filesystem) -> Result<(), String> {
    if let Err(missing) = filesystem.find_tools() {
        let package = filesystem.package();
        return Err(format!(
            "{missing} (`apt-get install {package}`), choose another filesystem with --fs, or run `--only dirs`"
        ));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("/dev/loop-control is missing: load the kernel module `loop` (a container needs the host's /dev), \
                    or run `--only dirs`"
            .to_owned());
    }
    Ok(())
}
