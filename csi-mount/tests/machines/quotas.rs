//! A directory with a limit holds so much and no more, and others are not affected. Needs a kernel with the quotas of
//! ext4 and XFS.

use std::fs;
use std::process::Command;

use csi_mount::internal::{Feature, without_features};
use csi_mount::{DirectoryLimit, ErrorKind, Removed};

use crate::devices;
use crate::quota_support::{
    Disk, KIB, MIB, OURS, as_workload, assert_full, assert_refused, create, directories, has_limit,
    in_memory, inherits, on_each, project, set_project, write,
};

fn tenants_are_apart(disk: &Disk) {
    let one = disk.path("one");
    let other = disk.path("other");
    assert_eq!(create(&one, 4 * MIB).unwrap(), DirectoryLimit::new(4 * MIB));
    assert_eq!(create(&other, 4 * MIB - 1).unwrap().bytes, 4 * MIB, "rounded up");
    write(&one.join("fits"), 3 * MIB).unwrap();
    assert_full(disk.fs_type, write(&one.join("too-much"), 2 * MIB));
    fs::create_dir(one.join("below")).unwrap();
    assert_full(disk.fs_type, write(&one.join("below/too-much"), 2 * MIB));
    write(&other.join("file"), 3 * MIB).unwrap();
    write(&disk.path("outside"), 8 * MIB).unwrap();

    let used = directories().usage(&other).unwrap().unwrap();
    assert_eq!(used.bytes.total, 4 * MIB);
    assert!((3 * MIB..3 * MIB + 64 * KIB).contains(&used.bytes.used), "{used:?}");
    assert_eq!(used.bytes.available, used.bytes.total - used.bytes.used);
    let inodes = used.inodes.unwrap();
    assert_eq!((inodes.total, inodes.used), (1024, 2), "the file and the directory");
    let shown = rustix::fs::statvfs(&other).unwrap();
    assert_eq!(shown.f_blocks * shown.f_frsize, 4 * MIB);
    assert_eq!(directories().usage(&disk.at).unwrap(), None);
}

#[test]
fn two_tenants_are_held_to_their_own_limits() {
    on_each(tenants_are_apart);
}

#[test]
fn without_quotactl_fd_the_device_is_named() {
    let old = [Feature::QuotaDescriptor];
    on_each(|disk| {
        without_features(&old, || tenants_are_apart(disk));
        // As in a container without the node of the device.
        let node = disk.at.with_file_name("node");
        disk.unmount();
        devices::put_node(&node, disk.image.loop_device().number());
        disk.mount_from(&node, &["prjquota"]);
        without_features(&old, || directories().check_limits(&disk.at)).unwrap();
        fs::remove_file(&node).unwrap();
        let error = without_features(&old, || create(&disk.path("third"), MIB)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("mount the node's /dev"), "{error}");
    });
}

/// As in a privileged container.
#[test]
fn only_xfs_limits_root_with_all_capabilities() {
    on_each(|disk| {
        let volume = disk.path("volume");
        create(&volume, 2 * MIB).unwrap();
        let written = fs::write(volume.join("file"), vec![7; 3 << 20]);
        if disk.fs_type == "ext4" { written.unwrap() } else { assert_full(disk.fs_type, written) }
    });
}

#[test]
fn the_number_of_files_is_limited() {
    on_each(|disk| {
        let volume = disk.path("volume");
        create(&volume, DirectoryLimit::new(4 * MIB).inodes(10)).unwrap();
        for number in 0..9 {
            write(&volume.join(number.to_string()), 0).unwrap();
        }
        assert_full(disk.fs_type, write(&volume.join("tenth"), 0));
        assert_full(disk.fs_type, as_workload(|| fs::create_dir(volume.join("tenth"))));
        write(&disk.path("outside"), 0).unwrap();
    });
}

