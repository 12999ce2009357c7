//! More failures that users of block volumes reported for other drivers; see also `field_failures_block.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use csi_mount::internal::flow::block::{StagePlan, publish, stage, unpublish, unstage};
use csi_mount::internal::mount_state;
use csi_mount::testing::private_mount_namespace;
use csi_mount::{
    ErrorKind, Filesystem, MountAttributes, MountOptions, MountState, Removed, Target, Unmounted,
};

use crate::devices::{EndOfWork, Image, refused};
use crate::measure::rounds;
use crate::mount_support::{sandbox, target};

/// kubernetes/kubernetes#140681: after a hard reboot the mounts are gone, but the orchestrator's files are
/// not. The cleanup of these files deleted a volume's data.
#[test]
fn after_a_reboot_only_empty_directories_are_removed() {
    sandbox(|sandbox| {
        let image = Image::new(64);
        let staging = target(sandbox, "staging");
        let published = target(sandbox, "published");
        let plan = StagePlan::new(Filesystem::Ext4);
        // The mounts that are made in this namespace disappear at its end, as with a reboot.
        private_mount_namespace(|| {
            let at = |target: &Target| Target::new(target.path()).unwrap();
            stage(image.path(), &at(&staging), &plan).unwrap();
            publish(staging.path(), &at(&published), MountAttributes::empty()).unwrap();
            fs::write(published.path().join("file"), "data").unwrap();
            rustix::fs::sync();
        });
        assert_eq!(mount_state(published.path()).unwrap(), MountState::NotMounted);
        fs::write(published.path().join("vol_data.json"), "{}").unwrap();
        fs::create_dir(staging.path().join("left")).unwrap();

        let error = refused(unpublish(&published), ErrorKind::Busy);
        assert!(error.to_string().contains(published.path().to_str().unwrap()), "{error}");
        assert_eq!(unstage(&staging, Some(image.path())).unwrap(), Unmounted::NotMounted);
        assert!(published.path().join("vol_data.json").exists() && staging.path().join("left").exists());

        // A publish over the files would hide them, and its unpublish would find them.
        stage(image.path(), &staging, &plan).unwrap();
        let publish = || publish(staging.path(), &published, MountAttributes::empty());
        assert_eq!(publish().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(mount_state(published.path()).unwrap(), MountState::NotMounted);
        fs::remove_file(published.path().join("vol_data.json")).unwrap();
        publish().unwrap();
        assert_eq!(fs::read_to_string(published.path().join("file")).unwrap(), "data");
        assert_eq!(unpublish(&published).unwrap(), Removed::Removed);
        unstage(&staging, Some(image.path())).unwrap();
    });
}

/// Returns every command line of the machine that contains one of these words.
fn command_lines(words: [&str; 2]) -> BTreeSet<String> {
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| words.iter().any(|word| line.contains(word))).collect()
}

/// kubernetes-sigs/azurefile-csi-driver#1828: the password was an argument of `mount`, for all users to read.
#[test]
fn the_value_of_a_mount_option_is_on_no_command_line() {
    const SECRET: &str = "8151623";
    sandbox(|sandbox| {
        let staging = target(sandbox, "staging");
        let options = MountOptions::parse([format!("commit={SECRET}")]).unwrap();
        let plan = StagePlan::new(Filesystem::Ext4).options(options);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = BTreeSet::new();
                let mut scans = 0;
                while !is_done.load(Ordering::Relaxed) {
                    seen.extend(command_lines([SECRET, "mkfs.ext4"]));
                    scans += 1;
                }
                (seen, scans)
            });
            let end = EndOfWork(&is_done);
            for _ in 0..rounds(10) {
                let image = Image::new(64);
                // The first stage runs mkfs. The second one uses the existing filesystem.
                for _ in 0..2 {
                    stage(image.path(), &staging, &plan).unwrap();
                    unstage(&staging, Some(image.path())).unwrap();
                }
            }
            drop(end);
            let (seen, scans) = watcher.join().unwrap();
            assert!(seen.iter().any(|line| line.contains("mkfs.ext4")), "{scans} scans saw no program");
            assert!(!seen.iter().any(|line| line.contains(SECRET)), "{seen:?}");
        });
    });
}
