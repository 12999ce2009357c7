//! The driver under the conformance kit: all of it, as filesystems and raw devices, images and directories; each feature left
//! out; and other settings. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum as _;
use csi_conformance::{Kit, Report, Verdict};
use hostpath::Feature;
use support::{Run, in_private};

async fn conforms(name: &str, flags: &[&str], kit: impl FnOnce(&Run) -> Kit) -> Report {
    let run = Run::new();
    let mut driver = run.start(flags).await;
    let report = kit(&run).run().await.unwrap();
    println!("{name}: {}", report.summary());
    report.assert_ok();
    run.assert_clean();
    driver.kill().await.unwrap();
    report
}

/// What the kit has that says nothing about this driver, and why.
const NOT_FOR_IT: &[(&str, &str)] = &[];

#[test]
fn every_test_of_the_kit_passes_in_one_of_the_runs() {
    in_private(async || {
        let reports = [
            conforms("images", &[], Run::kit).await,
            conforms(
                "directories",
                &["--kind=directory", "--without=snapshot-metadata"],
                Run::kit_without_filesystem,
            )
            .await,
        ];
        let mut passed: BTreeMap<String, usize> = BTreeMap::new();
        for entry in reports.iter().flat_map(|report| &report.entries) {
            *passed.entry(entry.test.id.clone()).or_default() +=
                usize::from(entry.verdict == Verdict::Passed);
        }
        let never: Vec<&String> = passed.iter().filter(|(_, times)| **times == 0).map(|(id, _)| id).collect();
        let excused: Vec<&str> = NOT_FOR_IT.iter().map(|(id, _)| *id).collect();
        assert_eq!(never, excused, "tests that no run passed");
        println!("{} tests of the kit, each passed in one run at least", passed.len());
    });
}

/// Everything else as it is: what is left out is not tested, and nothing else fails.
#[test]
fn each_feature_can_be_left_out() {
    in_private(async || {
        let flags = ["--kind=directory"];
        let all: BTreeSet<String> = passed(
            &conforms(
                "all",
                &["--kind=directory", "--without=snapshot-metadata"],
                Run::kit_without_filesystem,
            )
            .await,
        );
        for feature in Feature::value_variants() {
            let name = feature.to_possible_value().unwrap().get_name().to_owned();
            let off = format!("--without=snapshot-metadata,{name}");
            let report = conforms(&off, &[flags[0], &off], Run::kit_without_filesystem).await;
            let passed = passed(&report);
            assert!(passed.is_subset(&all), "{off}: {:?}", passed.difference(&all));
        }
    });
}

fn passed(report: &Report) -> BTreeSet<String> {
    let passed = report.entries.iter().filter(|entry| entry.verdict == Verdict::Passed);
    passed.map(|entry| entry.test.id.clone()).collect()
}
