//! A disk that two nodes have, each with a name of its own: what one of them has taken over, the other one cannot write.
//! Over iSCSI and NVMe.
//!
//! The tests run where `cargo xtask test --kernels` provides the modules and open-iscsi, and not with `cargo test` alone.
//! `CSI_TEST_ROUNDS` sets how often a disk is taken over from a node that writes.

mod on_its_way;
mod restarts;

use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use csi_mount::flow::block::{MountCopies, StagePlan};
use csi_mount::internal::reservation::{Change, change, registrations};
use csi_mount::reservation::{Fencing, Reservation, ReservationKey, WriteRight};
use csi_mount::{BlockDevice, ErrorKind, Filesystem, Host, OwnedPath, Owner};

use crate::devices;
use crate::devices::{MIB, eventually, run};
use crate::stepper::{Job, Points, Programs, do_job};
use crate::two_nodes;
use crate::two_nodes::{Aligned, IscsiDisk, NvmeDisk, SharedDisk, direct};

/// The key of a generation, as a node registers first.
fn number(generation: u32) -> u64 {
    u64::from_str_radix(&key(generation).to_string()[2..], 16).unwrap()
}

fn key(generation: u32) -> ReservationKey {
    ReservationKey::new("cluster", generation)
}

/// The kernel's target for NVMe forgets reservations when it restarts, so they can't be required of it.
fn wanted(generation: u32) -> Reservation {
    Reservation::new(key(generation), Fencing::IfSupported)
}

fn reserve(disk: &Path, generation: u32) -> csi_mount::Result<()> {
    Host::kernel().block().reserve(disk, &wanted(generation))
}

fn right(disk: &Path, generation: u32) -> WriteRight {
    Host::kernel().block().write_right(disk, key(generation)).unwrap()
}

/// Checks that the disk is reserved, and for this key only.
fn assert_reserved(disk: &Path, key: u64) {
    assert_registered(disk, vec![key], Some(key));
}

/// Checks what is registered, in any order, and with which key the disk is reserved for those that are.
fn assert_registered(disk: &Path, mut keys: Vec<u64>, holder: Option<u64>) {
    const TYPES: [u64; 3] = [0, 3, 5];
    let found = registrations(&BlockDevice::open(disk).unwrap()).unwrap();
    let mut registered = found.keys[..found.count as usize].to_vec();
    registered.sort_unstable();
    keys.sort_unstable();
    assert_eq!((registered, (found.kind != 0).then_some(found.holder)), (keys, holder));
    assert!(TYPES.contains(&found.kind), "{found:?}");
}

fn refused(result: csi_mount::Result<()>) -> String {
    let error = result.unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Reserved, "{error}");
    error.to_string()
}

fn write(disk: &Path, byte: u8, offset: u64) -> std::io::Result<()> {
    direct(disk).write_all_at(Aligned::new(byte).bytes(), offset)
}

/// A number that changes with any byte that the target has.
fn content(storage: &dyn SharedDisk) -> u64 {
    let mut hasher = DefaultHasher::new();
    for mebibyte in 0..two_nodes::SIZE {
        hasher.write(&storage.read(mebibyte * MIB, 256));
    }
    hasher.finish()
}

/// A node's view of the volume: its staging directory.
struct Node<'d> {
    disk: &'d Path,
    staging: OwnedPath,
}

impl<'d> Node<'d> {
    fn new(disk: &'d Path, directory: &Path, name: &str) -> Self {
        let staging = OwnedPath::new(directory.join(name), Owner::new("fence.example.org", "volume"));
        Self { disk, staging }
    }

    fn stage(&self, generation: u32) -> csi_mount::Result<()> {
        let plan = StagePlan::new(Filesystem::Ext4).reserve(wanted(generation));
        Host::kernel().block().stage(self.disk, &self.staging, &plan).map(drop)
    }

    fn stage_without_a_reservation(&self) -> csi_mount::Result<()> {
        let plan = StagePlan::new(Filesystem::Ext4);
        Host::kernel().block().stage(self.disk, &self.staging, &plan).map(drop)
    }

    fn file(&self, name: impl std::fmt::Display) -> PathBuf {
        self.staging.path().join(format!("file-{name}"))
    }

