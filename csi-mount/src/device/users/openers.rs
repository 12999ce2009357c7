//! The processes that have a block device open.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::DeviceUser;
use crate::mounted::users;
use crate::sys::exec::{Program, processes, program_name};
use crate::sys::ids::DeviceNumber;

/// Time limit for the scan of all processes: some of many are better than a late answer.
const SCAN_TIME_LIMIT: Duration = Duration::from_secs(1);

/// Up to `max` of them, as far as `/proc` shows them within a second.
pub(super) fn openers(device: DeviceNumber, max: usize) -> Vec<DeviceUser> {
    let deadline = Instant::now() + SCAN_TIME_LIMIT;
    let mut found = Vec::new();
    for id in processes().into_iter().flatten() {
        if Instant::now() > deadline || found.len() >= max {
            break;
        }
        let process = Path::new("/proc").join(id.to_string());
        if id != std::process::id() && Program::of(id) != Program::InExec && has_open(&process, device) {
            found.push(DeviceUser::Process { id, name: program_name(id) });
        }
    }
    found
}

fn has_open(process: &Path, device: DeviceNumber) -> bool {
    let on_smb = users::smb_mounts(process);
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files.map(|file| file.path()).any(|link| {
        // By its number: the node can be anywhere.
        !users::is_on_any(&on_smb, &link) && node_at(&link) == Some(device)
    })
}

fn node_at(link: &Path) -> Option<DeviceNumber> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, link, flags, StatxFlags::TYPE).ok()?;
    Some(DeviceNumber { major: found.stx_rdev_major, minor: found.stx_rdev_minor })
}

#[cfg(test)]
mod needs_root {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use rustix::fs::{FileType, Mode, mknodat};

    use super::*;
    use crate::device::loop_device::{LoopDevice, LoopOptions};
    use crate::mounting::mount::Mount;
    use crate::place::target::Target;
    use crate::testing::private_mount_namespace;

    /// The path that the kernel shows for an open node is any path, also one that no longer exists.
    #[test]
    fn a_process_with_another_node_of_the_device_is_found() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            Mount::new("tmpfs", "nodes").at(&Target::new(directory.path()).unwrap()).unwrap();
            let image = directory.path().join("image");
            let node = directory.path().join("any name");
            fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
            let device = LoopDevice::attach(&image, &LoopOptions::new()).unwrap();
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, &node, FileType::BlockDevice, mode, device.number().dev_t()).unwrap();
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec 3<\"$0\"; echo; exec sleep 600 >&-"]).arg(&node).stdout(Stdio::piped());
            let mut child = shell.spawn().unwrap();
            child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
            fs::remove_file(&node).unwrap();
            let found = openers(device.number(), usize::MAX);
            child.kill().unwrap();
            child.wait().unwrap();
            let is_child =
                |user: &DeviceUser| matches!(user, DeviceUser::Process { id, .. } if *id == child.id());
            assert!(found.iter().any(is_child), "{found:?}");
            device.detach().unwrap();
        });
    }
}
