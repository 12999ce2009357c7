//! A mount that outlives its program: the driver mounts, and each `flatfs` continues where the last one was killed.
//! Needs root.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use csi_core::mount::internal::flow::fuse::{FuseDaemon, publish, stage, unpublish, unstage};
use csi_core::mount::testing::private_mount_namespace;
use csi_core::mount::{Mount, MountAttributes, MountOptions, Target};

/// The processes that serve this place.
fn programs(staging: &Path) -> Vec<i32> {
    let mark = format!("CSI_MOUNT_FUSE_AT={}", staging.display());
    let all = fs::read_dir("/proc").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    numbers.filter(is_marked).collect()
}

/// By a program: its start closes copies of this process's files in the mount, and `flatfs` answers then that it needs no
/// FLUSH. Else the start of the next `flatfs` would wait for its own answer.
fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn open_files_stay_when_the_program_is_killed() {
    let place = tempfile::tempdir().unwrap().keep();
    private_mount_namespace(|| {
        Mount::new("tmpfs", "test").at(&Target::new(&place).unwrap()).unwrap();
        let store = place.join("store");
        fs::create_dir(&store).unwrap();
        let staging = Target::new(place.join("staging")).unwrap();
        let pod = Target::new(place.join("pod")).unwrap();
        let options = MountOptions::parse(["allow_other", "default_permissions", "nosuid", "nodev"]).unwrap();
        let daemon = FuseDaemon::new(env!("CARGO_BIN_EXE_flatfs"))
            .arg(&store)
            .arg_device(options)
            .continue_when_lost()
            .ready_time_limit(Duration::from_secs(120));
        stage(&staging, &daemon).unwrap();
        publish(staging.path(), &pod, MountAttributes::empty()).unwrap();
        let files: Vec<File> = (0..3)
            .map(|number| {
                let path = pod.path().join(format!("file-{number}"));
                let mut file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
                file.write_all(b"before ").unwrap();
                file
            })
            .collect();
        fs::remove_file(pod.path().join("file-2")).unwrap();
        let first = programs(staging.path());
        assert_eq!(first.len(), 1);
        kill(first[0]);
        // No wait: the calls wait for the next process.
        for (number, mut file) in files.into_iter().enumerate() {
            let written = file.write_all(b"after").and_then(|()| file.sync_all());
            if number == 2 {
                assert!(written.is_err(), "it was removed");
                continue;
            }
            written.unwrap();
            let mut text = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "before after");
            let stored = fs::read_to_string(store.join(format!("file-{number}"))).unwrap();
            assert_eq!(stored, "before after");
        }
        let begun = Instant::now();
        while programs(staging.path()).len() != 1 {
            assert!(begun.elapsed() < Duration::from_secs(120), "one process serves it");
        }
        assert_ne!(programs(staging.path()), first);
        unpublish(&pod).unwrap();
        unstage(&staging).unwrap();
        assert!(programs(staging.path()).is_empty());
    });
    fs::remove_dir(&place).unwrap();
}
