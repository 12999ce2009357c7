//! Drivers with one fault each: the kit finds the fault with the test that is about it. Drivers without a
//! fault pass. Needs root, for the mounts.
//!
//! By default a fault runs against its test alone. With `CSI_MUTANTS=group` it runs against the tests of that test's
//! group, and with `CSI_MUTANTS=whole` against all tests, which takes minutes. With `CSI_MUTANTS=concurrency,modify`
//! only those faults run whose expected test has one of these texts in its id.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use csi_conformance::{Kit, Pairs, Report};
use csi_core::Plugin;

use crate::faults;
use crate::faults::{Driver, Mutant, Remains};
use crate::inline;
use crate::memory;
use crate::memory::Memory;
use crate::proxy;
use crate::support::*;

/// The deadline of a call. A fault is found when the kit has repeated a call for this long, so it is short.
const SHORT: Duration = Duration::from_secs(4);
/// A deadline that no call of a driver reaches that does all right, also on a machine that has other work.
const LONG: Duration = Duration::from_secs(60);

/// The correct driver of this kind, on two nodes.
fn plugins(driver: Driver, places: &Places) -> (Plugin, Plugin) {
    let memory = match driver {
        Driver::Directories => Memory::directories(places.of("volumes")),
        Driver::Images => Memory::images(places.of("volumes")),
        Driver::Filesystems => Memory::filesystems(places.of("volumes")),
        Driver::TwoKinds => Memory::two_kinds(places.of("volumes")),
        Driver::Inline => {
            return (inline::plugin(), inline::plugin());
        }
    };
    (memory.clone().plugin(), memory.on("node-2").plugin())
}

fn kit(driver: Driver, kit: Kit, places: &Places, deadline: Duration) -> Kit {
    let size = match driver {
        Driver::Filesystems | Driver::TwoKinds => 16 << 20,
        // A fault creates devices of half the size, and 1 MiB is the least.
        Driver::Images => 2 << 20,
        Driver::Directories | Driver::Inline => 1 << 20,
    };
    // A directory has no limit of its own.
    let kit = if driver == Driver::Filesystems { kit.enforces_size() } else { kit };
    let kit = kit.size(size).deadline(deadline).mount_flags(["noexec", "noatime"]);
    if driver == Driver::Inline {
        return kit.ephemeral(Pairs::default());
    }
    kit.second_node(places.endpoint("second.sock"))
        .unhealthy_volume(memory::UNWELL)
        .mutable_parameters([("iops", "100"), ("tier", "fast")].into_iter().collect())
}

/// The kit's report on the driver with this fault, and what the run left. Runs all tests, or those whose id
/// contains `only`.
fn run(
    driver: Driver,
    fault: proxy::Fault,
    only: Option<&str>,
    deadline: Duration,
) -> (Report, Vec<PathBuf>) {
    in_private(async || {
        let places = Places::new();
        let endpoint = places.endpoint("csi.sock");
        let behind = places.endpoint("behind.sock");
        let (first, second) = plugins(driver, &places);
        let work = async {
            let kit = kit(driver, places.kit(), &places, deadline);
            let run = only.into_iter().fold(kit, Kit::only).run();
            proxy::with_fault(fault, &endpoint, &behind, run).await.unwrap()
        };
        let beside = places.endpoint("second.sock");
        let both = with_plugin(second, &beside, work);
        let report = with_plugin(first, &behind, both).await;
        let left = places.left();
        // What a fault left exists only in this namespace. Without its mounts the directory can be removed.
        for entry in csi_mount::mounts().unwrap().iter().rev() {
            if entry.mount_point.starts_with(places.of("target")) {
                csi_mount::unmount(&csi_mount::Target::new(&entry.mount_point).unwrap()).unwrap();
            }
        }
        for image in std::fs::read_dir(places.of("volumes")).unwrap() {
            detach(&image.unwrap().path());
        }
        (report, left)
    })
}

