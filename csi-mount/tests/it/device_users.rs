//! The users of a block device: each of many kinds of use prevents a format, a stage and an unstage.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use csi_mount::internal::flow::block::{
    FilesystemOrigin, MountCopies, StagePlan, publish as publish_filesystem, publish_device, stage,
    unpublish, unstage, unstage_with,
};
use csi_mount::internal::{
    CheckPolicy, CheckReport, DeviceQuestions as _, DeviceUser, Format, Probe, check, grow_unmounted, health,
    mount_state,
};
use csi_mount::{
    BlockDevice, CheckLimits, DeviceAccess, DeviceUse, ErrorKind, Filesystem, Frozen, KernelVersion, Mount,
    MountAttributes, MountHealth, MountOptions, MountState, Outcome, Target, Unmounted, unmount,
};

use crate::devices;
use crate::devices::{Image, MIB, losetup_detach, refused, run, run_when_let_go};
use crate::mount_support::{sandbox, target};

/// A use of a device. It ends when this value is dropped.
struct Use(Option<Box<dyn FnOnce()>>);

impl Use {
    fn until(end: impl FnOnce() + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// Runs a script in a new mount namespace, waits until the script is done, and keeps the namespace.
fn in_another_namespace(script: &str) -> Use {
    let mut child = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            &format!("{script}\necho done\nexec sleep 600"),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare of util-linux is needed here");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n", "{script}");
    let end = |mut child: Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    Use::until(move || end(child))
}

fn losetup(arguments: &[&str]) -> Use {
    let node = run("losetup", &[&["--find", "--show"], arguments].concat());
    let node = PathBuf::from(node.trim_end());
    Use::until(move || losetup_detach(&node))
}

/// Makes the second MiB of a disk its first partition, and returns the partition's node.
fn partition(image: &Image) -> (PathBuf, Use) {
    let disk = image.path().to_str().unwrap().to_owned();
    run("addpart", &[&disk, "1", "2048", "2048"]);
    let name = image.path().file_name().unwrap().to_str().unwrap();
    let node = PathBuf::from(format!("/dev/{name}p1"));
    (node, Use::until(move || run_when_let_go("delpart", &[&disk, "1"])))
}

fn publish(device: &Path, at: &Path, access: DeviceAccess) -> Use {
    let at = Target::new(at).unwrap();
    publish_device(device, &at, access).unwrap();
    Use::until(move || _ = unpublish(&at).unwrap())
}

fn mount_ext4(device: &Path, at: &Path) -> Use {
    let at = Target::new(at).unwrap();
    let _ = at.create_dir().unwrap();
    Mount::new("ext4", device).at(&at).unwrap();
    Use::until(move || _ = unmount(&at).unwrap())
}

/// Makes an ext4 to which the kernel later writes nothing on its own: the tests compare the device's content.
fn mkfs(device: &Path) {
    let all_now = ["-E", "lazy_itable_init=0,lazy_journal_init=0", "-N", "64"];
    run("mkfs.ext4", &[&["-q", "-F"], &all_now[..], &[device.to_str().unwrap()]].concat());
}

type Begin = fn(&Image, &Path) -> Vec<Use>;

/// How an error message names the user, and how the use begins. The uses are listed so that the last one made
/// is dropped first.
const KINDS: [(&str, Begin); 14] = [
    ("it is mounted at ", |image, at| {
        mkfs(image.path());
        vec![mount_ext4(image.path(), &at.join("m"))]
    }),
    ("in another mount namespace", |image, at| {
        mkfs(image.path());
        let at = target(at, "m");
        let script = format!("mount -t ext4 {} {}", image.path().display(), at.path().display());
        vec![in_another_namespace(&script)]
    }),
    ("it is published raw at ", |image, at| {
        vec![publish(image.path(), &at.join("p"), DeviceAccess::ReadWrite)]
    }),
    ("it is published raw for reading at ", |image, at| {
        vec![publish(image.path(), &at.join("p"), DeviceAccess::ReadOnly)]
    }),
    ("in another mount namespace", |image, at| {
        File::create(at.join("p")).unwrap();
        let script = format!("mount --bind {} {}", image.path().display(), at.join("p").display());
        vec![in_another_namespace(&script)]
    }),
    // A node with another name.
    ("in another mount namespace", |image, at| {
        File::create(at.join("p")).unwrap();
        devices::put_node(&at.join("node"), image.loop_device().number());
        let script = format!("mount --bind {} {}", at.join("node").display(), at.join("p").display());
        vec![in_another_namespace(&script)]
    }),
    ("is attached to it", |image, _| vec![losetup(&[image.path().to_str().unwrap()])]),
    ("is attached to it for reading", |image, _| {
        vec![losetup(&["--read-only", image.path().to_str().unwrap()])]
    }),
    // An earlier failure: a filesystem far inside the device, on a loop device over a part of it.
    ("it is mounted at |is attached to it", |image, at| {
        let part = LoopOffset::attach(image.path(), 40 * MIB);
        mkfs(&part.0);
        let mounted = mount_ext4(&part.0, &at.join("m"));
        vec![mounted, Use::until(move || drop(part))]
    }),
    ("held exclusively|has it open", |image, _| {
        let flags = nix::libc::O_EXCL | nix::libc::O_CLOEXEC;
        let held = OpenOptions::new().read(true).custom_flags(flags).open(image.path()).unwrap();
        vec![Use::until(move || drop(held))]
    }),
    ("the node uses it as swap space", |image, _| {
        let device = image.path().to_str().unwrap().to_owned();
        run("mkswap", &[&device]);
        run("swapon", &["--priority", "0", &device]);
        // A page of a process that is at its memory limit comes back when that process ends.
        vec![Use::until(move || run_when_let_go("swapoff", &[&device]))]
    }),
    // Users of its partitions.
    ("is attached to it", |image, _| {
        let (node, partition) = partition(image);
        vec![losetup(&[node.to_str().unwrap()]), partition]
    }),
    ("it is published raw at ", |image, at| {
        let (node, partition) = partition(image);
        vec![publish(&node, &at.join("p"), DeviceAccess::ReadWrite), partition]
    }),
    ("held exclusively|has it open", |image, _| {
        let (node, partition) = partition(image);
        let flags = nix::libc::O_EXCL | nix::libc::O_CLOEXEC;
        let held = OpenOptions::new().read(true).custom_flags(flags).open(node).unwrap();
        vec![Use::until(move || drop(held)), partition]
    }),
];

struct LoopOffset(PathBuf);

impl LoopOffset {
    fn attach(device: &Path, offset: u64) -> Self {
        let offset = format!("--offset={offset}");
        let node = run("losetup", &["--find", "--show", &offset, device.to_str().unwrap()]);
        Self(node.trim_end().into())
    }
}

impl Drop for LoopOffset {
    fn drop(&mut self) {
        losetup_detach(&self.0);
    }
}

#[test]
fn a_device_in_use_is_neither_formatted_nor_staged_nor_free() {
    for (index, (name, begin)) in KINDS.into_iter().enumerate() {
        for filesystem in Filesystem::ALL {
            let say = format!("kind {index} ({name}), {filesystem}");
            sandbox(|sandbox| {
                let image = Image::new(320);
                let device = image.open();
                let Probe::Blank(proof) = device.probe() else { panic!("{say}: it is blank") };
                let uses = begin(&image, sandbox);
                // The kernel itself can write to a swap space, but not to its header.
                let content = || if name.contains("swap") { image.header() } else { image.content() };
                let before = content();
                let is_named = |error: &csi_mount::Error| {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{say}: {error}");
                    assert!(name.split('|').any(|name| error.to_string().contains(name)), "{say}: {error}");
                };
                is_named(&Format::new(filesystem).run(proof).unwrap_err());
                is_named(&unstage(&target(sandbox, "staging"), Some(image.path())).unwrap_err());
                let staging = target(sandbox, "other staging");
                if index > 1 {
                    let refused = stage(image.path(), &staging, &StagePlan::new(filesystem)).unwrap_err();
                    assert!(
                        [ErrorKind::Busy, ErrorKind::NotBlank].contains(&refused.kind()),
                        "{say}: {refused}"
                    );
                }
                assert_eq!(content(), before, "{say}: something was written");
                drop(uses);
                image.is_let_go(&say);
                unstage(&target(sandbox, "staging"), Some(image.path())).unwrap();
            });
        }
    }
}

/// The kernel shares one filesystem among its mounts, and a reader of the device changes nothing under it.
#[test]
fn readers_and_other_mounts_go_together_with_a_stage_and_writers_do_not() {
    sandbox(|sandbox| {
        let image = Image::new(64);
        mkfs(image.path());
        let staging = target(sandbox, "staging");
        let plan = StagePlan::new(Filesystem::Ext4);
        let reader = publish(image.path(), &sandbox.join("r"), DeviceAccess::ReadOnly);
        assert_eq!(
            check(&image.open(), Filesystem::Ext4, CheckPolicy::Preen, CheckLimits::default()).unwrap(),
            CheckReport::Clean
        );
        let elsewhere = mount_ext4(image.path(), &sandbox.join("m"));
        let staged = stage(image.path(), &staging, &plan).unwrap();
        assert_eq!((staged.outcome, staged.origin), (Outcome::Mounted, FilesystemOrigin::Existing));
        assert_eq!(stage(image.path(), &staging, &plan).unwrap().outcome, Outcome::AlreadyMounted);
        drop(elsewhere);
        let users = image.open().users().unwrap();
        let [DeviceUser::Mount(_), DeviceUser::Published { .. }, DeviceUser::LoopDevice { .. }] = &*users
        else {
            panic!("{users:?}")
        };
        drop(reader);
        unstage(&staging, Some(image.path())).unwrap();

        for write in [
            |image: &Image, sandbox: &Path| {
                publish(image.path(), &sandbox.join("w"), DeviceAccess::ReadWrite)
            },
            |image: &Image, _: &Path| losetup(&[image.path().to_str().unwrap()]),
        ] {
            let _writer = write(&image, sandbox);
            let device = image.open();
            for error in [
                stage(image.path(), &staging, &plan).unwrap_err(),
                check(&device, Filesystem::Ext4, CheckPolicy::Preen, CheckLimits::default()).unwrap_err(),
                check(&device, Filesystem::Ext4, CheckPolicy::ReportOnly, CheckLimits::default())
                    .unwrap_err(),
                grow_unmounted(&device, Filesystem::Ext4, CheckLimits::default()).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            }
        }
    });
}

/// A loop device over another part of the disk is not a user of the partition.
#[test]
fn a_partition_has_the_users_of_its_part_of_the_disk() {
    let image = Image::new(16);
    let (node, _partition) = partition(&image);
    let device = BlockDevice::open(&node).unwrap();
    let disk = image.path().to_str().unwrap();
    for (offset, users) in [(0, 0), (MIB, 1), (2 * MIB, 0)] {
        let over = losetup(&[&format!("--offset={offset}"), &format!("--sizelimit={MIB}"), disk]);
        assert_eq!(device.users().unwrap().len(), users, "at {offset}");
        assert_eq!(image.open().users().unwrap().len(), 1, "at {offset}");
        drop(over);
    }
}

/// The error names the copy by a process in its mount namespace. The copy is not unmounted while a process
/// has a file open on it.
#[test]
fn a_copy_of_a_mount_elsewhere_is_named_and_unmounted_only_if_unused_and_asked_for() {
    sandbox(|sandbox| {
        let image = Image::new(64);
        let staging = target(sandbox, "staging");
        let plan = StagePlan::new(Filesystem::Ext4);
        let unstage_unused = || unstage_with(&staging, Some(image.path()), MountCopies::UnmountUnused);
        for script in ["true", &format!("exec 3<{}", staging.path().display())] {
            stage(image.path(), &staging, &plan).unwrap();
            let copy = in_another_namespace(script);
            let error = refused(unstage(&staging, Some(image.path())), ErrorKind::Busy);
            for part in [staging.path().to_str().unwrap(), "in another mount namespace (", "sleep)"] {
                assert!(error.to_string().contains(part), "{part}: {error}");
            }
            let unstaged = unstage_unused();
            if script == "true" {
                assert_eq!(unstaged.unwrap(), Unmounted::NotMounted);
            } else {
                assert_eq!(unstaged.unwrap_err().kind(), ErrorKind::Busy);
            }
            drop(copy);
            assert_eq!(unstage_unused().unwrap(), Unmounted::NotMounted);
        }
    });
}

/// The process in another mount namespace that keeps a copy of what is mounted on the device.
fn owner_of_copy(image: &Image) -> u32 {
    let users = image.open().users().unwrap();
    let process = users.iter().find_map(|user| match user {
        DeviceUser::Mount(place) => {
            let text = place.to_string();
            let (_, process) = text.split_once("of process ")?;
            process.split(',').next()?.parse().ok()
        }
        _ => None,
    });
    process.unwrap_or_else(|| panic!("{users:?}"))
}

/// The mount stays in use elsewhere, and the volume counts as unstaged. Nothing of it is lost, nothing more can be
/// written, and it can be staged again when the copy is gone.
#[test]
fn a_filesystem_with_a_copy_elsewhere_is_shut_down_if_asked_for() {
    sandbox(|sandbox| {
        for (filesystem, access) in
            [(Filesystem::Ext4, "rw"), (Filesystem::Xfs, "rw"), (Filesystem::Ext4, "ro")]
        {
            let image = Image::new(320);
            let staging = target(sandbox, &format!("{filesystem}-{access}"));
            let at = staging.path().display();
            let mut plan = StagePlan::new(filesystem);
            stage(image.path(), &staging, &plan).unwrap();
            fs::write(staging.path().join("file"), "kept").unwrap();
            let mut open = format!("exec 3>>{at}/open; echo before >&3");
            if access == "ro" {
                unstage(&staging, Some(image.path())).unwrap();
                plan = plan.options(MountOptions::new().read_only());
                stage(image.path(), &staging, &plan).unwrap();
                open = format!("exec 3<{at}/file");
            }
            let copy = in_another_namespace(&open);
            let process = PathBuf::from(format!("/proc/{}", owner_of_copy(&image)));
            let there = process.join("root").join(staging.path().strip_prefix("/").unwrap());
            assert_eq!(unstage(&staging, Some(image.path())).unwrap_err().kind(), ErrorKind::Busy);
            assert_eq!(fs::read_to_string(there.join("file")).unwrap(), "kept", "by default the copy works");

            for _ in 0..2 {
                unstage_with(&staging, Some(image.path()), MountCopies::ShutDown).unwrap();
            }
            assert_eq!(image.open().in_use().unwrap(), DeviceUse::InUse);
            let refusals = [
                fs::read(there.join("file")).unwrap_err(),
                fs::write(there.join("new"), "x").unwrap_err(),
                fs::write(process.join("fd/3"), "after").unwrap_err(),
            ];
            for error in refusals {
                let number = error.raw_os_error();
                assert!(number == Some(nix::libc::EIO) || access == "ro", "{filesystem}: {error}");
            }
            let content = fs::read(image.file()).unwrap();
            // An older ext4 does not say that it was shut down.
            let says_so = filesystem != Filesystem::Ext4
                || KernelVersion::running().unwrap() >= KernelVersion::new(6, 15);
            if says_so {
                let error = refused(stage(image.path(), &staging, &plan), ErrorKind::Busy);
                for part in ["its filesystem was shut down", "in another mount namespace ("] {
                    assert!(error.to_string().contains(part), "{error}");
                }
                assert_eq!(mount_state(staging.path()).unwrap(), MountState::NotMounted);
            }

            drop(copy);
            image.is_let_go("the copy is gone");
            assert!(fs::read(image.file()).unwrap() == content, "{filesystem}: the copy wrote to the device");
            stage(image.path(), &staging, &plan).unwrap();
            assert_eq!(fs::read_to_string(staging.path().join("file")).unwrap(), "kept");
            if access == "rw" {
                assert_eq!(fs::read_to_string(staging.path().join("open")).unwrap(), "before\n");
            }
            unstage(&staging, Some(image.path())).unwrap();
            // After the stage: a frozen XFS has records in its log, which the next mount replays.
            let report = check(&image.open(), filesystem, CheckPolicy::ReportOnly, CheckLimits::default());
            assert_eq!(report.unwrap(), CheckReport::Clean, "{filesystem}");
        }
    });
}

/// A volume that is published here is in use by its pod, and a device can have users that no shut-down ends.
#[test]
fn a_filesystem_is_not_shut_down_while_it_is_used_here_or_cannot_be() {
    sandbox(|sandbox| {
        let image = Image::new(320);
        let staging = target(sandbox, "staging");
        let published = target(sandbox, "published");
        let shut_down = || unstage_with(&staging, Some(image.path()), MountCopies::ShutDown);
        stage(image.path(), &staging, &StagePlan::new(Filesystem::Ext4)).unwrap();
        publish_filesystem(staging.path(), &published, MountAttributes::empty()).unwrap();
        let copy = in_another_namespace("true");
        for _ in 0..2 {
            let error = refused(shut_down(), ErrorKind::Busy);
            assert!(
                error.to_string().contains(&format!("mounted at {}", published.path().display())),
                "{error}"
            );
            fs::write(published.path().join("file"), "works").unwrap();
        }
        unpublish(&published).unwrap();
        // In the other namespace it is published too, and that is a copy like the staged one.
        shut_down().unwrap();
        drop(copy);
        image.is_let_go("the copy is gone");
        shut_down().unwrap();

        let image = Image::new(320);
        let staging = target(sandbox, "btrfs");
        stage(image.path(), &staging, &StagePlan::new(Filesystem::Btrfs)).unwrap();
        let copy = in_another_namespace("true");
        let there = PathBuf::from(format!("/proc/{}/root", owner_of_copy(&image)));
        let there = there.join(staging.path().strip_prefix("/").unwrap());
        match unstage_with(&staging, Some(image.path()), MountCopies::ShutDown) {
            // Linux 6.19
            Ok(_) => assert!(fs::write(there.join("file"), "x").is_err()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                assert!(
                    error.to_string().contains("its btrfs could not be written back and shut down"),
                    "{error}"
                );
                fs::write(there.join("file"), "works").unwrap();
            }
        }
        drop(copy);
    });
}

/// After an unmount nobody could thaw the filesystem.
#[test]
fn a_frozen_filesystem_is_said_to_be_frozen_and_stays_mounted() {
    sandbox(|sandbox| {
        for filesystem in Filesystem::ALL {
            let image = Image::new(320);
            let staging = target(sandbox, filesystem.name());
            stage(image.path(), &staging, &StagePlan::new(filesystem)).unwrap();
            assert_eq!(health(staging.path()).unwrap(), MountHealth::Healthy);
            let frozen = Frozen::at(staging.path()).unwrap();
            let error = unstage(&staging, Some(image.path())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{filesystem}: {error}");
            assert!(error.to_string().contains("is frozen"), "{filesystem}: {error}");
            assert!(mount_state(staging.path()).unwrap().mount_point().is_some(), "{filesystem}");
            assert_eq!(health(staging.path()).unwrap(), MountHealth::Frozen, "{filesystem}");
            drop(frozen);
            assert_eq!(health(staging.path()).unwrap(), MountHealth::Healthy, "{filesystem}");
            unstage(&staging, Some(image.path())).unwrap();
        }
    });
}

#[test]
fn a_directory_that_nothing_could_be_mounted_on_is_removed_if_this_call_made_it() {
    sandbox(|sandbox| {
        let image = Image::new(64);
        let plan = StagePlan::new(Filesystem::Ext4).options(MountOptions::parse(["no_such_option"]).unwrap());
        let staging = Target::new(sandbox.join("staging")).unwrap();
        stage(image.path(), &staging, &plan).unwrap_err();
        assert_eq!(mount_state(staging.path()).unwrap(), MountState::Absent);
        let _ = staging.create_dir().unwrap();
        stage(image.path(), &staging, &plan).unwrap_err();
        assert_eq!(mount_state(staging.path()).unwrap(), MountState::NotMounted, "it was there before");
    });
}
