//! A target that starts again, and a node that does.

use std::fs;
use std::path::Path;

use csi_mount::BlockDevice;
use csi_mount::internal::reservation::{Change, change, registrations};
use csi_mount::reservation::WriteRight;
use nix::libc::EBADE;

use super::{Node, assert_registered, assert_reserved, content, number, refused, reserve, right, write};
use crate::devices::{MIB, run};
use crate::two_nodes::{IscsiDisk, NvmeDisk, SharedDisk, stored};

fn is_kept_out(disk: &Path) {
    let error = write(disk, 7, 40 * MIB).expect_err("the volume was not given to it");
    assert_eq!(error.raw_os_error(), Some(EBADE));
}

/// A target restarts while one node has the volume, and later while it has it no more. `keeps` says whether it has stored
/// what was registered. If not, the next stage is what keeps the first node out.
fn a_target_restarts(storage: &dyn SharedDisk, restart: impl Fn(), keeps: bool) {
    let disks = storage.nodes();
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = [0, 1].map(|node| Node::new(&disks[node], directory.path(), &node.to_string()));
    a.stage(1).unwrap();
    a.write("before", "content").unwrap();
    restart();
    if keeps {
        assert_reserved(&disks[1], number(1));
        assert_eq!(right(&disks[0], 1), WriteRight::Reserved);
        is_kept_out(&disks[1]);
    } else {
        assert_registered(&disks[1], vec![], None);
        assert_eq!(right(&disks[0], 1), WriteRight::NotReserved);
    }
    a.write("after", "content").unwrap();

    b.stage(2).unwrap();
    b.write("of-b", "content").unwrap();
    restart();
    if keeps {
        is_kept_out(&disks[0]);
    }
    b.stage(2).unwrap();
    assert_reserved(&disks[0], number(2));
    assert_eq!([right(&disks[0], 1), right(&disks[1], 2)], [WriteRight::Lost(2), WriteRight::Reserved]);
    b.unstage();
    let let_go = content(storage);
    for number in 0..20 {
        let _ = a.write(number, "late");
    }
    nix::unistd::sync();
    assert!(content(storage) == let_go, "a write of the first node arrived");
    assert!(refused(a.stage(1)).contains("is shut down"));
    a.unstage();
    b.stage(2).unwrap();
    assert!(["before", "after", "of-b"].iter().all(|name| b.file(name).exists()));
    b.unstage();
    run("e2fsck", &["-fn", disks[1].to_str().unwrap()]);
}

#[test]
fn a_target_that_restarts_keeps_what_it_stored_over_iscsi() {
    let storage = IscsiDisk::new();
    a_target_restarts(&storage, || storage.restart(), true);
}

#[test]
fn a_target_that_forgets_gets_its_reservation_with_the_next_stage_over_iscsi() {
    let storage = IscsiDisk::new();
    let forget = || {
        fs::remove_file(stored()).unwrap();
        storage.restart();
    };
    a_target_restarts(&storage, forget, false);
}

#[test]
fn a_target_that_forgets_gets_its_reservation_with_the_next_stage_over_nvme() {
    let storage = NvmeDisk::new();
    a_target_restarts(&storage, || storage.restart(), false);
}

/// A node reboots that has lost the volume meanwhile, and then the one that has it: neither knows anything any more.
fn a_node_reboots(storage: &dyn SharedDisk) {
    let [a, b] = storage.nodes();
    reserve(&a, 1).unwrap();
    reserve(&b, 2).unwrap();
    storage.reboot(0);
    let [a, b] = storage.nodes();
    is_kept_out(&a);
    assert!(refused(reserve(&a, 1)).contains("generation 2"));
    is_kept_out(&a);
    write(&b, 1, 40 * MIB).unwrap();

    storage.reboot(1);
    let [a, b] = storage.nodes();
    is_kept_out(&a);
    reserve(&b, 2).unwrap();
    assert_eq!(registrations(&BlockDevice::open(&a).unwrap()).unwrap().count, 1);
    assert_eq!([right(&a, 1), right(&b, 2)], [WriteRight::Lost(2), WriteRight::Reserved]);
    is_kept_out(&a);
    write(&b, 2, 40 * MIB).unwrap();
}

#[test]
fn a_node_that_reboots_writes_only_what_it_has_over_iscsi() {
    a_node_reboots(&IscsiDisk::new());
}

#[test]
fn a_node_that_reboots_writes_only_what_it_has_over_nvme() {
    a_node_reboots(&NvmeDisk::new());
}

/// Each login is a new session, and the registration of the one before stays.
#[test]
fn a_node_that_logs_in_again_and_again_is_registered_once() {
    let storage = IscsiDisk::new();
    for round in 0..15 {
        let [a, b] = storage.nodes();
        reserve(&a, 1).unwrap();
        let found = registrations(&BlockDevice::open(&b).unwrap()).unwrap();
        assert_eq!(found.count, 1, "round {round}: {found:x?}");
        assert_eq!(right(&a, 1), WriteRight::Reserved);
        storage.reboot(0);
    }
    // As an earlier version left them: one key many times, and none of them is this session's.
    let [a, _] = storage.nodes();
    change(&BlockDevice::open(&a).unwrap(), Change::Unregister).unwrap();
    for _ in 0..15 {
        let [a, _] = storage.nodes();
        assert!(change(&BlockDevice::open(&a).unwrap(), Change::Register(number(2))).unwrap());
        storage.reboot(0);
    }
    let [a, b] = storage.nodes();
    reserve(&a, 2).unwrap();
    assert_eq!(registrations(&BlockDevice::open(&b).unwrap()).unwrap().count, 1);
    assert_eq!(right(&a, 2), WriteRight::Reserved);
}