    fn write(&self, name: impl std::fmt::Display, content: &str) -> std::io::Result<()> {
        let mut file = fs::File::create(self.file(name))?;
        file.write_all(content.as_bytes())?;
        file.sync_all()
    }

    fn unstage(&self) {
        Host::kernel().block().unstage(&self.staging, Some(self.disk), MountCopies::Kept).unwrap();
    }
}

/// A node has the filesystem mounted and writes files. The other node takes it over, writes, and lets go of it again. The
/// first node is told, and nothing that it had in memory arrives.
fn a_filesystem_changes_hands(storage: &dyn SharedDisk) {
    let disks = storage.nodes();
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = [0, 1].map(|node| Node::new(&disks[node], directory.path(), &node.to_string()));
    a.stage(1).unwrap();
    a.stage(1).unwrap();
    assert_reserved(&disks[1], number(1));
    let synced = &AtomicU64::new(0);
    let is_taken = &AtomicBool::new(false);
    let known = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut failed = 0;
            for number in 0.. {
                match a.write(number, &number.to_string()) {
                    Ok(()) if failed == 0 => synced.store(number, Ordering::SeqCst),
                    Ok(()) => {}
                    Err(_) => failed += 1,
                }
                if failed > 3 && is_taken.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        eventually("the node writes", || (synced.load(Ordering::SeqCst) > 5).then_some(()));
        let known = synced.load(Ordering::SeqCst);
        let staged = b.stage(2);
        is_taken.store(true, Ordering::SeqCst);
        staged.unwrap();
        known
    });
    for number in 0..=known {
        assert_eq!(fs::read_to_string(b.file(number)).unwrap(), number.to_string());
    }
    b.write("of-b", "written by b").unwrap();
    b.stage(2).unwrap();
    b.unstage();
    assert_reserved(&disks[0], number(2));
    let let_go = content(storage);

    let _ = a.write("late", "late");
    assert_eq!(right(&disks[0], 1), WriteRight::Lost(2));
    let text = refused(a.stage(1));
    assert!(text.contains("generation 2") && text.contains("is shut down"), "{text}");
    a.write("later", "later").expect_err("its filesystem is shut down");
    refused(a.stage(1));
    a.unstage();
    refused(a.stage(1));
    assert!(content(storage) == let_go, "a write arrived after the takeover");
    assert_reserved(&disks[0], number(2));

    a.stage(3).unwrap();
    assert_eq!(fs::read_to_string(a.file("of-b")).unwrap(), "written by b");
    assert!(!a.file("late").exists() && !a.file("later").exists());
    a.unstage();
    run("e2fsck", &["-fn", disks[0].to_str().unwrap()]);
}

/// The registration stays after the unstage, so that no other node can write until the volume is given to it.
fn a_volume_that_is_unstaged_stays_reserved(storage: &dyn SharedDisk) {
    let disks = storage.nodes();
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = [0, 1].map(|node| Node::new(&disks[node], directory.path(), &node.to_string()));
    for (node, other, generation) in [(&a, &b, 1), (&b, &a, 2), (&a, &b, 3)] {
        node.stage(generation).unwrap();
        node.write(generation, "content").unwrap();
        node.unstage();
        assert_reserved(node.disk, number(generation));
        assert_eq!(right(node.disk, generation), WriteRight::Reserved);
        let error = write(other.disk, 7, 40 * MIB).expect_err("the volume was not given to it");
        assert_eq!(error.raw_os_error(), Some(nix::libc::EBADE));
        let error = direct(other.disk).sync_all().err().and_then(|error| error.raw_os_error());
        assert!([None, Some(nix::libc::EBADE)].contains(&error), "{error:?}");
    }
    // The volume was given to another node and back, and nothing was staged there.
    a.stage(3).unwrap();
    a.stage(5).unwrap();
    assert_reserved(&disks[1], number(5));
    a.write("again", "content").unwrap();
}

