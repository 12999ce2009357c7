//! A volume group, and the driver on it.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use csi_core::mount::LoopOptions;
use csi_core::{Host, Plugin};

/// Runs lvm2 as an administrator does, and returns what it printed.
pub(crate) fn lvm(arguments: &[&str]) -> String {
    let mut command = Command::new("lvm");
    command.args(arguments).envs([("DM_DISABLE_UDEV", "1"), ("LVM_SUPPRESS_FD_WARNINGS", "1")]);
    let output = command.output().expect("lvm");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A volume group with a thin pool, on a loop device.
pub(crate) fn volume_group(group: &str, directory: &Path) {
    let image = directory.join("disk");
    File::create(&image).and_then(|file| file.set_len(4 << 30)).expect("an image");
    let device = Host::kernel().devices().loop_attach(&image, &LoopOptions::new()).expect("a loop device");
    lvm(&["vgcreate", "--yes", group, device.path.to_str().expect("UTF-8")]);
    lvm(&["lvcreate", "--yes", "--type", "thin-pool", "-L", "1g", "-n", "pool", group]);
}

/// The driver on this group.
pub(crate) fn plugin(group: &str) -> Plugin {
    let args = ["local", "--node-id=node-1", "--overcommit=400", "--group", group];
    local::plugin(&local::Args::parse_from(args))
}
