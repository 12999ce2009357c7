//! The suites for the emulated machines: one row per test program, or per module of one.

use super::archive::{Flavour, Version};
use super::suite::{InGate, Skip, Suite};

const EXT4: &str = "mkfs.ext4 /etc/mke2fs.conf";
const EXT4_TOOLS: &str = "mkfs.ext4 /etc/mke2fs.conf e2fsck resize2fs";
const XFS: &str = "mkfs.xfs xfs_repair";
const BTRFS: &str = "mkfs.btrfs btrfs";
const COMMANDS: &str = "chattr cp sleep";

/// The modules of every suite with disks over the network.
const REMOTE_DISK: &str = "loop xfs crc32c_generic configfs";
const NVMET_TCP: &str = "nvmet_tcp nvme_tcp";
/// The adapter, the target and the initiator of NVMe over RDMA.
const RDMA: &str = "dummy crc32_generic rdma_rxe nvmet_rdma nvme_rdma";
const LIO: &str = "sd_mod iscsi_tcp target_core_mod target_core_file iscsi_target_mod";
const INITIATOR: &str = "iscsiadm iscsid";
const DM_MULTIPATH: &str = "dm_multipath dm_round_robin dm_service_time";
/// glibc loads libgcc when a thread ends.
const MULTIPATHD: &str =
    "multipath multipathd /lib/x86_64-linux-gnu/libgcc_s.so.1 /lib/multipath/libprioconst.so";
/// For paths of NVMe.
const NVME_PATHS: &str =
    "/lib/multipath/libprioana.so /lib/multipath/libcheckdirectio.so /lib/multipath/libchecktur.so udevadm";
/// The rules call the last two.
const DM_RULES: &str = "/lib/udev/rules.d/55-dm.rules /lib/udev/rules.d/60-multipath.rules \
     /lib/udev/rules.d/60-persistent-storage.rules /lib/udev/rules.d/95-dm-notify.rules dmsetup \
     /sbin/dmsetup /sbin/multipath";

/// The defaults of a row.
pub(crate) const SUITE: Suite = Suite {
    package: "",
    test: "",
    of_program: "",
    modules: &[],
    processors: 1,
    flavour: Flavour::Cloud,
    files: &[],
    newest: "",
    boot: "",
    has_ceph: false,
    env: &[],
    seconds: 60,
    since: Version::new(5, 10),
    only: "",
    prints_output: false,
    in_gate: InGate::All,
    in_short: None,
    skip: &[],
};

/// Tests of csi-mount, which run on any machine too.
const MOUNT: Suite = Suite {
    package: "csi-mount",
    of_program: ANYWHERE,
    modules: &["loop fuse overlay"],
    files: &[EXT4, COMMANDS],
    ..SUITE
};

/// The test programs of csi-mount: for any machine, and for these machines only.
const ANYWHERE: &str = "it";
const MACHINES: &str = "machines";

/// A suite about other users of a device or mount.
const USERS: Suite = Suite {
    modules: &["loop fuse overlay xfs btrfs crc32c_generic"],
    files: &[
        "losetup mount umount",
        EXT4,
        "e2fsck mkfs.xfs mkfs.btrfs mkswap swapon swapoff addpart delpart unshare sh",
        COMMANDS,
    ],
    ..MOUNT
};

/// A suite that makes filesystems on loop devices.
const DEVICES: Suite = Suite {
    modules: &["loop fuse xfs btrfs vfat nls_cp437 nls_ascii nls_iso8859-1 crc32c_generic"],
    files: &[
        "losetup mkfs.ext2 mkfs.ext3",
        EXT4_TOOLS,
        "dumpe2fs debugfs",
        XFS,
        "xfs_db xfs_io",
        BTRFS,
        "mkfs.vfat blkid mkswap",
        COMMANDS,
    ],
    ..MOUNT
};

const NO_SIMPLE_QUOTAS: &str = "these kernels have no simple quotas";
const SHARED_BLOCKS: &str = "shared_blocks_count_for_the_writer_alone_with_simple_quotas";

/// A suite with the project quotas of ext4 and XFS.
const QUOTAS: Suite = Suite {
    of_program: MACHINES,
    modules: &["loop overlay xfs quota_v2 crc32c_generic"],
    files: &[EXT4, "mkfs.xfs xfs_io lsattr unshare", COMMANDS],
    processors: 2,
    ..MOUNT
};

