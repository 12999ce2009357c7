//! Where a chart is written. What Helm makes of it is in `helm.rs`.

use std::fs;

use clap::{Args, Command, FromArgMatches};
use csi_deploy::{Driver, Error, Manifests, Options, Output, manifests};
use csi_proto::ControllerCapability;

fn made(name: &str, change: impl FnOnce(&mut Options)) -> Manifests {
    let driver = Driver::new(name).with_controller([ControllerCapability::CreateDeleteVolume]).with_node([]);
    let mut options = Options::new("registry.example.org/files-csi:1.2.3");
    change(&mut options);
    manifests(&driver, &options).expect("manifests")
}

#[test]
fn a_chart_replaces_only_a_chart_of_the_same_driver() {
    let place = tempfile::tempdir().expect("a directory");
    let chart = place.path().join("chart");
    let with_class =
        made("files.csi.example.org", |options| options.storage_class = vec!["a".parse().expect("a class")]);
    with_class.write_chart_to(&chart).expect("a new directory");
    let read = |file: &str| fs::read_to_string(chart.join(file));
    assert!(read("Chart.yaml").is_ok_and(|text| text.contains("\nname: files-csi-example-org\n")));
    assert!(read("Chart.yaml").is_ok_and(|text| text.contains("\nversion: 1.2.3\n")));
    assert!(read("templates/classes.yaml").is_ok());
    // Another's template, and one that is no longer made.
    fs::write(chart.join("templates/own.yaml"), "own: true\n").expect("a file");
    made("files.csi.example.org", |_| ()).write_chart_to(&chart).expect("its own chart");
    assert!(read("templates/classes.yaml").is_err() && read("templates/own.yaml").is_ok());

    let before = read("values.yaml").expect("values");
    let other = made("other.csi.example.org", |options| options.kubelet_dir = "/srv/kubelet".to_owned());
    for refusing in [&chart, &place.path().to_owned()] {
        let Err(Error::Invalid { field, reason }) = other.write_chart_to(refusing) else { panic!("written") };
        assert_eq!(field, "chart");
        assert!(reason.contains(&refusing.display().to_string()), "{reason}");
    }
    assert_eq!(read("values.yaml").expect("values"), before);
    assert_eq!(fs::read_dir(place.path()).expect("entries").count(), 1);
}

/// Else the container would have the variable twice.
#[test]
fn a_level_of_the_flags_is_not_a_value_of_the_chart() {
    let read = |change: fn(&mut Options)| {
        let chart = tempfile::tempdir().expect("a directory");
        made("files.csi.example.org", change).write_chart_to(chart.path()).expect("a chart");
        let read = |file: &str| fs::read_to_string(chart.path().join(file)).expect(file);
        read("values.yaml") + &read("templates/node.yaml")
    };
    assert!(read(|_| ()).contains("logLevel"));
    let level = |options: &mut Options| options.env = vec![("RUST_LOG".to_owned(), "debug".to_owned())];
    assert!(!read(level).contains("logLevel"));
}

#[test]
fn the_test_driver_is_written_to_its_file_alone() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("e2e-testdriver.yaml");
    let flag = format!("--e2e-testdriver={}", file.display());
    let matches = Output::augment_args(Command::new("manifests")).get_matches_from(["manifests", &flag]);
    let output = Output::from_arg_matches(&matches).expect("flags");
    let mut printed = Vec::new();
    let mut notes = Vec::new();
    let made = made("files.csi.example.org", |_| ());
    output.write(&made, &mut printed, &mut notes).expect("a file");
    assert!(printed.is_empty() && notes.is_empty());
    assert_eq!(fs::read_to_string(&file).expect("the file"), made.e2e_testdriver());
    assert!(made.e2e_testdriver().contains("\nStorageClass:\n  FromName: true\n"));
}

#[test]
fn the_flag_writes_a_chart_and_says_what_helm_needs_before() {
    let place = tempfile::tempdir().expect("a directory");
    let chart = format!("--chart={}", place.path().display());
    let parse = |words: &[&str]| {
        let words = std::iter::once("manifests").chain(words.iter().copied());
        Output::augment_args(Command::new("manifests")).try_get_matches_from(words)
    };
    assert!(parse(&[&chart, "--single"]).is_err());
    let output = Output::from_arg_matches(&parse(&[&chart]).expect("flags")).expect("flags");
    let mut printed = Vec::new();
    let mut notes = Vec::new();
    output.write(&made("files.csi.example.org", |_| ()), &mut printed, &mut notes).expect("a chart");
    assert!(printed.is_empty() && place.path().join("Chart.yaml").is_file());
    assert!(String::from_utf8_lossy(&notes).contains("pod-security.kubernetes.io/enforce=privileged"));
}
