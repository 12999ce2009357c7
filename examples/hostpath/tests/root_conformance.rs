//! The driver under the conformance kit: all of it, as filesystems and raw devices, images and directories; each feature left
//! out; and with other settings. Needs root.
#![cfg(target_os = "linux")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum as _;
use csi_conformance::{Kit, Report, Verdict};
use hostpath::Feature;
use support::{Run, in_private, rounds};
use tokio::task::JoinSet;

/// How many drivers run at once.
const AT_ONCE: usize = 4;

async fn conforms(name: String, flags: Vec<String>, kit: fn(&Run) -> Kit) -> Report {
    // In memory: the disk's own time is not what is looked at here.
    let run = Run::on_tmpfs(64 << 30);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut driver = run.start(&flags).await;
    let report = kit(&run).run().await.unwrap();
    println!("{name}: {}", report.summary());
    report.assert_ok();
    run.assert_clean();
    driver.kill().await.unwrap();
    report
}

/// Several runs, some at a time; what passed in each, by the run's name.
async fn all(runs: Vec<(&str, Vec<String>, fn(&Run) -> Kit)>) -> BTreeMap<String, BTreeSet<String>> {
    let (mut running, mut passed) = (JoinSet::new(), BTreeMap::new());
    let mut left = runs.into_iter();
    loop {
        while running.len() < AT_ONCE
            && let Some((name, flags, kit)) = left.next()
        {
            let name = name.to_owned();
            running.spawn(async move { (name.clone(), conforms(name, flags, kit).await) });
        }
        let Some(done) = running.join_next().await else { return passed };
        let (name, report) = done.unwrap();
        passed.insert(name, passed_in(&report));
    }
}

fn passed_in(report: &Report) -> BTreeSet<String> {
    let passed = report.entries.iter().filter(|entry| entry.verdict == Verdict::Passed);
    passed.map(|entry| entry.test.id.clone()).collect()
}

fn flags(all: &[&str]) -> Vec<String> {
    all.iter().map(|flag| (*flag).to_owned()).collect()
}

/// What the kit has that no run of this driver passes, and why.
const NOT_FOR_IT: &[(&str, &str)] = &[];

#[test]
fn every_test_of_the_kit_passes_in_one_of_the_runs() {
    in_private(async || {
        let (images, directories): (fn(&Run) -> Kit, fn(&Run) -> Kit) =
            (Run::kit, Run::kit_without_filesystem);
        let passed = all(vec![
            ("images", vec![], images),
            // A directory has no blocks for the service to tell of.
            ("directories", flags(&["--kind=directory", "--without=snapshot-metadata"]), directories),
            (
                "offline expansion, blocks of one size",
                flags(&["--expansion=offline", "--block-metadata=fixed"]),
                images,
            ),
            (
                "two nodes, two pools, places, a limit",
                flags(&[
                    "--peer=node-1-2",
                    "--pool=small=64Mi",
                    "--pool=large=32Gi,zone=a",
                    "--topology=zone=a",
                    "--attach-limit=50",
                ]),
                images,
            ),
        ])
        .await;
        let all: BTreeSet<String> =
            Kit::new("/csi.sock".parse().unwrap()).tests().into_iter().map(|test| test.id).collect();
        let ever: BTreeSet<String> = passed.values().flatten().cloned().collect();
        let never: Vec<&str> = all.difference(&ever).map(String::as_str).collect();
        let excused: Vec<&str> = NOT_FOR_IT.iter().map(|(id, _)| *id).collect();
        assert_eq!(never, excused, "tests that no run passed");
        println!("{} tests, each passed in one run at least", all.len());
    });
}

/// The kit without what says no more of a feature that is left out, unless the full size is asked for.
fn kit_in_short(run: &Run) -> Kit {
    let kit = run.kit_without_filesystem();
    match rounds(0) {
        0 => ["device", "concurrency", "at-once", "given-up"].into_iter().fold(kit, Kit::skip),
        _ => kit,
    }
}

/// Everything else stays as it is: what is left out is not tested, and nothing else fails.
#[test]
fn each_feature_can_be_left_out() {
    in_private(async || {
        let run = |name: &'static str, off: &str| {
            let off = format!("--without=snapshot-metadata,{off}");
            (name, vec!["--kind=directory".to_owned(), off], kit_in_short as fn(&Run) -> Kit)
        };
        let names: Vec<String> = Feature::value_variants()
            .iter()
            .filter_map(|feature| Some(feature.to_possible_value()?.get_name().to_owned()))
            .collect();
        let names: Vec<&'static str> = names.into_iter().map(|name| &*name.leak()).collect();
        let mut runs = vec![run("all", "snapshot-metadata")];
        runs.extend(names.iter().map(|name| run(name, name)));
        let passed = all(runs).await;
        assert_eq!(passed.len(), names.len() + 1);
        for (name, tests) in &passed {
            assert!(tests.is_subset(&passed["all"]), "{name}: {:?}", tests.difference(&passed["all"]));
        }
    });
}