/// A suite with volumes inside encrypted devices. The ciphers are slow in emulation, so only a sample of the
/// crashes is tested.
const LUKS: Suite = Suite {
    of_program: MACHINES,
    modules: &[
        "loop xfs btrfs crc32c_generic dm_mod dm_crypt ecb xts aes_generic aesni_intel sha256_generic \
             null_blk",
    ],
    files: &[EXT4_TOOLS, "mkfs.xfs mkfs.btrfs cryptsetup dmsetup blkdiscard grep cksum", COMMANDS],
    seconds: 120,
    in_gate: InGate::Nothing,
    ..MOUNT
};

/// A suite with logical volumes on loop devices.
const LVM: Suite = Suite {
    of_program: MACHINES,
    modules: &["loop dm_mod dm_thin_pool dm_snapshot dm_flakey"],
    files: &["lvm thin_check dmsetup env grep sh /bin/sh", EXT4_TOOLS, COMMANDS],
    seconds: 180,
    prints_output: true,
    ..MOUNT
};

/// A suite that also starts daemons.
const FLOWS: Suite =
    Suite { modules: &["loop fuse overlay"], files: &[EXT4, COMMANDS, "sh env setsid"], ..MOUNT };

const MKFS_IS_SLOW: &str = "the kills at each system call of mkfs take minutes under emulation; the tests with a device that has data and the other steps run";

const MKFS_IN_MEMORY: &str = "it compares what mkfs wrote into memory dozens of times; minutes under emulation, and the kernel only reads and writes";

const CONTENT: &str = "it writes many images, half a minute under emulation, and what is found in them does not depend on the kernel";

const DEEP_IS_SLOW: &str =
    "thousands of directories take a minute or two under emulation; the other trees take the same calls";

const OLD_HAS_A_ROW: &str = "a separate row has more of its points";

/// The modules of the NFS client and server, for all versions.
pub(crate) const NFS: &str = "nfs nfsv3 nfsv4 nfsd";

/// The modules of the SMB client. It looks up its ciphers and its character set by name.
const SMB: &str = "cifs nls_utf8 md4 ctr ccm gcm ghash_generic cmac ecb sha512_generic des_generic";

const fn without_inode_in_fdinfo(test: &'static str) -> Skip {
    Skip::between(
        (0, 0),
        (5, 14),
        test,
        "without the inode number in fdinfo a call waits for the stopped server; docs/hang-table.md says so",
    )
}

const fn without_nvmet_reservations(test: &'static str) -> Skip {
    Skip::between((0, 0), (6, 13), test, "their target for NVMe has no reservations")
}

/// The programs of the SMB server.
const SMBD: &str = "ip smbd smbpasswd";

/// A suite with a target on the network of the machine itself.
const REMOTE: Suite = Suite {
    of_program: MACHINES,
    modules: &[REMOTE_DISK, NVMET_TCP],
    files: &[EXT4_TOOLS, XFS, "ip nvme", COMMANDS],
    seconds: 180,
    prints_output: true,
    in_gate: InGate::Nothing,
    ..MOUNT
};

/// NVMe over TLS: `tlshd` makes the handshakes, and a newer `nvme` is the oracle of keys.
const REMOTE_TLS: Suite = Suite {
    modules: &["loop crc32c_generic configfs tls gcm ctr ghash_generic aes_generic aesni_intel", NVMET_TCP],
    files: &["ip keyctl", COMMANDS],
    newest: "ktls-utils nvme-cli libatomic1 libc6 libffi8 libgcc-s1 libglib2.0-0t64 libgmp10 libgnutls30t64 \
         libhogweed6t64 libidn2-0 libjson-c5 libkeyutils1 libnettle8t64 libnl-3-200 libnl-genl-3-200 \
         libnvme1t64 libp11-kit0 libpcre2-8-0 libssl3t64 libtasn1-6 libunistring5 libzstd1 zlib1g",
    // tlshd 1.4 uses an option of the kernel's TLS that 6.12 lacks.
    since: Version::new(7, 0),
    ..REMOTE
};

const NO_KEYS: Skip = Skip::between(
    (5, 10),
    (6, 12),
    "keys_are_needed_and_not_printed",
    "5.10 has no DH-HMAC-CHAP, and the target of Debian's 6.1 is built without",
);