/// A node has the volume mounted, and the storage does not know it: it restarted, or the driver did not fence then. Nobody
/// has taken the volume over, so its next stage registers it.
fn a_node_without_a_key_registers_where_nobody_else_is(storage: &dyn SharedDisk) {
    let disks = storage.nodes();
    let directory = tempfile::tempdir().unwrap();
    let a = Node::new(&disks[0], directory.path(), "a");
    a.stage_without_a_reservation().unwrap();
    fs::write(a.file("not-synced"), "content").unwrap();
    assert_registered(&disks[1], vec![], None);
    a.stage(1).unwrap();
    assert_reserved(&disks[1], number(1));
    assert!(change(&BlockDevice::open(&disks[0]).unwrap(), Change::Unregister).unwrap());
    assert_eq!(right(&disks[0], 1), WriteRight::NotReserved);
    a.stage(1).unwrap();
    assert_reserved(&disks[1], number(1));
    a.write("synced", "content").unwrap();
    a.unstage();
    a.stage(1).unwrap();
    assert!(a.file("not-synced").exists() && a.file("synced").exists());
    a.unstage();
}

/// The storage forgot the key of a node that is paused. The next node has the volume, lets go of it, and the first node
/// goes on: nothing of it arrives.
fn a_node_whose_key_was_forgotten_writes_nothing(storage: &dyn SharedDisk) {
    let disks = storage.nodes();
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = [0, 1].map(|node| Node::new(&disks[node], directory.path(), &node.to_string()));
    a.stage(1).unwrap();
    for number in 0..20 {
        a.write(number, "a").unwrap();
    }
    assert!(change(&BlockDevice::open(&disks[0]).unwrap(), Change::Unregister).unwrap());
    b.stage(2).unwrap();
    for number in 0..100 {
        b.write(format!("of-b-{number}"), "written by b").unwrap();
    }
    b.unstage();
    let let_go = content(storage);
    for number in 20..100 {
        let _ = a.write(number, "late");
    }
    nix::unistd::sync();
    assert!(content(storage) == let_go, "a write of the first node arrived");
    assert_eq!(right(&disks[0], 1), WriteRight::Lost(2));
    assert!(refused(a.stage(1)).contains("is shut down"));
    a.unstage();
    b.stage(3).unwrap();
    for number in 0..100 {
        assert_eq!(fs::read_to_string(b.file(format!("of-b-{number}"))).unwrap(), "written by b");
    }
    b.unstage();
    run("e2fsck", &["-fn", disks[1].to_str().unwrap()]);
}

/// A machine was replaced under its name, so both have one generation: the last one that stages has the volume.
fn two_machines_with_one_generation_do_not_both_write(storage: &dyn SharedDisk) {
    let disks = storage.nodes();
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = [0, 1].map(|node| Node::new(&disks[node], directory.path(), &node.to_string()));
    a.stage(1).unwrap();
    a.write("of-a", "written by a").unwrap();
    b.stage(1).unwrap();
    assert_eq!([right(&disks[0], 1), right(&disks[1], 1)], [WriteRight::Lost(1), WriteRight::Reserved]);
    let _ = a.write("late", "late");
    assert!(refused(a.stage(1)).contains("another machine took the device over"));
    a.unstage();
    b.stage(1).unwrap();
    b.write("of-b", "written by b").unwrap();
    b.unstage();
    b.stage(1).unwrap();
    assert!(b.file("of-a").exists() && b.file("of-b").exists() && !b.file("late").exists());
    b.unstage();
    run("e2fsck", &["-fn", disks[1].to_str().unwrap()]);
}

/// Two machines have one host identifier or initiator name, as cloned images have: what the other one has registered is
/// registered from here. The controller says that it was given to another node.
fn a_registration_that_two_machines_share_is_refused(storage: &dyn SharedDisk) {
    let [a, b] = storage.nodes();
    let block = Host::kernel();
    let block = block.block();
    reserve(&a, 1).unwrap();
    for fencing in [Fencing::IfSupported, Fencing::Required] {
        let text = refused(block.reserve(&a, &Reservation::new(key(2), fencing).earlier([])));
        assert!(text.contains("two machines have one host identifier"), "{text}");
        assert_reserved(&b, number(1));
    }
    block.reserve(&a, &wanted(2).earlier([1])).unwrap();
    assert_reserved(&b, number(2));
}