#[test]
fn a_limit_grows_and_shrinks_and_never_below_what_is_used() {
    on_each(|disk| {
        let volume = disk.path("volume");
        create(&volume, 2 * MIB).unwrap();
        assert_full(disk.fs_type, write(&volume.join("file"), 3 * MIB));
        directories().set_limit(&volume, DirectoryLimit::new(8 * MIB)).unwrap();
        write(&volume.join("file"), 5 * MIB).unwrap();
        assert_eq!(create(&volume, MIB).unwrap().bytes, 8 * MIB, "a repeat changes nothing");
        let refused = directories().set_limit(&volume, DirectoryLimit::new(4 * MIB)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfRange, "{refused}");
        let refused = directories().set_limit(&volume, DirectoryLimit::new(8 * MIB).inodes(1)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfRange, "{refused}");
        assert_eq!(directories().limit(&volume).unwrap(), Some(DirectoryLimit::new(8 * MIB)));
        directories().set_limit(&volume, DirectoryLimit::new(6 * MIB)).unwrap();
        assert_full(disk.fs_type, write(&volume.join("more"), 2 * MIB));
    });
}

#[test]
fn files_do_not_enter_a_volume_uncounted() {
    on_each(|disk| {
        let one = disk.path("one");
        let other = disk.path("other");
        create(&one, 4 * MIB).unwrap();
        create(&other, 4 * MIB).unwrap();
        for from in [disk.path("outside"), other.join("file")] {
            write(&from, KIB).unwrap();
            for result in [fs::rename(&from, one.join("in")), fs::hard_link(&from, one.join("in"))] {
                assert_eq!(
                    result.unwrap_err().kind(),
                    std::io::ErrorKind::CrossesDevices,
                    "{}",
                    from.display()
                );
            }
        }
    });
}

#[test]
fn ids_and_limits_survive_a_mount_and_are_given_back() {
    on_each(|disk| {
        let volume = |number: u32| disk.path(&format!("volume-{number}"));
        let ids = || (0..8).map(|number| project(&volume(number))).collect::<Vec<_>>();
        let make = |number| assert_eq!(create(&volume(number), 2 * MIB).unwrap().bytes, 2 * MIB);
        (0..8).for_each(make);
        let before = ids();
        assert!(before.iter().all(|id| OURS.contains(id)), "{before:?}");
        assert!((0..8).all(|number| inherits(&volume(number))));
        disk.unmount();
        disk.mount(&["prjquota"]);
        (0..8).for_each(make);
        assert_eq!(ids(), before);
        assert_full(disk.fs_type, write(&volume(7).join("file"), 3 * MIB));

        assert_eq!(directories().remove_tree(&volume(7)).unwrap(), Removed::Removed);
        assert!(!has_limit(disk, before[7]), "the limit is gone with the directory");
        assert!(has_limit(disk, before[6]));
    });
}

/// Root in a volume can give the volume's directory another project, outside of a user namespace.
#[test]
fn the_removal_of_one_volume_leaves_the_limit_of_another() {
    on_each(|disk| {
        let attacker = disk.path("attacker");
        let victim = disk.path("victim");
        create(&attacker, 2 * MIB).unwrap();
        create(&victim, 2 * MIB).unwrap();
        let id = project(&victim);
        devices::run("chattr", &["-p", &id.to_string(), attacker.to_str().unwrap()]);
        directories().remove_tree(&attacker).unwrap();
        assert_full(disk.fs_type, write(&victim.join("file"), 3 * MIB));
    });
}