/// NVMe over RDMA. The cloud flavour has no RDMA adapter in software.
const REMOTE_RDMA: Suite = Suite {
    modules: &[REMOTE_DISK, RDMA],
    flavour: Flavour::Generic,
    files: &[EXT4_TOOLS, XFS, "ip rdma nvme", COMMANDS],
    env: &[("CSI_NVME_TRANSPORT", "rdma")],
    ..REMOTE
};

/// The same over iSCSI.
const REMOTE_ISCSI: Suite = Suite {
    modules: &[REMOTE_DISK, LIO],
    files: &[EXT4_TOOLS, XFS, "ip", INITIATOR, "umount", COMMANDS],
    ..REMOTE
};

/// A suite on a node with udevd and multipathd.
const MULTIPATH: Suite = Suite {
    modules: &[REMOTE_DISK, NVMET_TCP, DM_MULTIPATH],
    files: &[EXT4_TOOLS, XFS, "ip nvme", MULTIPATHD, NVME_PATHS, DM_RULES],
    boot: "nvme_core.multipath=N",
    ..REMOTE
};

/// A suite over iSCSI on a node with udevd and multipathd.
const ISCSI_MULTIPATH: Suite = Suite {
    modules: &[REMOTE_DISK, LIO, DM_MULTIPATH],
    files: &[
        EXT4_TOOLS,
        XFS,
        "ip",
        INITIATOR,
        MULTIPATHD,
        "/lib/multipath/libprioalua.so /lib/multipath/libpriosysfs.so /lib/multipath/libchecktur.so \
             udevadm /lib/udev/scsi_id",
        DM_RULES,
    ],
    ..REMOTE
};

/// Asymmetric access over iSCSI. The cloud flavour has no `scsi_dh_alua`.
const ISCSI_ALUA: Suite = Suite {
    modules: &[REMOTE_DISK, LIO, DM_MULTIPATH, "scsi_dh_alua"],
    flavour: Flavour::Generic,
    ..ISCSI_MULTIPATH
};

/// NVMe over RDMA on a node with udevd and multipathd.
const RDMA_MULTIPATH: Suite = Suite {
    modules: &[REMOTE_DISK, RDMA, DM_MULTIPATH],
    flavour: Flavour::Generic,
    files: &[EXT4_TOOLS, XFS, "ip rdma nvme", MULTIPATHD, NVME_PATHS, DM_RULES],
    env: REMOTE_RDMA.env,
    ..MULTIPATH
};

/// Fibre Channel on a node with udevd and multipathd. The cloud flavour has no FCoE.
const REMOTE_FC: Suite = Suite {
    modules: &[
        REMOTE_DISK,
        "sd_mod veth fcoe target_core_mod target_core_file tcm_fc",
        DM_MULTIPATH,
        "scsi_dh_alua",
    ],
    flavour: Flavour::Generic,
    ..ISCSI_MULTIPATH
};

/// It waits for a stopped server most of the time.
const HANG_NFS: Suite = Suite {
    test: "hang_nfs",
    of_program: MACHINES,
    modules: &[NFS],
    files: &["ip"],
    seconds: 180,
    prints_output: true,
    in_gate: InGate::Nothing,
    ..MOUNT
};

/// A suite with a Ceph cluster outside the machine.
const CEPH: Suite = Suite {
    package: "ceph",
    modules: &["virtio_net loop ceph rbd xfs"],
    files: &["ip", EXT4_TOOLS, XFS, COMMANDS],
    has_ceph: true,
    seconds: 600,
    prints_output: true,
    in_gate: InGate::Nothing,
    ..SUITE
};

