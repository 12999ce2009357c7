//! The quickstart as root: every filesystem, every way to end, and nothing left after it.

mod support;

use std::process::Command;

use csi_mount::testing::private_mount_namespace;
use nix::sys::signal::{Signal, kill};
use support::{Place, text};

#[test]
fn every_filesystem_twice_and_nothing_is_left() {
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let place = Place::of_root();
        for _ in 0..2 {
            let output = place.run(&["--fs", filesystem]);
            let text = text(&output);
            assert_eq!(output.status.code(), Some(0), "{text}");
            assert!(text.contains(&format!("{filesystem} on /dev/loop")), "{text}");
            assert!(text.contains(", was ") && text.contains("success"), "{text}");
            assert!(text.contains("dirs.csi.example.org") && !text.contains('\x1b'), "{text}");
            place.assert_clean(&text);
        }
    }
}

#[test]
fn ctrl_c_at_any_time_leaves_nothing() {
    // The marker to wait for, and its number of occurrences: they set the step in which the signal arrives.
    for (marker, count) in [
        ("image files on loop devices", 1),
        ("start the driver", 1),
        ("ValidateVolumeCapabilities", 1),
        ("NodeStageVolume", 1),
        ("NodePublishVolume", 1),
        ("NodePublishVolume", 2),
        ("ControllerExpandVolume", 1),
        ("NodeUnstageVolume", 1),
        ("pvc-raw", 1),
        ("NodePublishVolume", 6),
        ("dirs.csi.example.org", 1),
    ] {
        let place = Place::of_root();
        let (status, text) = place.interrupt_at(marker, count);
        assert_eq!(status, Some(130), "after {marker} {count}:\n{text}");
        assert!(text.contains("Ctrl-C"), "{text}");
        place.assert_clean(&text);
    }
}

#[test]
fn sigterm_has_its_own_status() {
    let place = Place::of_root();
    let mut running = place.start(&["--only", "block"]);
    running.until("NodePublishVolume", 1);
    running.signal(Signal::SIGTERM);
    let (status, text) = running.finish();
    assert_eq!(status, Some(143), "{text}");
    place.assert_clean(&text);
}

#[test]
fn a_driver_that_is_killed_is_a_failed_step_and_leaves_nothing() {
    for marker in ["ValidateVolumeCapabilities", "NodePublishVolume", "NodeUnpublishVolume"] {
        let place = Place::of_root();
        let mut running = place.start(&["--only", "block"]);
        running.until("start the driver", 1);
        let driver = running.driver();
        running.until(marker, 1);
        kill(driver, Signal::SIGKILL).unwrap();
        let (status, text) = running.finish();
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains("FAIL") && text.contains("SIGKILL"), "{text}");
        place.assert_clean(&text);
    }
}

#[test]
fn a_quickstart_that_is_killed_is_cleaned_up_after_by_its_driver() {
    for marker in ["ValidateVolumeCapabilities", "NodePublishVolume"] {
        let place = Place::of_root();
        let mut running = place.start(&["--only", "block"]);
        running.until(marker, 1);
        running.signal(Signal::SIGKILL);
        assert_eq!(running.finish().0, None);
        place.until_clean();
    }
}

// In the machine's namespace, a namespace that another program makes meanwhile would have a copy of the mounts,
// and the driver would rightly refuse to unstage them.
#[test]
fn what_is_kept_goes_with_the_commands_that_are_printed() {
    private_mount_namespace(|| {
        let place = Place::of_root();
        let output = place.run(&["--keep", "--only", "block"]);
        let printed = text(&output);
        let left = place.left();
        let (_, commands) = printed.split_once("these commands remove it:").expect(&printed);
        let commands: Vec<_> = commands.lines().filter(|line| line.starts_with("  ")).collect();
        for command in &commands {
            let done = Command::new("sh").args(["-c", command]).output().unwrap();
            assert!(done.status.success(), "{command}: {}", text(&done));
        }
        place.assert_clean(&printed);
        assert_eq!(output.status.code(), Some(0), "{printed}");
        // Two targets for each of two volumes and a staging directory, three loop devices, the folder.
        assert_eq!((left.len(), commands.len()), (9, 9), "{left:#?}\n{printed}");
    });
}
