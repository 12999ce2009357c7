//! The decisions, with controllers in a directory that stands for sysfs.

use std::fs;

use super::*;
use crate::remote::attach::own_portals;
use crate::remote::disk::Disk;
use crate::remote::nvme::target::{NamespaceId, Transport};
use crate::remote::paths::{DiskState, common_size};
use crate::remote::record::Record;
use crate::remote::transport::{Attached, Transport as _};
use crate::sys::ids::DeviceNumber;

const NQN: &str = "nqn.s";
const HOST: &str = "nqn.h";
const UUID: &str = "9f1b2c3d-0000-4000-8000-00000000002a";

fn id() -> NamespaceId {
    NamespaceId::uuid(UUID).unwrap()
}

/// A directory with the attributes of controllers, as the kernel writes them.
struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn set(&self, file: &str, text: &str) {
        let file = self.0.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }

    fn controller(&self, name: &str, nqn: &str, port: u16, state: &str) {
        for (file, text) in [
            ("transport", "tcp"),
            ("subsysnqn", nqn),
            ("hostnqn", HOST),
            ("state", state),
            ("address", &format!("traddr=10.0.0.1,trsvcid={port},src_addr=10.0.0.9")),
        ] {
            self.set(&format!("class/nvme/{name}/{file}"), text);
        }
    }

    /// A path with native multipath, or a disk without.
    fn path(&self, controller: &str, name: &str, access: &str, size: u64) {
        let place = format!("class/nvme/{controller}/{name}");
        let disk = if name.contains('c') { "nvme0n1" } else { name };
        for (file, text) in [
            ("nsid", "7"),
            ("wwid", &format!("uuid.{UUID}")),
            ("nguid", "01234567-89ab-cdef-0123-456789abcdef"),
            ("eui", "01 23 45 67 89 ab cd ef"),
            ("ana_state", access),
            ("size", &(size / 512).to_string()),
        ] {
            self.set(&format!("{place}/{file}"), text);
        }
        self.set(&format!("block/{disk}/dev"), "259:3");
        self.set(&format!("block/{disk}/size"), &(1 << 11).to_string());
    }

    fn tree(&self) -> Tree {
        Tree::read(self.0.path()).unwrap()
    }

    fn namespace(&self) -> DiskState {
        disks(&self.tree(), &disk_of(NQN, HOST, id())).state()
    }
}

fn disk_of(nqn: &str, host_nqn: &str, namespace: NamespaceId) -> NvmeDisk {
    NvmeDisk { transport: Transport::Tcp, nqn: nqn.to_owned(), host_nqn: host_nqn.to_owned(), namespace }
}