/// All suites, in the order in which they run.
pub(crate) const SUITES: &[Suite] = &[
    Suite {
        test: "lib",
        of_program: "",
        only: "needs_root::",
        skip: &[Skip::between(
            (0, 0),
            (6, 13),
            "device::mount_places::own_mounts::needs_root::what_is_left_out_later_is_a_whole_filesystem_on_another_device",
            "their statmount does not return the source; the table is read each time, as the_list_has_what_the_table_has shows",
        )],
        ..MOUNT
    },
    Suite {
        test: "mount_bind",
        env: &[("CSI_TEST_ROUNDS", "30")],
        processors: 2,
        skip: &[Skip::between(
            (5, 10),
            (5, 12),
            "the_mounts_below_are_bound_on_request",
            "these kernels refuse attributes of a whole tree of mounts, as no_tree_of_mounts_is_half_read_only shows",
        )],
        ..MOUNT
    },
    Suite {
        test: "mount_filesystem",
        skip: &[Skip::between(
            (5, 10),
            (5, 17),
            "a_bad_option_is_named_by_the_filesystem_and_its_value_is_not",
            "ext4 does not report its errors there",
        )],
        ..DEVICES
    },
    Suite { test: "machine_kernel", ..DEVICES },
    Suite { test: "mount_stats", ..DEVICES },
    Suite { test: "mount_target", ..MOUNT },
    Suite { test: "mount_unmount", files: &["unshare"], ..MOUNT },
    Suite { test: "mountinfo_oracle", env: &[("CSI_TEST_ROUNDS", "100")], processors: 2, ..MOUNT },
    Suite { test: "propagation", env: &[("CSI_TEST_ROUNDS", "20")], processors: 2, ..MOUNT },
    Suite { test: "races", env: &[("CSI_TEST_ROUNDS", "4")], processors: 2, ..MOUNT },
    Suite {
        test: "hang",
        of_program: "",
        skip: &[Skip::everywhere(
            "a_thousand_calls_leave_one_helper_process_and_no_thread",
            "the other tests make the same calls once",
        )],
        ..MOUNT
    },
    Suite {
        test: "health",
        skip: &[
            Skip::between(
                (6, 1),
                (6, 15),
                "an_ext4_with_an_error_is_read_only",
                "these set no flag when an error makes ext4 read-only: neither the superblock's nor emergency_ro",
            ),
            Skip::between(
                (5, 10),
                (6, 13),
                "a_filesystem_that_answers_from_memory_is_queried_without_a_child",
                "their statmount does not return all necessary fields; a child process is used, as the other tests show",
            ),
        ],
        ..DEVICES
    },
    Suite { test: "refused", ..DEVICES },
    Suite {
        test: "remove_tree",
        env: &[("CSI_TEST_ROUNDS", "10")],
        skip: &[Skip::everywhere("the_deepest_tree_takes_few_descriptors_and_little_stack", DEEP_IS_SLOW)],
        ..MOUNT
    },
    Suite {
        test: "group",
        env: &[("CSI_TEST_ROUNDS", "20")],
        skip: &[
            Skip::between(
                (5, 10),
                (5, 12),
                "a_bind_shows_files_as_a_groups_and_the_disk_keeps_its_own",
                "owners can't be mapped there, as a_missing_support_for_id_maps_is_reported shows",
            ),
            Skip::everywhere("the_deepest_tree_takes_no_more_descriptors", DEEP_IS_SLOW),
        ],
        ..DEVICES
    },
    Suite { test: "loop_device", ..DEVICES },
    Suite {
        test: "probe",
        skip: &[
            Skip::everywhere("data_at_spare_superblocks_is_found", CONTENT),
            Skip::everywhere("filesystems_are_named_as_blkid_does", CONTENT),
            Skip::everywhere("random_data_is_refused_and_unchanged", CONTENT),
        ],
        ..DEVICES
    },
    // On 5.10 a loop device that reads a hole of a file on tmpfs fills the hole with data.
    Suite { test: "probe_holes", since: Version::new(6, 1), ..DEVICES },
    // Before 5.17 a loop device over a full tmpfs can't read the holes of its file, and here a format fails
    // because of that. The suite formats some hundred times, which takes more than an hour in emulation.
    Suite {
        test: "interrupted",
        modules: LUKS.modules,
        files: &[EXT4, "e2fsck", XFS, BTRFS, "cryptsetup", COMMANDS],
        seconds: 600,
        since: Version::new(5, 17),
        in_gate: InGate::Nothing,
        ..MOUNT
    },
    // It takes a minute and a half in emulation, and depends little on the kernel.
    Suite { test: "format_memory", of_program: "", in_gate: InGate::Nothing, ..DEVICES },
    Suite {
        test: "exchanged_node",
        modules: LUKS.modules,
        files: &[EXT4_TOOLS, XFS, BTRFS, "cryptsetup /bin/sh rm mknod"],
        // The exchanges depend little on the kernel, and take a minute and a half in emulation.
        in_gate: InGate::Nothing,
        ..MOUNT
    },
    // 14 kinds of use times three filesystems take three to five minutes in emulation.
    Suite { test: "device_users", seconds: 240, in_gate: InGate::Nothing, ..USERS },
    Suite { test: "loop_device_foreign", ..USERS },
    Suite { test: "mount_churn", env: &[("CSI_TEST_ROUNDS", "5")], processors: 2, ..MOUNT },
    Suite { test: "owner", ..USERS },
    Suite {
        test: "format",
        skip: &[
            Skip::everywhere("a_block_that_is_not_zero_is_not_overwritten", MKFS_IN_MEMORY),
            Skip::everywhere("an_image_in_memory_equals_a_format_of_the_device", MKFS_IN_MEMORY),
        ],
        ..DEVICES
    },
    Suite { test: "grow", env: &[("CSI_TEST_EXT4_GROWS_MOUNTED", "1")], ..DEVICES },
    Suite {
        test: "block_flow",
        skip: &[Skip::everywhere("whatever_is_on_the_device_is_kept", CONTENT)],
        ..DEVICES
    },
    Suite { test: "block_flow_raw", ..DEVICES },
    Suite { test: "copy", files: &[EXT4, "mkfs.xfs mkfs.btrfs fsfreeze"], ..DEVICES },
    Suite {
        test: "copy_tree",
        skip: &[Skip::everywhere("the_deepest_tree_takes_few_descriptors_and_little_stack", DEEP_IS_SLOW)],
        ..DEVICES
    },
    Suite {
        test: "clones",
        files: &[BTRFS, COMMANDS],
        in_gate: InGate::Nothing,
        skip: &[Skip::between(
            (0, 0),
            (6, 7),
            "a_btrfs_clone_is_staged_together_with_its_origin",
            "these mount a btrfs and its clone only one at a time",
        )],
        ..DEVICES
    },
    Suite { test: "quotas", in_short: Some("two_tenants"), ..QUOTAS },
    Suite { test: "quotas_refused", of_program: ANYWHERE, ..QUOTAS },
    Suite {
        test: "quotas_btrfs",
        of_program: ANYWHERE,
        modules: &["loop btrfs crc32c_generic"],
        files: &[BTRFS, COMMANDS],
        seconds: 300,
        in_gate: InGate::Nothing,
        skip: &[
            Skip::between((0, 0), (6, 7), "simple_quotas_hold_volumes_to_their_sizes", NO_SIMPLE_QUOTAS),
            Skip::between((0, 0), (6, 7), "a_limit_of_simple_quotas_grows_and_shrinks", NO_SIMPLE_QUOTAS),
            Skip::between((0, 0), (6, 7), "a_removal_leaves_nothing_with_simple_quotas", NO_SIMPLE_QUOTAS),
            Skip::between((0, 0), (6, 7), SHARED_BLOCKS, NO_SIMPLE_QUOTAS),
        ],
        ..QUOTAS
    },
    Suite { test: "quotas_crash", seconds: 300, in_gate: InGate::Only("in_parallel"), ..QUOTAS },
    Suite {
        package: "csi-conformance",
        test: "quotas",
        of_program: "",
        modules: &["loop overlay xfs quota_v2 btrfs crc32c_generic"],
        files: &[EXT4, BTRFS, "mkfs.xfs xfs_io lsattr unshare", COMMANDS],
        seconds: 600,
        in_gate: InGate::Nothing,
        ..QUOTAS
    },
    Suite { test: "luks_flow", in_short: Some("a_volume_lives"), ..LUKS },
    Suite { test: "luks_raw", ..LUKS },
    Suite { test: "luks_mapping", in_short: Some(""), ..LUKS },
    Suite { test: "luks_crash", seconds: 300, env: &[("CSI_CRASH_POINTS", "5")], ..LUKS },
    Suite { test: "erase", ..DEVICES },
    Suite {
        package: "local",
        test: "on_lvm",
        of_program: "",
        modules: &[
            "loop dm_mod dm_thin_pool dm_snapshot dm_crypt ecb xts aes_generic aesni_intel sha256_generic",
        ],
        files: &["lvm thin_check dmsetup cryptsetup blkdiscard sh /bin/sh", EXT4_TOOLS, COMMANDS],
        seconds: 900,
        in_gate: InGate::Nothing,
        ..LVM
    },
    // It needs a Go toolchain.
    Suite {
        package: "local",
        test: "sanity",
        of_program: "",
        files: &["lvm thin_check dmsetup blkdiscard csi-sanity sh /bin/sh", EXT4_TOOLS, COMMANDS],
        seconds: 1800,
        in_gate: InGate::OnRequest,
        ..LVM
    },
    // All of it takes two minutes in emulation.
    Suite {
        test: "lvm",
        env: &[("CSI_TEST_ROUNDS", "2")],
        in_gate: InGate::Only("erase"),
        in_short: Some("the_life"),
        ..LVM
    },
    Suite {
        test: "lvm_neighbours",
        modules: &["loop dm_mod dm_thin_pool dm_snapshot dm_mirror"],
        files: &["lvm thin_check dmsetup env grep sh /bin/sh dd fsfreeze", EXT4_TOOLS, COMMANDS],
        in_gate: InGate::Nothing,
        ..LVM
    },
    Suite {
        test: "crash_lvm",
        env: &[("CSI_CRASH_STRIDE", "7"), ("CSI_CRASH_POINTS", "8")],
        seconds: 900,
        in_gate: InGate::Nothing,
        ..LVM
    },
    Suite { test: "field_failures_mount", ..DEVICES },
    Suite { test: "field_failures_device", env: &[("CSI_TEST_ROUNDS", "2")], ..DEVICES },
    Suite {
        test: "field_failures_block",
        skip: &[Skip::between(
            (6, 1),
            (6, 15),
            "a_filesystem_that_went_read_only_is_not_staged_for_writing",
            "these set no flag when an error makes ext4 read-only: neither the superblock's nor emergency_ro",
        )],
        ..DEVICES
    },
    Suite { test: "flow_shared", ..FLOWS },
    Suite { test: "flow_fuse", files: &[EXT4, COMMANDS, "sh env setsid mount stat unshare"], ..FLOWS },
    Suite { test: "flow_fuse_daemons", ..FLOWS },
    Suite { test: "fuse_memory", of_program: MACHINES, ..FLOWS },
    Suite { test: "fuse_device", ..FLOWS },
    Suite { test: "fuse_mounter", files: &[EXT4, COMMANDS, "sh env setsid mount stat unshare"], ..FLOWS },
    Suite {
        package: "csi-core",
        test: "root_flow_fuse",
        of_program: ANYWHERE,
        only: "memory_limit",
        ..FLOWS
    },
    Suite { test: "flow_ephemeral", env: &[("CSI_TEST_ROUNDS", "100")], ..FLOWS },
    Suite { test: "endurance", of_program: "", env: &[("CSI_TEST_ROUNDS", "200")], ..MOUNT },
    Suite {
        test: "crash",
        only: "of_a_",
        env: &[("CSI_CRASH_POINTS", "4")],
        seconds: 180,
        in_gate: InGate::Only("steps_of_a_device_with_ext4"),
        skip: &[
            Skip::everywhere("stage_of_a_blank_device_as_btrfs", MKFS_IS_SLOW),
            Skip::everywhere("stage_of_a_blank_device_as_ext4", MKFS_IS_SLOW),
            Skip::everywhere("stage_of_a_blank_device_as_xfs", MKFS_IS_SLOW),
            Skip::everywhere("steps_of_a_device_on_an_old_kernel", OLD_HAS_A_ROW),
            Skip::everywhere("steps_of_a_raw_device_on_an_old_kernel", OLD_HAS_A_ROW),
        ],
        ..DEVICES
    },
    Suite {
        test: "crash_flows",
        env: &[("CSI_CRASH_POINTS", "4")],
        seconds: 180,
        in_gate: InGate::Only("a_shared_filesystem"),
        ..FLOWS
    },
    Suite {
        test: "crash_fuse",
        env: &[("CSI_CRASH_POINTS", "4")],
        seconds: 180,
        in_gate: InGate::Only("a_fuse_filesystem"),
        ..FLOWS
    },
    Suite {
        test: "corpus",
        skip: &[Skip::everywhere("whatever_a_device_holds_is_kept", CONTENT)],
        ..DEVICES
    },
    Suite {
        test: "crash",
        only: "on_an_old_kernel",
        env: &[("CSI_CRASH_POINTS", "12")],
        seconds: 180,
        in_gate: InGate::Nothing,
        ..DEVICES
    },
    Suite {
        test: "real_disks",
        of_program: MACHINES,
        in_short: Some(""),
        modules: &["loop sd_mod scsi_debug dm_multipath dm_round_robin configfs nvme_loop"],
        files: &[EXT4, "dmsetup"],
        skip: &[Skip::between(
            (5, 10),
            (6, 12),
            "an_nvme_disk_is_recognized_and_grows",
            "Debian builds these without nvme-loop",
        )],
        ..MOUNT
    },
    Suite {
        test: "remote_nvme",
        in_short: Some("a_volume_lives"),
        skip: &[
            NO_KEYS,
            Skip::between(
                (5, 10),
                (6, 0),
                "dead_paths_do_not_keep_a_volume",
                "their nvme-tcp can panic when a controller without a connection is deleted while a request waits",
            ),
        ],
        ..REMOTE
    },
    Suite { test: "remote_nvme_crash", env: &[("CSI_CRASH_POINTS", "24")], seconds: 300, ..REMOTE },
    Suite { package: "nvme-tcp", test: "on_nvmet", of_program: "", seconds: 900, ..REMOTE },
    Suite { test: "remote_iscsi", in_short: Some("a_volume_lives"), ..REMOTE_ISCSI },
    // Since 6.7 errors can be set for one disk of `scsi_debug`.
    Suite {
        test: "remote_iscsi_odd",
        modules: &[
            REMOTE_DISK,
            "sd_mod iscsi_tcp target_core_mod target_core_file target_core_pscsi iscsi_target_mod \
             scsi_debug",
        ],
        since: Version::new(6, 12),
        ..REMOTE_ISCSI
    },
    Suite {
        test: "remote_reservations",
        env: &[("CSI_TEST_ROUNDS", "10"), ("CSI_CRASH_POINTS", "20")],
        modules: &[REMOTE_DISK, LIO, NVMET_TCP, "dm_mod"],
        files: &[EXT4_TOOLS, "ip nvme sg_persist", INITIATOR, "dmsetup", COMMANDS],
        boot: "nvme_core.multipath=N",
        skip: &[
            without_nvmet_reservations("a_filesystem_changes_hands_over_nvme"),
            without_nvmet_reservations("a_killed_takeover_converges_over_nvme"),
            without_nvmet_reservations("a_registration_that_two_machines_share_is_refused_over_nvme"),
            without_nvmet_reservations("a_volume_that_is_unstaged_stays_reserved_over_nvme"),
            without_nvmet_reservations("an_nvme_node_whose_key_was_forgotten_writes_nothing"),
            without_nvmet_reservations("an_nvme_node_without_a_key_registers_where_nobody_else_is"),
            without_nvmet_reservations("an_operator_sees_and_removes_it_over_nvme"),
            without_nvmet_reservations("foreign_keys_are_left_alone_over_nvme"),
            without_nvmet_reservations("on_its_way::no_later_write_arrives_over_nvme"),
            without_nvmet_reservations("restarts::a_node_that_reboots_writes_only_what_it_has_over_nvme"),
            without_nvmet_reservations(
                "restarts::a_target_that_forgets_gets_its_reservation_with_the_next_stage_over_nvme",
            ),
            without_nvmet_reservations("on_its_way::nvme_ends_what_is_on_its_way"),
            without_nvmet_reservations("storage_that_forgets_reservations_is_refused_if_they_are_required"),
            without_nvmet_reservations("two_machines_with_one_generation_do_not_both_write_over_nvme"),
            without_nvmet_reservations("what_fencing_costs_over_nvme"),
        ],
        ..REMOTE
    },
    Suite { test: "remote_storage", modules: &[REMOTE_DISK, LIO, NVMET_TCP], ..REMOTE_ISCSI },
    Suite { test: "remote_iscsi_crash", env: &[("CSI_CRASH_POINTS", "12")], seconds: 300, ..ISCSI_MULTIPATH },
    // The kit takes ten minutes. In the gate `on_nvmet` runs it on the same node plugin.
    Suite {
        package: "iscsi",
        test: "on_lio",
        of_program: "",
        seconds: 900,
        in_gate: InGate::Nothing,
        ..REMOTE_ISCSI
    },
    Suite { test: "remote_multipath", ..MULTIPATH },
    Suite { test: "remote_multipath", ..RDMA_MULTIPATH },
    Suite { test: "remote_iscsi_multipath", ..ISCSI_MULTIPATH },
    Suite { test: "remote_iscsi_alua", ..ISCSI_ALUA },
    Suite { test: "remote_oracle", only: "iscsi_on", ..ISCSI_MULTIPATH },
    Suite { test: "remote_oracle", only: "native_nvme", ..REMOTE },
    Suite { test: "remote_oracle", only: "nvme_with_maps", ..MULTIPATH },
    Suite { test: "remote_fc", ..REMOTE_FC },
    Suite { test: "remote_fc_alua", ..REMOTE_FC },
    Suite { test: "remote_fc_crash", env: &[("CSI_CRASH_POINTS", "12")], seconds: 300, ..REMOTE_FC },
    Suite { test: "remote_nvme_tls", ..REMOTE_TLS },
    Suite { test: "remote_nvme", skip: &[NO_KEYS], ..REMOTE_RDMA },
    Suite {
        test: "remote_nvme_crash",
        env: &[("CSI_NVME_TRANSPORT", "rdma"), ("CSI_CRASH_POINTS", "12")],
        seconds: 300,
        ..REMOTE_RDMA
    },
    Suite { only: "hard", ..HANG_NFS },
    Suite { only: "soft", ..HANG_NFS },
    Suite { package: "csi-core", test: "root_encryption_mapped", of_program: "", ..LUKS },
    Suite {
        package: "nfs",
        test: "mounted",
        modules: &[NFS],
        files: &["ip"],
        seconds: 300,
        in_gate: InGate::Nothing,
        ..SUITE
    },
    Suite {
        package: "smb",
        test: "mounted",
        modules: &[SMB],
        files: &[SMBD],
        seconds: 900,
        prints_output: true,
        in_gate: InGate::Nothing,
        skip: &[
            without_inode_in_fdinfo("a_server_that_was_stopped_or_killed_is_used_again"),
            without_inode_in_fdinfo("each_step_ends_while_the_server_is_stopped"),
            without_inode_in_fdinfo("each_step_ends_while_the_server_is_gone"),
        ],
        ..SUITE
    },
    Suite { test: "by_kernel", ..CEPH },
    Suite { package: "csi-mount", test: "remote_rbd", of_program: MACHINES, ..CEPH },
    Suite {
        package: "csi-mount",
        test: "remote_rbd_crash",
        of_program: MACHINES,
        env: &[("CSI_CRASH_POINTS", "12")],
        ..CEPH
    },
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `luks_format` tests cryptsetup and its headers, and is slow with emulated ciphers. The other
    /// tests of encrypted devices do run. `fake_disks` reads files that imitate /dev and /sys,
    /// `machine_simulated` has a node in memory, and `power_loss` replays the writes of this crate, whose order no
    /// kernel changes.
    const ASKS_NO_KERNEL: [&str; 4] = ["fake_disks", "luks_format", "machine_simulated", "power_loss"];

    /// The tests of csi-mount: each file that is a program, or a module of one.
    fn tests_of_csi_mount() -> impl Iterator<Item = (String, &'static str)> {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../csi-mount/tests");
        ["", ANYWHERE, MACHINES].into_iter().flat_map(move |program| {
            let entries = std::fs::read_dir(tests.join(program)).expect("csi-mount has tests");
            let files = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
            let name = |path: std::path::PathBuf| {
                path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
            };
            files.map(name).filter(|name| name != "main").map(move |name| (name, program))
        })
    }

    #[test]
    fn every_test_of_csi_mount_runs_there() {
        let mut count = 0;
        for (name, program) in tests_of_csi_mount() {
            count += 1;
            if ASKS_NO_KERNEL.contains(&&*name) {
                continue;
            }
            let is_row = |suite: &Suite| suite.test == name && suite.of_program == program;
            let has_row = SUITES.iter().any(|suite| suite.package == "csi-mount" && is_row(suite));
            assert!(has_row, "{program} {name} has no row: it runs on no kernel but this machine's");
        }
        assert!(count > 70, "{count}");
    }
}
