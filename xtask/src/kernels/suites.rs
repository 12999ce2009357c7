//! What runs in the emulated machines: one row a test program.

use super::version::Version;

/// A test program, and what it needs of the machine. Start a row from [`MOUNT`] or [`SUITE`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Suite {
    pub(crate) package: &'static str,
    /// An integration test's name, or `lib` for the unit tests.
    pub(crate) test: &'static str,
    /// Kernel modules, with whatever they depend on. Name those too that the kernel would ask `modprobe` for
    /// (character sets, ciphers). What a kernel does not have as a module is taken to be built in.
    pub(crate) modules: &'static [&'static str],
    /// Programs and files of this machine: copied with their libraries, programs looked up by name.
    pub(crate) files: &'static [&'static str],
    /// Environment of the tests: knobs that make them small enough for emulation.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Seconds that one test may take on a quiet machine.
    pub(crate) seconds: u32,
    /// The oldest kernel that it runs on.
    pub(crate) since: Version,
    /// Only tests with this in their path. Empty: all.
    pub(crate) only: &'static str,
    /// Tests that do not run on some kernels; told at the end of each run.
    pub(crate) skip: &'static [Skip],
}

/// A test that says nothing on some kernels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skip {
    pub(crate) test: &'static str,
    /// The first kernel without it.
    pub(crate) from: Version,
    /// The first kernel with it again.
    pub(crate) before: Version,
    pub(crate) why: &'static str,
}

impl Suite {
    /// What of it does not run on a kernel.
    pub(crate) fn skipped(&self, on: Version) -> impl Iterator<Item = &'static Skip> {
        self.skip.iter().filter(move |skip| (skip.from..skip.before).contains(&on))
    }
}

/// A row's defaults.
pub(crate) const SUITE: Suite = Suite {
    package: "",
    test: "",
    modules: &[],
    files: &[],
    env: &[],
    seconds: 60,
    since: Version::new(5, 10),
    only: "",
    skip: &[],
};

/// A test program of csi-mount.
const MOUNT: Suite = Suite {
    package: "csi-mount",
    modules: &["loop", "fuse", "overlay"],
    files: &["mkfs.ext4", "/etc/mke2fs.conf", "cp", "sleep"],
    ..SUITE
};

/// One that makes filesystems on loop devices.
const DEVICES: Suite = Suite {
    modules: &["loop", "xfs", "btrfs", "vfat", "nls_cp437", "nls_ascii", "nls_iso8859-1", "crc32c_generic"],
    files: &[
        "mkfs.ext2",
        "mkfs.ext3",
        "mkfs.ext4",
        "/etc/mke2fs.conf",
        "e2fsck",
        "resize2fs",
        "dumpe2fs",
        "debugfs",
        "mkfs.xfs",
        "xfs_repair",
        "xfs_db",
        "xfs_io",
        "mkfs.btrfs",
        "btrfs",
        "mkfs.vfat",
        "blkid",
        "mkswap",
        "cp",
        "sleep",
    ],
    ..MOUNT
};

/// One that has volumes inside encrypted devices. Their ciphers are slow here, so the crashes are a sample.
const LUKS: Suite = Suite {
    modules: &[
        "loop",
        "xfs",
        "btrfs",
        "crc32c_generic",
        "dm_mod",
        "dm_crypt",
        "xts",
        "aes_generic",
        "sha256_generic",
        "null_blk",
    ],
    files: &[
        "mkfs.ext4",
        "/etc/mke2fs.conf",
        "e2fsck",
        "resize2fs",
        "mkfs.xfs",
        "mkfs.btrfs",
        "cryptsetup",
        "dmsetup",
        "grep",
        "cksum",
        "cp",
        "sleep",
    ],
    seconds: 120,
    ..MOUNT
};

/// All of it, in the order in which it runs.
pub(crate) const SUITES: &[Suite] = &[
    Suite { test: "lib", only: "needs_root::", ..MOUNT },
    Suite {
        test: "mount_bind",
        skip: &[Skip {
            test: "the_mounts_below_come_along_when_asked",
            from: Version::new(5, 10),
            before: Version::new(5, 12),
            why: "attributes of a whole tree of mounts are refused there, as no_tree_of_mounts_is_half_read_only shows",
        }],
        ..MOUNT
    },
    Suite {
        test: "mount_filesystem",
        skip: &[Skip {
            test: "a_bad_option_is_named_by_the_filesystem_and_its_value_is_not",
            from: Version::new(5, 10),
            before: Version::new(5, 17),
            why: "ext4 has no words for its errors there",
        }],
        ..DEVICES
    },
    Suite { test: "mount_ops", ..DEVICES },
    Suite { test: "mount_stats", ..DEVICES },
    Suite { test: "mount_target", ..MOUNT },
    Suite { test: "mount_unmount", files: &["unshare"], ..MOUNT },
    Suite { test: "mountinfo_oracle", env: &[("CSI_TEST_ROUNDS", "100")], ..MOUNT },
    Suite { test: "propagation", env: &[("CSI_TEST_ROUNDS", "20")], ..MOUNT },
    Suite { test: "races", env: &[("CSI_TEST_ROUNDS", "4")], ..MOUNT },
    Suite { test: "hang", ..MOUNT },
    Suite {
        test: "health",
        skip: &[Skip {
            test: "an_ext4_that_met_an_error_is_read_only",
            from: Version::new(6, 1),
            before: Version::new(6, 15),
            why: "these set no flag when an error makes ext4 read-only: neither the superblock's nor emergency_ro",
        }],
        ..DEVICES
    },
    Suite { test: "refused", ..DEVICES },
    Suite { test: "remove_tree", ..MOUNT },
    Suite { test: "group", ..DEVICES },
    Suite { test: "loop_device", ..DEVICES },
    Suite { test: "probe", ..DEVICES },
    Suite { test: "format", ..DEVICES },
    Suite { test: "grow", ..DEVICES },
    Suite { test: "block_flow", ..DEVICES },
    Suite { test: "block_flow_raw", ..DEVICES },
    Suite { test: "luks_flow", ..LUKS },
    Suite { test: "luks_crash", env: &[("CSI_CRASH_STRIDE", "1511")], ..LUKS },
    Suite { test: "field_failures_mount", ..DEVICES },
    Suite { test: "field_failures_device", ..DEVICES },
    Suite { test: "field_failures_block", only: "newer_kernel", ..DEVICES },
    Suite { test: "crash", only: "on_an_old_kernel", env: &[("CSI_CRASH_STRIDE", "41")], ..DEVICES },
    Suite {
        test: "real_disks",
        modules: &["loop", "sd_mod", "scsi_debug", "dm_multipath", "dm_round_robin", "configfs", "nvme_loop"],
        files: &["mkfs.ext4", "/etc/mke2fs.conf", "dmsetup"],
        skip: &[Skip {
            test: "an_nvme_disk_is_known_and_grows",
            from: Version::new(5, 10),
            before: Version::new(6, 12),
            why: "Debian builds these without nvme-loop",
        }],
        ..MOUNT
    },
    Suite { test: "copy_tree", ..MOUNT },
    Suite { package: "csi-core", test: "root_encryption_mapped", ..LUKS },
    Suite {
        package: "nfs",
        test: "mounted",
        modules: &["nfs", "nfsv3", "nfsv4", "nfsd"],
        files: &["ip"],
        seconds: 300,
        ..SUITE
    },
];