/// Prints how long a stage and an unstage take, on the node that had the volume last and on the other one.
fn what_fencing_costs(storage: &dyn SharedDisk) {
    let disks = storage.nodes();
    let directory = tempfile::tempdir().unwrap();
    let nodes = [0, 1].map(|node| Node::new(&disks[node], directory.path(), &node.to_string()));
    nodes[0].stage_without_a_reservation().unwrap();
    nodes[0].unstage();
    let mut times = Vec::new();
    for (how, is_fenced, moves) in [
        ("without", false, false),
        ("fenced, the same node", true, false),
        ("fenced, the other node", true, true),
    ] {
        let mut taken = Vec::new();
        for round in 0..10 {
            let node = &nodes[if moves { round % 2 } else { 0 }];
            let start = Instant::now();
            if is_fenced {
                node.stage(round as u32 + if moves { 100 } else { 1 }).unwrap();
            } else {
                node.stage_without_a_reservation().unwrap();
            }
            let staged = start.elapsed();
            node.unstage();
            taken.push((staged, start.elapsed() - staged));
        }
        taken.sort();
        println!("{how}: stage {:?}, unstage {:?}", taken[5].0, taken[5].1);
        times.push(taken[5].0);
    }
    assert!(times[2] < times[0] + Duration::from_secs(1), "{times:?}");
}