/// Its owner can change the volume's project and all attributes but `trusted` ones, and a copy has these too.
#[test]
fn a_limit_is_changed_by_the_project_that_the_volume_got() {
    on_each(|disk| {
        let [attacker, victim, copy] = ["attacker", "victim", "copy"].map(|name| disk.path(name));
        create(&attacker, 2 * MIB).unwrap();
        create(&victim, 2 * MIB).unwrap();
        write(&victim.join("file"), MIB).unwrap();
        devices::run("chattr", &["-p", &project(&victim).to_string(), attacker.to_str().unwrap()]);
        assert!(directories().usage(&attacker).unwrap().unwrap().bytes.used < MIB, "of the victim");
        directories().set_limit(&attacker, DirectoryLimit::new(8 * MIB)).unwrap();
        assert_eq!(directories().limit(&attacker).unwrap(), Some(DirectoryLimit::new(8 * MIB)));
        assert_eq!(directories().limit(&victim).unwrap(), Some(DirectoryLimit::new(2 * MIB)));

        // The attribute of the victim, and its project.
        let name = "trusted.csi-mount.project";
        let mut proof = [0; 128];
        let length = rustix::fs::getxattr(&victim, name, &mut proof[..]).unwrap();
        fs::create_dir(&copy).unwrap();
        rustix::fs::setxattr(&copy, name, &proof[..length], rustix::fs::XattrFlags::empty()).unwrap();
        set_project(&copy, project(&victim));
        let refused = directories().set_limit(&copy, DirectoryLimit::new(8 * MIB)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotOwned, "{refused}");
        for place in [&copy, &attacker] {
            directories().remove_tree(place).unwrap();
        }
        assert_full(disk.fs_type, write(&victim.join("more"), 2 * MIB));
    });
}

#[test]
fn in_a_user_namespace_root_cannot_leave_its_project() {
    on_each(|disk| {
        let volume = disk.path("volume");
        create(&volume, 2 * MIB).unwrap();
        let file = volume.join("file");
        write(&file, KIB).unwrap();
        // Owned by the root of the namespace, which has all capabilities there.
        let as_root_there = |program: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user"]).args(program).arg(&file).output().unwrap()
        };
        assert!(as_root_there(&["cp", "/dev/null"]).status.success(), "it is its own file");
        let output = as_root_there(&["chattr", "-p", "0"]);
        assert!(!output.status.success(), "{output:?}");
        assert_ne!(project(&volume), 0);
        // What docs/quotas.md warns of: without a user namespace the owner can.
        devices::run("chattr", &["-p", "0", file.to_str().unwrap()]);
    });
}

#[test]
fn an_ext4_that_only_counts_says_how_it_enforces() {
    in_memory(|base| {
        let counted = Disk::format(base, "ext4", &["-q", "-O", "quota,project"]);
        counted.mount(&[]);
        assert_refused(&counted.at, &["enforces no limits", "prjquota", "quotaon -P /dev/loop"]);
        counted.unmount();
        counted.mount(&["prjquota"]);
        create(&counted.path("volume"), MIB).unwrap();
        counted.unmount();
        counted.mount(&[]);
        assert_eq!(directories().limit(&counted.path("volume")).unwrap(), Some(DirectoryLimit::new(MIB)));
        assert_eq!(directories().usage(&counted.path("volume")).unwrap(), None);
        counted.unmount();
        counted.mount(&["prjquota"]);
        assert_eq!(directories().limit(&counted.path("volume")).unwrap(), Some(DirectoryLimit::new(MIB)));
        counted.unmount();
    });
}

#[test]
fn what_is_not_counted_is_not_limited() {
    on_each(|disk| {
        let old = disk.path("old");
        fs::create_dir(&old).unwrap();
        write(&old.join("file"), KIB).unwrap();
        let refused = create(&old, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert_eq!(fs::read(old.join("file")).unwrap().len() as u64, KIB);
        assert_eq!(
            directories().set_limit(&old, DirectoryLimit::new(MIB)).unwrap_err().kind(),
            ErrorKind::Unsupported
        );

        // The project of a person, whose limit the volumes would leave.
        let tree = disk.path("tree");
        fs::create_dir(&tree).unwrap();
        set_project(&tree, 7);
        let error = assert_refused(&tree, &["project 7"]);
        assert!(error.to_string().contains("chattr"), "{error}");
        let refused = directories().set_limit(&tree, DirectoryLimit::new(MIB)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotOwned, "{refused}");

        assert_eq!(create(&disk.path("v"), 0).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(create(&disk.path("no/v"), MIB).unwrap_err().kind(), ErrorKind::NotFound);
    });
}