fn record(nqn: &str, portals: &[(u16, bool)]) -> Record {
    let portals = portals.iter().map(|(port, is_own)| Portal { address: address(*port), is_own: *is_own });
    Record::new("b".to_owned(), Disk::Nvme(disk_of(nqn, HOST, id())), portals.collect())
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

#[test]
fn a_namespace_is_usable_by_a_live_path_with_access() {
    let fake = Fake::new();
    assert_eq!(fake.namespace(), DiskState::Absent, "no module is loaded");
    assert!(!has_native_multipath(fake.0.path()));
    fake.controller("nvme0", NQN, 1, "live");
    fake.controller("nvme1", NQN, 2, "live");
    assert_eq!(fake.namespace(), DiskState::Absent);
    for (states, access, expected) in [
        (["live", "live"], ["optimized", "inaccessible"], true),
        (["connecting", "live"], ["optimized", "non-optimized"], true),
        (["connecting", "live"], ["optimized", "inaccessible"], false),
        (["deleting (no IO)", "dead"], ["optimized", "optimized"], false),
        (["live", "resetting"], ["change", "optimized"], false),
        (["live", "live"], ["persistent-loss", "inaccessible"], false),
    ] {
        for (index, state) in states.into_iter().enumerate() {
            fake.set(&format!("class/nvme/nvme{index}/state"), state);
            fake.path(&format!("nvme{index}"), &format!("nvme0c{index}n1"), access[index], 1 << 20);
        }
        let found = fake.namespace();
        assert_eq!(
            found == DiskState::Usable(DeviceNumber::new(259, 3)),
            expected,
            "{states:?} {access:?} {found:?}"
        );
        assert!(expected || matches!(found, DiskState::Unusable(_)), "{found:?}");
    }
    // The kernel has no usable path, so it gives the disk no node.
    fake.set("class/nvme/nvme0/state", "live");
    fake.path("nvme0", "nvme0c0n1", "optimized", 1 << 20);
    fs::remove_file(fake.0.path().join("block/nvme0n1/dev")).unwrap();
    assert!(matches!(fake.namespace(), DiskState::Unusable(_)));
}

#[test]
fn each_name_is_found_and_no_other_subsystem_or_disk() {
    let fake = Fake::new();
    fake.controller("nvme0", NQN, 1, "live");
    fake.path("nvme0", "nvme0c0n1", "optimized", 1 << 20);
    let tree = fake.tree();
    let has = |nqn: &str, host: &str, id: NamespaceId| {
        disks(&tree, &disk_of(nqn, host, id)).state() != DiskState::Absent
    };
    assert!(has(NQN, HOST, NamespaceId::nguid("0123456789abcdef0123456789ABCDEF").unwrap()));
    assert!(has(NQN, HOST, NamespaceId::eui64("0123456789abcdef").unwrap()));
    assert!(has(NQN, HOST, id()));
    assert!(!has("nqn.other", HOST, id()) && !has(NQN, "nqn.other", id()));
    assert!(!has(NQN, HOST, NamespaceId::eui64("0123456789abcdee").unwrap()));
    // The NGUID is no UUID, although the kernel's attribute `uuid` has it.
    assert!(!has(NQN, HOST, NamespaceId::uuid("0123456789abcdef0123456789abcdef").unwrap()));
    // A local disk with the same name.
    fake.set("class/nvme/nvme0/transport", "pcie");
    assert_eq!(fake.namespace(), DiskState::Absent);
}

#[test]
fn without_native_multipath_two_disks_are_refused() {
    let fake = Fake::new();
    fake.set("module/nvme_core/parameters/multipath", "N");
    assert!(!has_native_multipath(fake.0.path()));
    fake.set("module/nvme_core/parameters/multipath", "Y");
    assert!(has_native_multipath(fake.0.path()));
    for index in 0..2 {
        fake.controller(&format!("nvme{index}"), NQN, 4420 + index, "live");
    }
    fake.path("nvme0", "nvme0n1", "optimized", 1 << 20);
    assert!(matches!(fake.namespace(), DiskState::Usable(_)));
    fake.path("nvme1", "nvme1n1", "optimized", 1 << 20);
    assert_eq!(fake.namespace(), DiskState::SeveralDisks(vec!["nvme0n1".into(), "nvme1n1".into()]));
}

#[test]
fn only_what_an_attachment_connected_is_disconnected() {
    let fake = Fake::new();
    fake.controller("nvme0", NQN, 1, "live");
    fake.controller("nvme1", NQN, 2, "connecting");
    fake.controller("nvme2", "nqn.other", 3, "live");
    let tree = fake.tree();
    let disk = disk_of(NQN, HOST, id());
    let found = connected(fake.0.path(), &disk).unwrap();
    let own = |portals: &[u16], records: &[&Record]| {
        let portals: Vec<_> = portals.iter().map(|port| address(*port)).collect();
        let found = own_portals(&portals, &found, &Disk::Nvme(disk.clone()), records);
        found.into_iter().map(|portal| portal.is_own).collect::<Vec<_>>()
    };
    // The portal 3 has a controller, but of another subsystem.
    assert_eq!(own(&[1, 2, 3, 4], &[]), [false, false, true, true]);
    let first = record(NQN, &[(1, true), (2, false)]);
    let other = record("nqn.other", &[(2, true)]);
    assert_eq!(own(&[1, 2], &[&first, &other]), [true, false]);

    let names = |portals: &[(u16, bool)]| -> Vec<String> {
        let portals = record(NQN, portals).portals;
        own_controllers(&tree, &disk, &portals).into_iter().map(|found| found.name.clone()).collect()
    };
    assert_eq!(names(&[(1, true), (2, true), (3, true), (4, true)]), ["nvme0", "nvme1"]);
    assert_eq!(names(&[(1, false), (2, true)]), ["nvme1"]);
    assert!(names(&[]).is_empty());
    for (portals, expected) in [(&[(1, true), (4, false)][..], false), (&[(1, true), (3, true)], true)] {
        let portals = record(NQN, portals).portals;
        assert_eq!(is_connection_missing(&tree, &disk, &portals), expected, "{portals:?}");
    }
    let attached = Attached { sys: fake.0.path(), disk: &disk, portals: &[] };
    assert_eq!(attached.number(None).unwrap(), None);
}

#[test]
fn sizes_agree_on_every_path_and_the_disk() {
    let fake = Fake::new();
    for (index, size) in [(0, 1 << 20), (1, 1 << 20)] {
        fake.controller(&format!("nvme{index}"), NQN, index, "live");
        fake.path(&format!("nvme{index}"), &format!("nvme0c{index}n1"), "optimized", size);
    }
    let size = |fake: &Fake| {
        let tree = fake.tree();
        common_size(paths(&tree, &disk_of(NQN, HOST, id())).flat_map(|(_, path)| path.sizes))
    };
    assert_eq!(size(&fake), Ok(1 << 20));
    fake.path("nvme1", "nvme0c1n1", "optimized", 2 << 20);
    assert!(size(&fake).unwrap_err().contains("different sizes"));
    assert!(common_size(std::iter::empty()).is_err());
}

#[test]
fn a_namespace_has_one_transport_and_its_own_controllers() {
    let fake = Fake::new();
    for (index, transport) in [(0, "tcp"), (1, "rdma")] {
        fake.controller(&format!("nvme{index}"), NQN, 4420, "live");
        fake.set(&format!("class/nvme/nvme{index}/transport"), transport);
        fake.path(&format!("nvme{index}"), &format!("nvme0c{index}n1"), "optimized", 1 << 20);
    }
    let tcp = disk_of(NQN, HOST, id());
    let rdma = NvmeDisk { transport: Transport::Rdma, ..tcp.clone() };
    let own = |disk: &NvmeDisk| -> Vec<String> {
        let tree = fake.tree();
        let portals = [Portal { address: address(4420), is_own: true }];
        own_controllers(&tree, disk, &portals).into_iter().map(|found| found.name.clone()).collect()
    };
    assert_eq!((own(&tcp), own(&rdma)), (vec!["nvme0".to_owned()], vec!["nvme1".to_owned()]));
    let other = NvmeDisk { namespace: NamespaceId::eui64("0123456789abcdef").unwrap(), ..rdma.clone() };
    let [tcp, rdma, other] = [tcp, rdma, other].map(Disk::Nvme);
    assert!(tcp.excludes(&rdma) && rdma.excludes(&tcp));
    assert!(!tcp.excludes(&tcp) && !tcp.excludes(&other) && !tcp.shares_connections(&rdma));
}
