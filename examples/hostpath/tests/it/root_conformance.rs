//! The driver under the conformance kit: all tests on filesystems and raw devices, images and directories; without each
//! feature, and with other settings, in short. Needs root.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum as _;
use csi_conformance::{Kit, Report, Verdict};
use hostpath::Feature;
use tokio::task::JoinSet;

use crate::support::life::Life;
use crate::support::requests::wanted;
use crate::support::{MIB, Run, in_private, rounds};

/// The number of drivers that run at the same time.
const AT_ONCE: usize = 4;

/// A run of the kit against its own driver.
struct Case {
    name: &'static str,
    flags: Vec<String>,
    kit: fn(&Run) -> Kit,
    /// Tests with one of these texts in their ids; without a text all.
    only: BTreeSet<String>,
    /// With a second node, and with a volume that lost its image.
    in_company: bool,
}

/// The tests that show most about a driver with other features or settings: what it reports about itself, that it refuses
/// what it does not offer, and a volume's life and use.
const SHORT: [&str; 5] = ["identity", "fields.not-offered", "sequences", "create-volume.same", "node-use"];

impl Case {
    fn new(name: &'static str, flags: &[&str], kit: fn(&Run) -> Kit) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { name, flags, kit, only: BTreeSet::new(), in_company: false }
    }

    /// Runs the tests in short, and those with these texts in their ids. With `CSI_TEST_ROUNDS` set, all tests of the kit.
    fn in_short<'a>(mut self, more: impl IntoIterator<Item = &'a str>) -> Self {
        if rounds(0) == 0 {
            self.only = SHORT.into_iter().chain(more).map(str::to_owned).collect();
        }
        self
    }

    async fn conforms(self) -> Report {
        // The data is in memory, because the speed of the disk is not tested here.
        let run = Run::on_tmpfs(64 << 30);
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let _driver = run.start(&flags).await;
        let mut kit = self.only.into_iter().fold((self.kit)(&run), Kit::only);
        let other = if self.in_company { Some(run.start_node("node-2", &flags).await) } else { None };
        if let Some(node) = &other {
            let unwell = Life::new(&run, wanted("unwell", None, MIB)).await.unwrap();
            std::fs::remove_file(run.stored("volumes", &unwell.id, "image")).unwrap();
            kit = kit.second_node(node.endpoint()).unhealthy_volume(unwell.id);
        }
        let report = kit.run().await.unwrap();
        println!("{}: {}", self.name, report.summary());
        report.assert_ok();
        run.assert_clean();
        report
    }
}

/// Runs all cases, `AT_ONCE` at a time. Returns the passed tests of each run, by the run's name. A failed
/// run does not stop the others.
async fn all(cases: Vec<Case>) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut running = JoinSet::new();
    let mut passed = BTreeMap::new();
    let mut failed = None;
    let mut left = cases.into_iter();
    loop {
        while running.len() < AT_ONCE
            && let Some(case) = left.next()
        {
            running.spawn(async move { (case.name, case.conforms().await) });
        }
        match running.join_next().await {
            Some(Ok((name, report))) => drop(passed.insert(name, passed_in(&report))),
            Some(Err(error)) => failed = Some(error),
            None => break,
        }
    }
    // The panic of the failed run says what it was.
    assert!(failed.is_none(), "a run failed");
    passed
}

fn passed_in(report: &Report) -> BTreeSet<String> {
    let passed = report.entries.iter().filter(|entry| entry.verdict == Verdict::Passed);
    passed.map(|entry| entry.test.id.clone()).collect()
}

fn images(run: &Run) -> Kit {
    let kit = run.kit().enforces_size().mount_flags(["noatime", "nodev"]);
    kit.ephemeral([("kind", "image"), ("size", "320Mi")].into_iter().collect())
}

fn directories(run: &Run) -> Kit {
    run.kit_without_filesystem().ephemeral([("kind", "directory")].into_iter().collect())
}

/// Tests of the kit that no run of this driver passes, and the reason.
const NOT_FOR_IT: &[(&str, &str)] = &[];