/// What another program or cluster has registered stays as it is, and nothing is written.
fn foreign_keys_are_left_alone(storage: &dyn SharedDisk) {
    let disks = storage.nodes();
    let [first, second] = [0, 1].map(|node| BlockDevice::open(&disks[node]).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let a = Node::new(&disks[0], directory.path(), "a");
    let before = content(storage);
    let other_cluster = u64::from_str_radix(&ReservationKey::new("another", 1).to_string()[2..], 16).unwrap();
    for foreign in [0xabc, other_cluster] {
        for is_reserved in [false, true] {
            assert!(change(&second, Change::Register(foreign)).unwrap());
            if is_reserved {
                assert!(change(&second, Change::Reserve(foreign)).unwrap());
            }
            let holder = is_reserved.then_some(foreign);
            for fencing in [Fencing::Required, Fencing::IfSupported] {
                let reserved = Host::kernel().block().reserve(&disks[0], &Reservation::new(key(9), fencing));
                assert!(refused(reserved).contains(&format!("{foreign:x}")));
            }
            refused(a.stage(9));
            assert_registered(&disks[0], vec![foreign], holder);
            change(&second, Change::Unregister).unwrap();
        }
    }
    assert!(content(storage) == before, "something was written");
    // A node that registers late, with a generation that is over.
    reserve(&disks[0], 2).unwrap();
    assert!(change(&second, Change::Register(number(1))).unwrap());
    assert_eq!(right(&disks[0], 2), WriteRight::Reserved);
    reserve(&disks[0], 2).unwrap();
    assert_reserved(&disks[0], number(2));
    // When it tries again, it learns it, and registers no more.
    refused(reserve(&disks[1], 1));
    assert_reserved(&disks[0], number(2));
    drop(first);
}

/// The commands of docs/fencing.md, of programs that are not ours: they see the same, and remove what stayed.
/// A host of NVMe that is registered cannot register again; `from` is the node with which the operator removes.
fn an_operator_sees_and_removes_it(
    storage: &dyn SharedDisk,
    see: &[&str],
    from: usize,
    remove: [&[&str]; 2],
) {
    let [a, b] = storage.nodes();
    let run = |disk: &Path, words: &[&str]| run(words[0], &[&words[1..], &[disk.to_str().unwrap()]].concat());
    reserve(&a, 1).unwrap();
    reserve(&b, 2).unwrap();
    // The other node would be told first that its registration is gone (UNIT ATTENTION).
    let seen = run(&b, see).to_lowercase();
    println!("{seen}");
    assert!(
        seen.contains(&format!("{:x}", number(2))) && !seen.contains(&format!("{:x}", number(1))),
        "{seen}"
    );
    assert_reserved(&a, number(2));
    let node = &storage.nodes()[from];
    remove.into_iter().for_each(|words| drop(run(node, words)));
    assert_registered(&a, vec![], None);
    write(&a, 1, 0).unwrap();
}

/// A takeover that is killed before each of its system calls leaves the volume neither without protection nor locked.
fn a_killed_takeover_converges(storage: &dyn SharedDisk, test: &str) {
    let [a, b] = storage.nodes();
    let devices = [&a, &b].map(|disk| BlockDevice::open(disk).unwrap());
    let words = ["reserve", b.to_str().unwrap(), "2"];
    let job = Job { programs: Programs::Followed, test, words: &words };
    let mut points = Points::with_continuations(60, 2);
    loop {
        for device in &devices {
            change(device, Change::Unregister).unwrap();
        }
        assert_registered(&a, vec![], None);
        reserve(&a, 1).unwrap();
        let continuation = points.continuation();
        let end = job.kill_before_change(points.call());
        // What the killed process began can still be on its way.
        let found = eventually("the disk answers", || registrations(&devices[0]).ok());
        let registered = &found.keys[..found.count as usize];
        println!("{registered:x?}, then {continuation}");
        if write(&a, 1, 0).is_err() {
            assert!(registered.contains(&number(2)), "nothing keeps the first node out");
        }
        match continuation {
            0 => {
                eventually("the takeover is repeated", || reserve(&b, 2).ok());
                assert_reserved(&a, number(2));
                write(&a, 2, 0).expect_err("the other node has the disk");
                write(&b, 2, 0).unwrap();
                refused(reserve(&a, 1));
            }
            _ => {
                eventually("the volume goes back", || reserve(&a, 3).ok());
                write(&a, 3, 0).unwrap();
                write(&b, 3, 0).expect_err("the first node has the disk again");
                refused(reserve(&b, 2));
            }
        }
        if let Some(swept) = points.step(end) {
            println!("killed at {} points of {} changes", swept.points(), swept.calls);
            assert!(swept.points() > 8 && swept.killed.iter().all(|count| *count > 0), "{:?}", swept.killed);
            return;
        }
    }
}

/// Runs the job if this process is the one that is killed.
fn run_killed() {
    do_job(|words| {
        let ["reserve", disk, generation] = words else { panic!("{words:?}") };
        reserve(Path::new(disk), generation.parse().unwrap())
    });
}

#[test]
fn a_filesystem_changes_hands_over_iscsi() {
    a_filesystem_changes_hands(&IscsiDisk::new());
}

#[test]
fn a_filesystem_changes_hands_over_nvme() {
    a_filesystem_changes_hands(&NvmeDisk::new());
}

#[test]
fn a_volume_that_is_unstaged_stays_reserved_over_iscsi() {
    a_volume_that_is_unstaged_stays_reserved(&IscsiDisk::new());
}

#[test]
fn a_volume_that_is_unstaged_stays_reserved_over_nvme() {
    a_volume_that_is_unstaged_stays_reserved(&NvmeDisk::new());
}

#[test]
fn an_iscsi_node_without_a_key_registers_where_nobody_else_is() {
    a_node_without_a_key_registers_where_nobody_else_is(&IscsiDisk::new());
}

#[test]
fn an_nvme_node_without_a_key_registers_where_nobody_else_is() {
    a_node_without_a_key_registers_where_nobody_else_is(&NvmeDisk::new());
}

#[test]
fn an_iscsi_node_whose_key_was_forgotten_writes_nothing() {
    a_node_whose_key_was_forgotten_writes_nothing(&IscsiDisk::new());
}

#[test]
fn an_nvme_node_whose_key_was_forgotten_writes_nothing() {
    a_node_whose_key_was_forgotten_writes_nothing(&NvmeDisk::new());
}

#[test]
fn two_machines_with_one_generation_do_not_both_write_over_iscsi() {
    two_machines_with_one_generation_do_not_both_write(&IscsiDisk::new());
}

#[test]
fn two_machines_with_one_generation_do_not_both_write_over_nvme() {
    two_machines_with_one_generation_do_not_both_write(&NvmeDisk::new());
}

#[test]
fn a_registration_that_two_machines_share_is_refused_over_iscsi() {
    a_registration_that_two_machines_share_is_refused(&IscsiDisk::new());
}

#[test]
fn a_registration_that_two_machines_share_is_refused_over_nvme() {
    a_registration_that_two_machines_share_is_refused(&NvmeDisk::new());
}

#[test]
fn what_fencing_costs_over_iscsi() {
    what_fencing_costs(&IscsiDisk::new());
}

#[test]
fn what_fencing_costs_over_nvme() {
    what_fencing_costs(&NvmeDisk::new());
}

/// It can't be promised there that a node that is cut off does not write.
#[test]
fn storage_that_forgets_reservations_is_refused_if_they_are_required() {
    let storage = NvmeDisk::new();
    let [a, b] = storage.nodes();
    let block = Host::kernel();
    let required = Reservation::new(key(1), Fencing::Required);
    let error = block.block().reserve(&a, &required).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("forgets reservations when it restarts"), "{error}");
    assert_registered(&b, vec![], None);
    drop(storage);
    let storage = IscsiDisk::new();
    let [a, b] = storage.nodes();
    block.block().reserve(&a, &required).unwrap();
    assert_reserved(&b, number(1));
}

