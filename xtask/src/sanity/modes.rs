//! The releases of the suite, the examples, and the ways to use each example that csi-sanity knows.

/// A release of the suite, and the spec that the drivers serve to it.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) version: &'static str,
    /// The value of `--spec`. The examples without flags keep their default, v1.12.
    pub(crate) spec: &'static str,
    pub(crate) defects: &'static [Defect],
    /// A failure that comes and goes, because of the suite: the run is repeated once.
    pub(crate) race: Option<&'static str>,
    /// Examples that this release can't test, and why.
    pub(crate) left_out: &'static [(&'static str, &'static str)],
}

/// The newest release, and the last one for v1.12.0 of the spec, which refuses capabilities of v1.13.0.
pub(crate) const RELEASES: [Release; 2] = [
    Release {
        version: "v5.4.0",
        spec: "v1.12",
        defects: &[Defect {
            spec: "Controller Service [Controller Server] ControllerGetCapabilities should return appropriate \
                   capabilities",
            message: "Unknown capability: GET_SNAPSHOT",
            why: "the suite does not know a capability of v1.12.0, the version of the spec that it is built for",
        }],
        // The suite misses that its connection is ready if that happens before it first looks, and gives up
        // after a minute; v5.6.0 looks first.
        race: Some("Connection timed out"),
        left_out: &[("secrets", "this release asks the Controller service in every spec of the node")],
    },
    Release {
        version: "v5.6.0",
        spec: "v1.13",
        defects: &[Defect {
            spec: "CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility \
                   requirements",
            message: "sizeCache: ",
            why: "the suite compares two messages with their internal fields; one of them was sent before, so \
                  its cached size differs. A driver passes only if it reports no topology",
        }],
        race: None,
        left_out: &[],
    },
];

/// One way to use an example.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    /// The package, which is also the name of its program.
    pub(crate) driver: &'static str,
    pub(crate) name: &'static str,
    /// The driver's flags.
    pub(crate) flags: &'static [&'static str],
    /// The suite's flags, in addition to those of every run.
    pub(crate) suite: &'static [&'static str],
    /// The specs that the suite skips here.
    pub(crate) skips: &'static [Skip],
}

/// Specs that the suite skips, and why that is right for this driver.
#[derive(Debug)]
pub(crate) struct Skip {
    /// The suite's own messages.
    pub(crate) messages: &'static [&'static str],
    pub(crate) why: &'static str,
}

/// A spec that fails because of the suite.
#[derive(Debug)]
pub(crate) struct Defect {
    pub(crate) spec: &'static str,
    /// A part of the failure's message, so that another failure of this spec is not accepted.
    pub(crate) message: &'static str,
    pub(crate) why: &'static str,
}

/// The message of a spec that the mode's own filter leaves out: the suite gives none.
pub(crate) const FILTERED: &str = "";

/// The access type of volumes.
const RAW: &str = "--csi.testvolumeaccesstype=block";
/// Without this flag the suite does not test the limit of volumes on a node.
const LIMIT: &str = "--csi.testnodevolumeattachlimit";

/// What no short example has.
const BEYOND_THE_SHORT_EXAMPLES: &[&str] = &[
    "Controller Publish, UnpublishVolume not supported",
    "ControllerGetVolumeHealth not supported",
    "ControllerListVolumeHealth not supported",
    "ControllerModifyVolume not supported",
    "ControllerPublishVolume not supported",
    "ControllerUnpublishVolume not supported",
    "CreateSnapshot not supported",
    "DeleteSnapshot not supported",
    "GetCapacity not supported",
    "GetSnapshot not supported",
    "GroupControllerService not supported",
    "ListSnapshots not supported",
    "ListVolumes not supported",
    "Modify Volume not supported",
    "Modify volume not supported",
    "NodeGetStorageHealth not supported",
    "Snapshot not supported",
    "Volume Cloning not supported",
];
const SHORT: Skip = Skip {
    messages: BEYOND_THE_SHORT_EXAMPLES,
    why: "the example shows the least that a driver of its kind needs; hostpath has these capabilities",
};
const NO_SIZE: Skip = Skip {
    messages: &[
        "ControllerExpandVolume not supported",
        "NodeExpandVolume not supported",
        "capacity of the volume is unknown",
    ],
    why: "its volumes are directories without a size of their own",
};
const NO_FLAGS: Skip = Skip {
    messages: &["NodeGetVolumeHealth not supported"],
    why: "the example has no flags, so it serves v1.12.0 of the spec, the default",
};
const NO_STAGING: Skip = Skip {
    messages: &["NodeStageVolume not supported", "NodeUnstageVolume not supported"],
    why: "its volumes are published without being staged",
};
const ONE_WRITER: Skip = Skip {
    messages: &["Service does not have single node multi writer capability"],
    why: "the example does not declare SINGLE_NODE_MULTI_WRITER; the others do",
};
const NO_CONTROLLER: Skip = Skip {
    messages: &[
        FILTERED,
        "Controller Service not provided: CreateVolume not supported",
        "NodeExpandVolume not supported",
        "NodeGetStorageHealth not supported",
        "NodeGetVolumeHealth not supported",
    ],
    why: "its volumes are inline: it has no Controller service, and the suite publishes only what it created",
};