/// A child process of another run inherits what is open here, until it runs its program.
fn detach(image: &Path) {
    let end = Instant::now() + LONG;
    while let Err(error) = csi_mount::Host::kernel().devices().loop_detach(image) {
        assert!(error.kind() == csi_mount::ErrorKind::Busy && Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn without_a_fault_they_pass() {
    let mut passed = BTreeSet::new();
    for (driver, least) in
        [(Driver::Directories, 135), (Driver::Images, 130), (Driver::Filesystems, 140), (Driver::Inline, 18)]
    {
        let (report, left) = run(driver, faults::none(), None, LONG);
        print(&report);
        report.assert_ok();
        assert!(report.passed() >= least, "{}", report.summary());
        assert_eq!(left, Vec::<PathBuf>::new());
        let entries = report.entries.iter().filter(|one| one.verdict == csi_conformance::Verdict::Passed);
        passed.extend(entries.map(|one| one.test.id.clone()));
    }
    let never: Vec<_> = tests_of_the_kit().difference(&passed).cloned().collect();
    assert_eq!(never, Vec::<String>::new(), "tests that pass on none of them");
    println!("{} tests, each passes on one of them at least", passed.len());
}

/// The lists contain the degraded volume and the volumes of the tests: more than one page.
#[test]
fn a_driver_with_pages_of_its_own_size_passes() {
    passes(faults::unusual::small_pages(), Driver::Directories, in_short("list"));
}

/// On a node without access to the storage system's API, the publish context is all that a driver knows.
#[test]
fn a_driver_that_knows_its_publish_context_alone_passes() {
    let (report, left) =
        run(Driver::Filesystems, faults::knows_its_publish_context(), Some("node-missing"), LONG);
    report.assert_ok();
    assert_eq!(left, Vec::<PathBuf>::new());
}

/// The tests that are about what is unusual; all with `CSI_MUTANTS=group` and `whole`.
fn in_short(text: &str) -> Option<&str> {
    (!matches!(chosen().as_deref(), Some("group" | "whole"))).then_some(text)
}

/// Not faults: drivers that are unusual and right.
fn passes(fault: proxy::Fault, driver: Driver, only: Option<&str>) {
    let (report, left) = run(driver, fault, only, LONG);
    report.assert_ok();
    assert_eq!(left, Vec::<PathBuf>::new());
}

#[test]
fn drivers_that_are_unusual_and_right_pass() {
    use crate::faults::unusual::*;
    passes(one_call_at_a_time(), Driver::Directories, Some("concurrency"));
    passes(creates_in_background(), Driver::Directories, in_short("create"));
    passes(needs_a_place(), Driver::Directories, Some("volume"));
    passes(attaches_one(), Driver::Images, in_short("controller-publish"));
    passes(snapshots_at_rest(), Driver::Images, Some("contents"));
}

#[test]
fn a_driver_with_large_volumes_passes() {
    passes(faults::unusual::has_volumes_of(64 << 20), Driver::Filesystems, in_short("sizes"));
    passes(faults::unusual::has_volumes_of(1 << 30), Driver::Filesystems, Some("contents"));
}

/// What one kind of volume lacks, the other can have.
#[test]
fn a_driver_with_two_kinds_of_volumes_passes() {
    passes(faults::none(), Driver::TwoKinds, in_short("device"));
}

/// That a pool is full says nothing about a rule.
#[test]
fn a_driver_with_little_room_passes() {
    passes(faults::unusual::has_little_room(), Driver::Directories, in_short("create"));
}

/// A volume that the driver creates although it should refuse it is nothing that its next refusal has left.
#[test]
fn a_fault_is_not_found_twice() {
    let mut all = faults::all().into_iter();
    let mutant = all.find(|one| one.due == "create-volume.limit-below-required").unwrap();
    let (report, _) = run(mutant.driver, mutant.fault, Some("create-volume.refusal-leaves-nothing"), LONG);
    report.assert_ok();
    assert_eq!(report.passed(), 1);
}

fn tests_of_the_kit() -> BTreeSet<String> {
    Kit::new("/nowhere.sock".parse().unwrap()).tests().into_iter().map(|test| test.id).collect()
}

#[test]
fn each_test_of_the_kit_finds_a_fault() {
    let all = tests_of_the_kit();
    let due: BTreeSet<String> = faults::all().iter().map(|mutant| mutant.due.to_owned()).collect();
    let unknown: Vec<_> = due.difference(&all).collect();
    assert!(unknown.is_empty(), "the kit has no such tests: {unknown:?}");
    let never: Vec<_> = all.difference(&due).collect();
    assert!(never.is_empty(), "tests without a fault that they find: {never:?}");
}

/// Which faults run, and against what.
fn chosen() -> Option<String> {
    std::env::var("CSI_MUTANTS").ok()
}

fn judged(mutant: &Mutant, deadline: Duration) -> Vec<String> {
    let name = mutant.name;
    let due = mutant.due;
    let only = match (chosen().as_deref(), due.split_inclusive('.').next()) {
        // The tests of all calls need the calls of the other tests.
        (Some("whole"), _) | (_, Some("every-call.")) => None,
        (Some("group"), group) => group,
        // Its pages need the volumes of the other tests.
        _ if due == "list-volumes.pages-under-change" => Some("list-volumes."),
        _ => Some(due),
    };
    let (report, left) = run(mutant.driver, mutant.fault.clone(), only, deadline);
    let caught: Vec<&str> = report.failed().map(|entry| entry.test.id.as_str()).collect();
    let by = if caught.contains(&due) { due } else { "NOT by its test" };
    let others: Vec<_> = caught.iter().copied().filter(|id| *id != due).collect();
    println!(
        "| {name} | {by} | {} | {:.1} s | {} |",
        left.len(),
        report.took.as_secs_f64(),
        others.join(", ")
    );
    let mut wrong = Vec::new();
    if !caught.contains(&due) {
        wrong.push(format!("{name}: {due} is due to fail, and {caught:?} did"));
    }
    if mutant.remains == Remains::Nothing && !left.is_empty() {
        wrong.push(format!("{name}: the kit left {left:?}"));
    }
    wrong
}

#[test]
fn each_fault_is_caught_by_its_test() {
    let mut all = faults::all();
    // For work on a single test.
    if let Some(text) = chosen().filter(|text| !matches!(text.as_str(), "whole" | "group")) {
        all.retain(|mutant| text.split(',').any(|part| mutant.due.contains(part)));
        assert!(!all.is_empty(), "no fault is due to be found by a test with {text} in its id");
    }
    println!("| fault | caught by | left behind | took | others that failed |\n|---|---|---|---|---|");
    let next = Mutex::new(all.iter());
    let doubtful = Mutex::new(Vec::new());
    // Most of a run is waiting.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(mutant) = { next.lock().unwrap().next() } {
                    let found = judged(mutant, SHORT);
                    if !found.is_empty() {
                        doubtful.lock().unwrap().push(mutant.name);
                    }
                }
            });
        }
    });
    println!("{} faults", all.len());
    // On a machine that has other work, a call of a driver can take longer than the short deadline. A fault has
    // the state of its first run, so it is made again.
    let doubtful = doubtful.into_inner().unwrap();
    let again = faults::all().into_iter().filter(|mutant| doubtful.contains(&mutant.name));
    let wrong: Vec<String> = again.flat_map(|mutant| judged(&mutant, LONG)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
