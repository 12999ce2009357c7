//! An unmount removes every layer, does more than that only with proof, and verifies the result.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use csi_mount::internal::{Feature, health_within, mount_state, stats_within, without_features};
use csi_mount::{
    Detach, ErrorKind, Mount, MountHealth, MountState, Removed, Target, Unmount, Unmounted, unmount,
};

use crate::mount_support::{layers, sandbox, target, with_target};

/// Mounts another layer over the existing mount, as a driver without checks does.
fn stack(target: &Target) {
    rustix::mount::mount("layer", target.path(), "tmpfs", rustix::mount::MountFlags::empty(), c"").unwrap();
}

#[test]
fn every_layer_is_unmounted() {
    with_target(|target| {
        (0..5).for_each(|_| stack(target));
        assert_eq!(layers(target.path()), 5);
        assert_eq!(unmount(target).unwrap(), Unmounted::Unmounted { layers: 5 });
        assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
        assert_eq!(unmount(target).unwrap(), Unmounted::NotMounted);
        assert_eq!(target.remove().unwrap(), Removed::Removed);
        assert_eq!(unmount(target).unwrap(), Unmounted::NotMounted);
    });
}

#[test]
fn a_parent_directory_that_is_gone_has_nothing_mounted() {
    sandbox(|sandbox| {
        let target = Target::new(sandbox.join("no/such/target")).unwrap();
        assert_eq!(unmount(&target).unwrap(), Unmounted::NotMounted);
        assert_eq!(target.remove().unwrap(), Removed::WasAbsent);
        assert_eq!(target.create_dir().unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_mount_in_use_is_busy_unless_a_detach_is_allowed() {
    with_target(|target| {
        Mount::new("tmpfs", "volume").at(target).unwrap();
        let open = fs::File::create(target.path().join("open")).unwrap();
        assert_eq!(unmount(target).unwrap_err().kind(), ErrorKind::Busy);
        let error = Unmount::new().detach(Detach::IfUnresponsive).at(target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "it answers, so it is not detached");
        assert_eq!(Unmount::new().detach(Detach::IfBusy).at(target).unwrap(), Unmounted::Detached);
        assert_eq!(mount_state(target.path()).unwrap(), MountState::NotMounted);
        drop(open);
    });
}

#[test]
fn a_time_limit_can_have_no_end() {
    with_target(|target| {
        let no_end = Duration::MAX;
        Mount::new("tmpfs", "volume").time_limit(no_end).at(target).unwrap();
        stats_within(target.path(), no_end).unwrap();
        assert_eq!(health_within(target.path(), no_end).unwrap(), MountHealth::Healthy);
        let unmount = Unmount::new().answer_time_limit(no_end).finish_time_limit(no_end);
        assert_eq!(unmount.at(target).unwrap(), Unmounted::Unmounted { layers: 1 });
    });
}

#[test]
fn a_mount_below_is_named_and_stays() {
    sandbox(|sandbox| {
        let outer = target(sandbox, "outer");
        Mount::new("tmpfs", "outer").at(&outer).unwrap();
        let inner = target(outer.path(), "inner");
        Mount::new("tmpfs", "inner").at(&inner).unwrap();
        let error = unmount(&outer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(
            error.to_string().contains(&format!("{} is mounted below it", inner.path().display())),
            "{error}"
        );
        assert_eq!(layers(inner.path()), 1);
    });
}

#[test]
fn a_symbolic_link_is_not_followed_to_what_is_mounted() {
    for features in [&[][..], &[Feature::StatxMount]] {
        sandbox(|sandbox| {
            let target = target(sandbox, "target");
            Mount::new("tmpfs", "volume").at(&target).unwrap();
            let link = sandbox.join("link");
            symlink(target.path(), &link).unwrap();
            without_features(features, || {
                assert_eq!(unmount(&Target::new(&link).unwrap()).unwrap(), Unmounted::NotMounted);
            });
            assert_eq!(layers(target.path()), 1);
        });
    }
}

/// In a user namespace with fewer rights, inherited mounts are locked (mount_namespaces(7)). An unmount
/// leaves them, and the error says why.
#[test]
fn a_mount_of_another_user_namespace_stays_and_the_error_says_why() {
    const INSIDE: &str = "CSI_MOUNT_TEST_LOCKED_AT";
    if let Some(path) = std::env::var_os(INSIDE) {
        let target = Target::new(path).unwrap();
        let error = unmount(&target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("another user namespace"), "{error}");
        assert!(matches!(mount_state(target.path()).unwrap(), MountState::Mounted(_)));
        return;
    }
    with_target(|target| {
        Mount::new("tmpfs", "given").at(target).unwrap();
        let inside = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount"])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "mount_unmount::a_mount_of_another_user_namespace_stays_and_the_error_says_why",
            ])
            .env(INSIDE, target.path())
            .output()
            .unwrap();
        assert!(inside.status.success(), "{}", String::from_utf8_lossy(&inside.stdout));
        unmount(target).unwrap();
    });
}