/// Every mode of every example. `nfs` and `smb` need a kernel with their client and are tested in the emulated
/// machine. `ceph` needs a cluster.
pub(crate) const MODES: &[Mode] = &[
    Mode {
        driver: "dirs",
        name: "directories",
        flags: &[],
        suite: &[],
        skips: &[SHORT, NO_SIZE, NO_STAGING, NO_FLAGS],
    },
    Mode { driver: "block", name: "filesystems", flags: &[], suite: &[], skips: &[SHORT, NO_FLAGS] },
    Mode { driver: "block", name: "raw devices", flags: &[], suite: &[RAW], skips: &[SHORT, NO_FLAGS] },
    Mode { driver: "fuse", name: "FUSE", flags: &[], suite: &[], skips: &[SHORT, NO_SIZE, ONE_WRITER] },
    Mode {
        driver: "secrets",
        name: "inline files",
        flags: &[],
        suite: &[
            "--ginkgo.focus=Identity Service|Node Service",
            "--ginkgo.skip=should remove target path|volume does not exist on the specified path",
        ],
        skips: &[NO_CONTROLLER, NO_STAGING, ONE_WRITER],
    },
    Mode { driver: "hostpath", name: "images", flags: &["--attach-limit=4"], suite: &[LIMIT], skips: &[] },
    Mode {
        driver: "hostpath",
        name: "raw devices",
        flags: &["--attach-limit=4"],
        suite: &[LIMIT, RAW],
        skips: &[],
    },
    Mode {
        driver: "hostpath",
        name: "directories, not staged",
        flags: &["--kind=directory", "--without=stage", "--attach-limit=4"],
        suite: &[LIMIT],
        skips: &[NO_STAGING],
    },
];
const NO_SERVER: Skip = Skip {
    messages: &[FILTERED],
    why: "its node mounts from an NFS server, which the run has not: only the controller is called",
};

/// The drivers of the templates.
pub(crate) const TEMPLATES: &[Mode] = &[
    Mode {
        driver: "template-directory",
        name: "template",
        flags: &[],
        suite: &[],
        skips: &[SHORT, NO_SIZE, NO_STAGING],
    },
    Mode { driver: "template-block", name: "template", flags: &[], suite: &[], skips: &[SHORT] },
    Mode {
        driver: "template-shared",
        name: "template",
        flags: &[],
        suite: &["--ginkgo.focus=Identity Service|Controller Service"],
        skips: &[SHORT, NO_SIZE, NO_SERVER],
    },
    Mode { driver: "template-fuse", name: "template", flags: &[], suite: &[], skips: &[SHORT, NO_SIZE] },
    Mode {
        driver: "template-ephemeral",
        name: "template",
        flags: &[],
        suite: &[
            "--ginkgo.focus=Identity Service|Node Service",
            "--ginkgo.skip=should remove target path|volume does not exist on the specified path",
        ],
        skips: &[NO_CONTROLLER, NO_STAGING, ONE_WRITER],
    },
];

/// Specs that the suite itself has switched off.
pub(crate) const PENDING: &[&str] = &[
    "Controller Service [Controller Server] ListVolumes pagination should detect volumes added between pages \
     and accept tokens when the last volume from a page is deleted",
];
