//! A mount's health reports what happened to the mount, and the error for a busy mount names its users.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use csi_mount::internal::flow::block::{StagePlan, publish, stage};
use csi_mount::internal::{
    Feature, LoopDevice, MountUser, PeerNamespace, health, mount_users, stats, without_features,
};
use csi_mount::{
    Bind, Detach, ErrorKind, Filesystem, LoopOptions, Mount, MountAttributes, MountHealth, MountOptions,
    Target, Unmount, Unmounted, unmount,
};
use nix::libc;

use crate::devices::{Image, refused, run};
use crate::mount_support;
use crate::mount_support::{sandbox, target, with_target};

const KERNELS: [&[Feature]; 2] = [&[], &[Feature::Statmount, Feature::Openat2]];

/// Makes a filesystem on an image and mounts it with these options.
fn mounted(filesystem: &str, options: &[&str], target: &Target) -> Image {
    let image = Image::new(if filesystem == "xfs" { 300 } else { 64 });
    run(&format!("mkfs.{filesystem}"), &["-q", image.path().to_str().unwrap()]);
    let options = MountOptions::parse(options).unwrap();
    Mount::new(filesystem, image.path()).options(&options).at(target).unwrap();
    image
}

#[test]
fn a_mount_that_works_is_healthy() {
    for kernel in KERNELS {
        sandbox(|sandbox| {
            let target = target(sandbox, "target");
            without_features(kernel, || {
                assert_eq!(health(target.path()).unwrap(), MountHealth::NotMounted);
                assert_eq!(health(sandbox.join("absent")).unwrap(), MountHealth::NotMounted);
                assert_eq!(health("relative").unwrap_err().kind(), ErrorKind::InvalidInput);
                for options in [&[][..], &["ro"]] {
                    let options = MountOptions::parse(options).unwrap();
                    Mount::new("tmpfs", "volume").options(&options).at(&target).unwrap();
                    assert_eq!(health(target.path()).unwrap(), MountHealth::Healthy, "{options:?}");
                    unmount(&target).unwrap();
                }
            });
        });
    }
}

#[test]
fn an_ext4_with_an_error_is_read_only() {
    for kernel in KERNELS {
        with_target(|target| {
            let image = mounted("ext4", &["errors=remount-ro"], target);
            assert_eq!(health(target.path()).unwrap(), MountHealth::Healthy);
            let name = image.path().file_name().unwrap().to_str().unwrap();
            fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "1").unwrap();
            without_features(kernel, || {
                assert_eq!(health(target.path()).unwrap(), MountHealth::ReadOnly, "without {kernel:?}");
                // It does not count as the requested mount either.
                refused(Mount::new("ext4", image.path()).at(target), ErrorKind::ReadOnly);
            });
            unmount(target).unwrap();
        });
    }
}

#[test]
fn an_xfs_that_shut_down_is_dead_and_is_not_detached() {
    sandbox(|sandbox| {
        let target = target(sandbox, "target");
        let image = mounted("xfs", &[], &target);
        let pod = mount_support::target(sandbox, "pod");
        let bind = || Bind::new(target.path()).at(&pod);
        bind().unwrap();
        let open = fs::File::open(target.path()).unwrap();
        run("xfs_io", &["-x", "-c", "shutdown", target.path().to_str().unwrap()]);
        let found = health(target.path()).unwrap();
        assert_eq!(found, MountHealth::Dead(libc::EIO));
        assert!(found.to_string().contains("the filesystem is dead: Input/output error"), "{found}");
        // A repeated request does not count as done.
        let staged = stage(image.path(), &target, &StagePlan::new(Filesystem::Xfs)).map(drop);
        let published = publish(target.path(), &pod, MountAttributes::empty()).map(drop);
        let again =
            [Mount::new("xfs", image.path()).at(&target).map(drop), bind().map(drop), staged, published];
        for error in again.map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
            assert!(error.to_string().contains("dead"), "{error}");
        }
        unmount(&pod).unwrap();
        let error = Unmount::new().detach(Detach::IfUnresponsive).at(&target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "its device would not be free: {error}");
        drop(open);
        assert_eq!(unmount(&target).unwrap(), Unmounted::Unmounted { layers: 1 });
    });
}

/// A process with its working directory there.
struct Sleeper(Child);