/// The kernel's target for SCSI keeps what is registered in files, below a directory that nobody makes for it.
#[test]
fn a_target_that_can_not_store_registrations_has_none() {
    let storage = IscsiDisk::new();
    let [a, b] = storage.nodes();
    let places = ["/var/target/pr", "/etc/target/pr"];
    places.into_iter().for_each(|place| fs::rename(place, format!("{place}-away")).unwrap());
    let reserved = [Fencing::IfSupported, Fencing::Required]
        .map(|fencing| Host::kernel().block().reserve(&a, &Reservation::new(key(1), fencing)));
    places.into_iter().for_each(|place| fs::rename(format!("{place}-away"), place).unwrap());
    let [used, refused] = reserved;
    used.unwrap();
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("/var/target/pr"), "{error}");
    // Another node is registered, so this one is not used without.
    reserve(&b, 1).unwrap();
    places.into_iter().for_each(|place| fs::rename(place, format!("{place}-away")).unwrap());
    let error = reserve(&a, 2).unwrap_err();
    places.into_iter().for_each(|place| fs::rename(format!("{place}-away"), place).unwrap());
    assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
    assert_reserved(&a, number(1));
}

#[test]
fn foreign_keys_are_left_alone_over_iscsi() {
    foreign_keys_are_left_alone(&IscsiDisk::new());
}

#[test]
fn foreign_keys_are_left_alone_over_nvme() {
    foreign_keys_are_left_alone(&NvmeDisk::new());
}

#[test]
fn an_operator_sees_and_removes_it_over_iscsi() {
    an_operator_sees_and_removes_it(
        &IscsiDisk::new(),
        &["sg_persist", "--in", "--read-full-status"],
        1,
        [
            &["sg_persist", "--out", "--register-ignore", "--param-sark=1"],
            &["sg_persist", "--out", "--clear", "--param-rk=1"],
        ],
    );
}

#[test]
fn an_operator_sees_and_removes_it_over_nvme() {
    an_operator_sees_and_removes_it(
        &NvmeDisk::new(),
        &["nvme", "resv-report", "--eds"],
        0,
        [&["nvme", "resv-register", "--nrkey=1"], &["nvme", "resv-release", "--crkey=1", "--rrela=1"]],
    );
}

#[test]
fn a_killed_takeover_converges_over_iscsi() {
    run_killed();
    a_killed_takeover_converges(
        &IscsiDisk::new(),
        "remote_reservations::a_killed_takeover_converges_over_iscsi",
    );
}

#[test]
fn a_killed_takeover_converges_over_nvme() {
    run_killed();
    a_killed_takeover_converges(
        &NvmeDisk::new(),
        "remote_reservations::a_killed_takeover_converges_over_nvme",
    );
}

/// A target without reservations, and a device that has none.
#[test]
fn a_device_without_reservations_is_used_only_if_that_is_allowed() {
    let image = devices::Image::new(300);
    let block = Host::kernel();
    let block = block.block();
    let error = block.reserve(image.path(), &Reservation::new(key(1), Fencing::Required)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for fencing in [Fencing::IfSupported, Fencing::Off] {
        block.reserve(image.path(), &Reservation::new(key(1), fencing)).unwrap();
    }
    assert_eq!(right(image.path(), 1), WriteRight::Unsupported);
}
