use super::*;

#[test]
fn only_the_first_users_are_named() {
    let users: Vec<_> = (0..1000).map(|index| DeviceUser::Holder(format!("dm-{index}"))).collect();
    let text = named(&users);
    assert!(text.contains("dm-2 is built on it; and 997 more") && !text.contains("dm-3"), "{text}");
    assert_eq!(named(&users[..1]), "the device dm-0 is built on it");
}

/// As LVM, a RAID and bcache do it, on a disk and on its partition; an empty `holders` means no user.
#[test]
fn a_device_built_on_a_disk_or_its_partition_is_a_user() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::create_dir_all(root.join("dev/block")).unwrap();
    // The kernel gives no block device this major number.
    let number = |minor| DeviceNumber { major: 4095, minor };
    for (minor, place, holders) in [
        (0, "devices/sda", &["md0"][..]),
        (1, "devices/sda/sda1", &["dm-0", "bcache0"]),
        (2, "devices/sda/sda2", &[]),
        (3, "devices/sdb", &[]),
    ] {
        let place = root.join(place);
        fs::create_dir_all(place.join("holders")).unwrap();
        holders.iter().for_each(|holder| fs::write(place.join("holders").join(holder), "").unwrap());
        fs::write(place.join("dev"), number(minor).to_string()).unwrap();
        if place.parent().is_some_and(|parent| parent.ends_with("sda")) {
            fs::write(place.join("partition"), minor.to_string()).unwrap();
        }
        std::os::unix::fs::symlink(&place, root.join(format!("dev/block/{}", number(minor)))).unwrap();
    }
    let sysfs = Sysfs::below(root);
    for (minor, expected) in
        [(0, &["md0", "bcache0", "dm-0"][..]), (1, &["bcache0", "dm-0", "md0"]), (2, &["md0"]), (3, &[])]
    {
        let users = identified_users_in(&sysfs, &[number(minor)]).unwrap();
        let expected: Vec<_> = expected.iter().map(|name| DeviceUser::Holder((*name).to_owned())).collect();
        assert_eq!(users, expected, "{minor}");
        for tolerated in [Tolerated::None, Tolerated::Readers, Tolerated::Mounts] {
            assert!(!users.iter().any(|user| tolerated.includes(user)), "{minor}");
        }
    }
}

#[test]
fn adjacent_parts_do_not_overlap() {
    let overlap =
        Overlap { number: DeviceNumber { major: 7, minor: 0 }, name: OsString::new(), range: 4096..8192 };
    for (offset, size_limit, expected) in
        [(0, 0, true), (0, 4096, false), (0, 4097, true), (8191, 0, true), (8192, 0, false), (5000, 1, true)]
    {
        let mut info = crate::sys::ioctl::LoopInfo::zeroed();
        (info.offset, info.size_limit) = (offset, size_limit);
        assert_eq!(has_common_bytes(&overlap, &info), expected, "{offset} {size_limit}");
    }
}