impl Sleeper {
    fn at(directory: &Path) -> Self {
        let mut command = Command::new("sleep");
        command.arg("300").current_dir(directory).process_group(0);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_users_of_a_mount_are_named() {
    with_target(|target| {
        Mount::new("tmpfs", "volume").at(target).unwrap();
        assert_eq!(mount_users(target).unwrap(), []);
        let sleeper = Sleeper::at(target.path());
        let end = Instant::now() + Duration::from_secs(120);
        let is_sleeper =
            |user: &MountUser| *user == MountUser::Process { id: sleeper.0.id(), name: "sleep".into() };
        while !mount_users(target).unwrap().iter().all(is_sleeper) {
            assert!(Instant::now() < end, "it never becomes what it is");
        }
        let error = refused(unmount(target), ErrorKind::Busy);
        let wanted = format!("process {} (sleep); stop what uses it", sleeper.0.id());
        assert!(error.to_string().ends_with(&wanted), "{error}");
        drop(sleeper);
        unmount(target).unwrap();
    });
}

#[test]
fn the_users_of_a_copy_in_another_namespace_are_named() {
    sandbox(|sandbox| {
        let source = mount_support::source(sandbox, "source");
        let target = target(sandbox, "target");
        let peer = PeerNamespace::new();
        Bind::new(&source).at(&target).unwrap();
        // The sandbox is on the same filesystem, but its users say nothing about the target.
        let _elsewhere = Sleeper::at(sandbox);
        let path = target.path().to_owned();
        let sleeper = peer.run(move || Sleeper::at(&path));
        let error = unmount(&target).unwrap_err();
        let wanted = format!("Device or resource busy: process {} (", sleeper.0.id());
        assert!(error.to_string().contains(&wanted), "{error}");
        assert_eq!(mount_users(&target).unwrap().len(), 1);
        drop(sleeper);
        unmount(&target).unwrap();
    });
}

#[test]
fn a_loop_device_and_a_mount_below_are_named() {
    sandbox(|sandbox| {
        let outer = target(sandbox, "target");
        Mount::new("tmpfs", "volume").at(&outer).unwrap();
        let file = outer.path().join("image");
        fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let device = LoopDevice::attach(&file, &LoopOptions::new()).unwrap();
        let inner = target(outer.path(), "inner");
        Mount::new("tmpfs", "inner").at(&inner).unwrap();
        let users = mount_users(&outer).unwrap();
        assert!(users.contains(&MountUser::Mount(inner.path().to_owned())), "{users:?}");
        assert!(users.contains(&MountUser::LoopDevice(device.path().to_owned())), "{users:?}");
        let error = unmount(&outer).unwrap_err();
        assert!(error.to_string().contains(&format!("loop device {}", device.path().display())), "{error}");
        device.detach().unwrap();
        unmount(&inner).unwrap();
    });
}

/// For a filesystem that the kernel answers for from memory, no child process is needed, and the results are
/// the same. In the test, a thread's children are in a new PID namespace, where a query by a child fails.
#[test]
fn a_filesystem_that_answers_from_memory_is_queried_without_a_child() {
    sandbox(|sandbox| {
        let disk = target(sandbox, "disk");
        let memory = target(sandbox, "memory");
        let _image = mounted("ext4", &[], &disk);
        Mount::new("tmpfs", "memory").at(&memory).unwrap();
        let places = [disk.path(), memory.path()];
        let ask = |place: &&Path| Ok::<_, csi_mount::Error>((stats(place)?, health(place)?));
        let by_child = |place| without_features(&[Feature::Statmount], || ask(place));
        let known = places.each_ref().map(|place| by_child(place).unwrap());

        let without_children = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID).unwrap();
            assert!(places.iter().all(|place| by_child(place).is_err()), "a child could be asked");
            // While anybody mounts or renames, the kernel's cache can have no answer for a path.
            let end = Instant::now() + Duration::from_secs(60);
            places.each_ref().map(|place| {
                loop {
                    match ask(place) {
                        Ok(answer) => break answer,
                        Err(error) => assert!(Instant::now() < end, "{error}"),
                    }
                }
            })
        };
        let asked = std::thread::scope(|scope| scope.spawn(without_children).join().unwrap());
        assert_eq!(asked, known);
        unmount(&disk).unwrap();
    });
}
