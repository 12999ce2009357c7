//! What is refused, and that the error names the option.

mod support;

use csi_deploy::{Driver, Error, FsGroupPolicy, Lifecycle, Options, manifests};
use csi_proto::v1::{PluginCapability, plugin_capability};
use csi_proto::{ControllerCapability, NodeCapability};
use plugin_capability::service::Type as PluginService;

fn driver() -> Driver {
    Driver::new("files.csi.example.org")
        .with_controller([ControllerCapability::CreateDeleteVolume])
        .with_node([NodeCapability::VolumeMountGroup])
}

fn service(service: PluginService) -> PluginCapability {
    let service = plugin_capability::Service { r#type: service as i32 };
    PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) }
}

fn with_topology(driver: Driver) -> Driver {
    driver.with_plugin(&[service(PluginService::VolumeAccessibilityConstraints)])
}

/// The name of the refused option.
#[track_caller]
fn refused(driver: &Driver, change: impl FnOnce(&mut Options)) -> &'static str {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    change(&mut options);
    match manifests(driver, &options) {
        Err(Error::Invalid { field, reason }) => {
            assert!(reason.len() > 10, "{field}: {reason}");
            field
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_that_kubernetes_refuses() {
    let named = |name: &str| Driver::new(name).with_node([]);
    for bad in ["Files.csi.example.org", "files_csi", "", "-a", &"x".repeat(64)] {
        assert_eq!(refused(&named(bad), |_| ()), "driver name", "{bad}");
    }
    // Long enough for a CSIDriver, too long for the names of its objects.
    assert_eq!(refused(&named(&"x".repeat(60)), |_| ()), "name");
    type Change = fn(&mut Options);
    let cases: [(&str, Change); 15] = [
        ("name", |options| options.name = Some("a.b".to_owned())),
        ("namespace", |options| options.namespace = "Files".to_owned()),
        ("image", |options| options.image = String::new()),
        ("image", |options| options.image = "a b".to_owned()),
        ("sidecar-registry", |options| options.sidecar_registry = "a\nb".to_owned()),
        ("image-pull-secret", |options| options.image_pull_secret = vec!["A".to_owned()]),
        ("kubelet-dir", |options| options.kubelet_dir = "var/lib/kubelet".to_owned()),
        ("node-host-path", |options| options.node_host_path = vec!["/srv/../etc".to_owned()]),
        ("controller-host-path", |options| options.controller_host_path = vec!["/".to_owned()]),
        ("node-host-path", |options| options.node_host_path = vec!["/srv".to_owned(); 2]),
        ("node-host-path", |options| options.node_host_path = vec!["/var/lib/kubelet".to_owned()]),
        ("controller-host-path", |options| options.controller_host_path = vec!["/tmp".to_owned()]),
        ("port", |options| options.port = 0),
        ("storage-class", |options| options.storage_class = vec!["A".parse().expect("a class")]),
        ("default-fstype", |options| options.default_fstype = Some(String::new())),
    ];
    for (field, change) in cases {
        assert_eq!(refused(&driver(), change), field);
    }
}

#[test]
fn options_that_contradict_each_other_or_a_capability() {
    type Change = fn(&mut Options);
    let local: Change = |options| options.controller = csi_deploy::Controller::NodeLocal;
    assert_eq!(refused(&driver(), local), "controller");
    let attaching = driver().with_controller([ControllerCapability::PublishUnpublishVolume]);
    assert_eq!(refused(&with_topology(attaching), local), "controller");
    let no_node = Driver::new("files.csi.example.org").with_controller([]);
    assert_eq!(refused(&no_node, |_| ()), "driver");
    let cases: [(&str, Change); 14] = [
        ("driver-elects", |options| {
            options.controller = csi_deploy::Controller::StatefulSet;
            options.driver_elects = true;
        }),
        ("replicas", |options| options.replicas = 0),
        ("replicas", |options| {
            options.controller = csi_deploy::Controller::StatefulSet;
            options.replicas = 2;
        }),
        ("lifecycle", |options| options.lifecycle = Lifecycle::Ephemeral),
        ("fs-group-policy", |options| options.fs_group_policy = Some(FsGroupPolicy::None)),
        ("livenessprobe", |options| (options.classic, options.livenessprobe) = (true, true)),
        ("node-allocatable-update-period", |options| options.node_allocatable_update_period = Some(9)),
        ("token", |options| options.token = vec!["vault=599".parse().expect("a token")]),
        ("token", |options| options.token = ["a", "a=600"].map(|text| text.parse().expect("a token")).into()),
        ("snapshot-class", |options| options.snapshot_class = vec!["a".parse().expect("a class")]),
        ("group-snapshot-class", |options| {
            options.group_snapshot_class = vec!["a".parse().expect("a class")];
        }),
        ("attributes-class", |options| options.attributes_class = vec!["a".parse().expect("a class")]),
        ("secret", |options| options.secret = vec!["provisioner=a/b".parse().expect("a secret")]),
        ("snapshot-metadata-secret", |options| options.snapshot_metadata_secret = Some("a".to_owned())),
    ];
    for (field, change) in cases {
        assert_eq!(refused(&driver(), change), field);
    }
    let in_vain: Change = |options| {
        options.controller = csi_deploy::Controller::NodeLocal;
        options.controller_arg = vec!["--x".to_owned()];
    };
    assert_eq!(refused(&with_topology(driver()), in_vain), "controller-arg");
}

/// Also a driver without any capability but the Node service has objects that are the API's.
#[test]
fn every_layout_reads_back() {
    for controller in ["deployment", "stateful-set", "node-local"] {
        for driver in [Driver::new("a.b").with_node([]), driver()] {
            let mut options = Options::new("registry.example.org/files-csi:1.0.0");
            options.controller = controller.parse().expect("a layout");
            let made = manifests(&with_topology(driver), &options).expect("manifests");
            let objects = support::objects(&made.single());
            assert!(objects.iter().any(|object| object["kind"] == "DaemonSet"));
        }
    }
}

/// A replica that waits to lead has no socket and no HTTP endpoint: a probe would end it again and again. The
/// sidecars next to it wait for the socket before they elect anybody.
#[test]
fn nothing_probes_or_elects_next_to_a_driver_that_elects() {
    for (classic, livenessprobe) in [(false, false), (false, true), (true, false)] {
        let mut options = Options::new("registry.example.org/files-csi:1.0.0");
        (options.driver_elects, options.replicas) = (true, 2);
        (options.classic, options.livenessprobe) = (classic, livenessprobe);
        let made = manifests(&driver(), &options).expect("manifests");
        let objects = support::objects(&made.single());
        let pod = |kind: &str| {
            let object = objects.iter().find(|object| object["kind"] == kind).expect(kind);
            object["spec"]["template"]["spec"].to_string()
        };
        for absent in ["livenessProbe", "readinessProbe", "livenessprobe", "--leader-election"] {
            assert!(!pod("Deployment").contains(absent), "{absent}: {}", pod("Deployment"));
        }
        assert!(pod("DaemonSet").contains("livenessProbe"));
        assert!(!made.single().contains("leases"), "the driver's own rule is an option");
    }
}

/// Numbers in base 60 (`1:30`) stay plain: the parsers of Kubernetes read them as text.
#[test]
fn what_yaml_1_1_takes_for_something_else_is_quoted() {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    let words = ["yes", "on", "n", "0755", "1e3", "~", "null", "#x", "a: b", ""];
    options.env = words.iter().map(|word| ("WORD".to_owned(), (*word).to_owned())).collect();
    let text = manifests(&driver(), &options).expect("manifests").single();
    for word in words {
        let quoted = [format!("value: \"{word}\"\n"), format!("value: '{word}'\n")];
        assert!(quoted.iter().any(|due| text.contains(due)), "{word} is not quoted: {text}");
    }
}

/// Each flag's default is that of `Options::new`.
#[test]
fn the_flags_have_the_defaults_of_the_type() {
    use clap::{Args, Command, FromArgMatches};
    let command = Options::augment_args(Command::new("manifests"));
    command.clone().debug_assert();
    let matches = command.get_matches_from(["manifests", "--image=x"]);
    let parsed = Options::from_arg_matches(&matches).expect("flags");
    assert_eq!(format!("{parsed:?}"), format!("{:?}", Options::new("x")));
}

#[test]
fn a_directory_gets_every_file_that_its_kustomization_names() {
    let options = Options::new("registry.example.org/files-csi:1.0.0");
    let made = manifests(&driver(), &options).expect("manifests");
    let directory = tempfile::tempdir().expect("a directory");
    made.write_to(&directory.path().join("base")).expect("written");
    let read = |name: &str| std::fs::read_to_string(directory.path().join("base").join(name)).expect(name);
    let kustomization = read("kustomization.yaml");
    let names: Vec<&str> = kustomization.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(
        names,
        ["csidriver.yaml", "rbac-controller.yaml", "rbac-node.yaml", "controller.yaml", "node.yaml"]
    );
    let in_files: usize = names.iter().map(|name| support::objects(&read(name)).len()).sum();
    assert_eq!(in_files, support::objects(&made.single()).len());
}