#[test]
fn every_test_of_the_kit_passes_in_one_of_the_runs() {
    in_private(async || {
        let among_others = [
            "--peer=node-2",
            "--pool=small=64Mi",
            "--pool=large=32Gi,zone=a",
            "--topology=zone=a",
            "--attach-limit=4",
        ];
        let mut never: BTreeSet<String> =
            Kit::new("/csi.sock".parse().unwrap()).tests().into_iter().map(|test| test.id).collect();
        let count = never.len();
        let wholly = all(vec![
            Case::new("images", &[], images),
            Case::new("directories", &["--kind=directory"], directories),
        ])
        .await;
        never.retain(|test| !wholly.values().any(|passed| passed.contains(test)));
        let with_others =
            |tests: &'static [&str]| never.iter().map(String::as_str).chain(tests.iter().copied());
        let otherwise = all(vec![
            Case::new(
                "offline expansion, blocks of one size",
                &["--expansion=offline", "--block-metadata=fixed"],
                Run::kit,
            )
            .in_short(with_others(&["expand", "metadata", "sizes", "usage"])),
            Case {
                in_company: true,
                ..Case::new("two nodes, pools, a limit, a volume unwell", &among_others, Run::kit)
            }
            .in_short(with_others(&["controller-publish", "get-capacity", "health", "topology"])),
            Case::new("nothing staged", &["--without=stage,snapshot-metadata"], directories)
                .in_short(with_others(&["node-publish", "node-missing", "ephemeral"])),
        ])
        .await;
        never.retain(|test| !otherwise.values().any(|passed| passed.contains(test)));
        let excused: BTreeSet<String> = NOT_FOR_IT.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(never, excused, "tests that no run passed");
        println!("{count} tests, each passed in one run at least");
    });
}

/// Without `--kind` and a filesystem the use of a volume decides what it is: a directory for several nodes, else an
/// image.
#[test]
fn the_use_of_a_volume_decides_its_kind() {
    in_private(async || {
        let kit = |run: &Run| run.kit_without_filesystem().only("create-volume").only("get-capacity");
        all(vec![Case::new("the use decides", &[], kit)]).await;
    });
}

/// Runs the cases, one of which is called "all". No other case passes a test that "all" does not pass.
async fn nothing_else_changes(cases: Vec<Case>) {
    let count = cases.len();
    let passed = all(cases).await;
    assert_eq!(passed.len(), count);
    // Without staging there are no raw devices. Only then the tests for unsupported capabilities have
    // something to ask for.
    let only_then = [
        "controller-expand.beyond-capabilities",
        "create-volume.unsupported",
        "get-capacity.no-room-for-unsupported",
        "node-publish.grown-otherwise",
    ];
    for (name, tests) in &passed {
        let more: Vec<_> =
            tests.difference(&passed["all"]).filter(|test| !only_then.contains(&test.as_str())).collect();
        assert!(more.is_empty(), "{name}: {more:?}");
    }
}

/// Nothing else changes: the tests of the missing feature are not run, and no other test fails. Each feature is left out
/// with directories or with images; with `CSI_TEST_ROUNDS` set, with both.
#[test]
fn each_feature_can_be_left_out() {
    in_private(async || {
        let names = Feature::value_variants().iter().filter_map(Feature::to_possible_value);
        // The names are leaked because a case needs them as static strings.
        let names: Vec<&'static str> = names.map(|value| &*value.get_name().to_owned().leak()).collect();
        let is_whole = rounds(0) > 0;
        // Without staging there are no images.
        let is_of_images = |name: &str, at: usize| name != "stage" && (is_whole || at % 2 == 1);
        let is_of_directories = |name: &str, at: usize| is_whole || !is_of_images(name, at);
        let of_images = (0..).zip(&names).filter(|(at, name)| is_of_images(name, *at));
        let of_directories = (0..).zip(&names).filter(|(at, name)| is_of_directories(name, *at));
        // A kit with parameters for inline volumes asks for them.
        let directory = |name: &'static str, off: &str| {
            let without = format!("--without=snapshot-metadata,{off}");
            let kit = if off == "inline" { Run::kit_without_filesystem } else { directories };
            Case::new(name, &["--kind=directory", &without], kit).in_short([])
        };
        let image = |name: &'static str, off: &str| {
            let kit = if name == "inline" { Run::kit } else { images };
            Case::new(name, &[&format!("--without={off}")], kit).in_short([])
        };
        let mut cases = vec![directory("all", "snapshot-metadata")];
        cases.extend(of_directories.map(|(_, name)| directory(name, name)));
        nothing_else_changes(cases).await;
        let mut cases = vec![Case::new("all", &[], images).in_short([])];
        cases.extend(of_images.map(|(_, name)| image(name, name)));
        nothing_else_changes(cases).await;
    });
}
