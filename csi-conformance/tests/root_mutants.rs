//! Drivers with one fault each: the kit finds it, by the test that is about it. The driver without a fault passes. Needs
//! root, for the mounts.
#![cfg(target_os = "linux")]

#[path = "support/faults.rs"]
mod faults;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/proxy.rs"]
mod proxy;
mod support;

use csi_conformance::Report;
use support::*;

/// The kit's report on the driver with this fault.
fn run(fault: proxy::Fault) -> Report {
    in_private(async || {
        let places = Places::new();
        let (endpoint, behind) = (places.endpoint("csi.sock"), places.endpoint("behind.sock"));
        let work = async {
            let kit = places.kit(endpoint.clone()).size(1 << 20).run();
            proxy::with_fault(fault, &endpoint, &behind, kit).await.unwrap()
        };
        let report = with_plugin(memory::plugin(places.of("volumes")), &behind, work).await;
        // What a fault left is this namespace's alone; without its mounts the directory can go.
        for entry in csi_mount::mounts().unwrap().iter().rev() {
            if entry.mount_point.starts_with(places.of("target")) {
                csi_mount::unmount(&csi_mount::Target::new(&entry.mount_point).unwrap()).unwrap();
            }
        }
        report
    })
}

#[test]
fn without_a_fault_it_passes() {
    let report = run(faults::none());
    print(&report);
    report.assert_ok();
    assert!(report.passed() >= 55, "{}", report.summary());
}

#[test]
fn each_fault_is_caught_by_its_test() {
    let mut missed = Vec::new();
    let all = faults::all();
    println!("| fault | caught by | others that failed |\n|---|---|---|");
    for (name, due, fault) in &all {
        let report = run(fault.clone());
        let caught: Vec<&str> = report.failed().map(|entry| entry.test.id.as_str()).collect();
        let by = if caught.contains(due) { due } else { "NOT by its test" };
        let others: Vec<_> = caught.iter().copied().filter(|id| id != due).collect();
        println!("| {name} | {by} | {} |", others.join(", "));
        if !caught.contains(due) {
            missed.push(format!("{name}: {due} is due to fail, and {caught:?} did"));
        }
    }
    println!("{} faults", all.len());
    assert!(missed.is_empty(), "{missed:#?}");
}
