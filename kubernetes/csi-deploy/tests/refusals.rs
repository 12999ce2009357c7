//! What is refused, and that the error names the option.

mod support;

use std::collections::BTreeSet;

use csi_deploy::{Class, Driver, Error, FsGroupPolicy, Lifecycle, Options, Rule, manifests};
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
    let of_services = |options: &mut Options| {
        options.service_monitor = true;
        options.metrics_from = vec!["monitoring".to_owned()];
    };
    assert_eq!(refused(&named("3par.csi.example.org"), of_services), "name");
    type Change = fn(&mut Options);
    let cases: [(&str, Change); 24] = [
        ("port", |options| {
            options.port = 50048;
            options.snapshot_metadata_secret = Some("certificate".to_owned());
        }),
        ("name", |options| options.name = Some("a.b".to_owned())),
        ("kubelet-dir", |options| options.kubelet_dir = format!("/{}", "x".repeat(60))),
        ("name", |options| {
            options.name = Some("x".repeat(42));
            options.controller = csi_deploy::Controller::StatefulSet;
        }),
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
        ("secret-files", |options| options.secret_files = vec!["etc=cloud".parse().expect("files")]),
        ("secret-files", |options| options.secret_files = vec!["/tmp=cloud".parse().expect("files")]),
        ("config-files", |options| {
            options.secret_files = vec!["/etc/cloud=cloud@all".parse().expect("files")];
            options.config_files = vec!["/etc/cloud=cloud@node".parse().expect("files")];
        }),
        ("config-files", |options| options.config_files = vec!["/etc/cloud=A".parse().expect("files")]),
        ("secret-env", |options| options.secret_env = vec!["1=cloud/a".parse().expect("a variable")]),
        ("secret-env", |options| options.secret_env = vec!["A=cloud/..".parse().expect("a variable")]),
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
    let modifying = driver().with_controller([ControllerCapability::ModifyVolume]);
    let empty: Change = |options| options.attributes_class = vec![Class::new("gold")];
    assert_eq!(refused(&modifying, empty), "attributes-class", "Kubernetes requires a parameter");
    let no_node = Driver::new("files.csi.example.org").with_controller([]);
    assert_eq!(refused(&no_node, |_| ()), "driver");
    let cases: [(&str, Change); 24] = [
        ("env", |options| options.env = vec![("A".to_owned(), String::new()); 2]),
        ("env", |options| options.env = vec![("NODE_ID".to_owned(), "x".to_owned())]),
        ("driver-elects", |options| {
            options.controller = csi_deploy::Controller::StatefulSet;
            options.driver_elects = true;
        }),
        ("replicas", |options| options.replicas = 0),
        ("replicas", |options| {
            options.controller = csi_deploy::Controller::StatefulSet;
            options.replicas = 2;
        }),
        ("replicas", |options| {
            options.replicas = 2;
            options.controller_host_path = vec!["/var/lib/files".to_owned()];
        }),
        ("secret-env", |options| {
            options.secret_env =
                ["A=cloud/a", "A=other/a@all"].map(|text| text.parse().expect("a variable")).into();
        }),
        ("secret-env", |options| {
            options.env = vec![("A".to_owned(), String::new())];
            options.secret_env = vec!["A=cloud/a".parse().expect("a variable")];
        }),
        ("lifecycle", |options| options.lifecycle = Lifecycle::Ephemeral),
        ("fs-group-policy", |options| options.fs_group_policy = Some(FsGroupPolicy::None)),
        ("livenessprobe", |options| (options.classic, options.livenessprobe) = (true, true)),
        ("node-allocatable-update-period", |options| options.node_allocatable_update_period = Some(9)),
        ("service-monitor", |options| options.service_monitor = true),
        ("prometheus-rule", |options| options.prometheus_rule = true),
        ("snapshot-metadata-ca", |options| options.snapshot_metadata_ca = Some(String::new())),
        ("cross-namespace-data-sources", |options| options.cross_namespace_data_sources = true),
        ("service-account-token-in-secrets", |options| options.service_account_token_in_secrets = true),
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
    let of_fuse: Change = |options| {
        options.namespace = "files-csi-example-org-fuse".to_owned();
        options.fuse_pods = Some(csi_deploy::FusePods::PerNode);
    };
    assert_eq!(refused(&driver(), of_fuse), "namespace");
    let in_vain: Change = |options| {
        options.controller = csi_deploy::Controller::NodeLocal;
        options.controller_arg = vec!["--x".to_owned()];
    };
    assert_eq!(refused(&with_topology(driver()), in_vain), "controller-arg");
    let node_only = Driver::new("files.csi.example.org").with_node([]);
    assert_eq!(refused(&node_only, |options| options.replicas = 2), "replicas");
    assert_eq!(refused(&node_only, |options| options.privileged_controller = true), "privileged-controller");
    let for_nobody: Change = |options| {
        options.controller = csi_deploy::Controller::NodeLocal;
        options.secret_files = vec!["/etc/cloud=cloud".parse().expect("files")];
    };
    assert_eq!(refused(&with_topology(driver()), for_nobody), "secret-files");
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

/// The containers of a kind of workload, by name, and whether each one has the API's token.
fn with_token(objects: &[serde_json::Value], kind: &str) -> Vec<(String, bool)> {
    let workload = objects.iter().find(|object| object["kind"] == kind).expect(kind);
    let pod = &workload["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false, "{kind}");
    let containers = pod["containers"].as_array().expect("containers");
    let has_token = |container: &serde_json::Value| container.to_string().contains("/serviceaccount");
    containers
        .iter()
        .map(|container| (container["name"].as_str().expect("a name").to_owned(), has_token(container)))
        .collect()
}

#[test]
fn only_a_container_that_calls_the_api_has_a_token() {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    options.livenessprobe = true;
    let made = manifests(&driver(), &options).expect("manifests");
    let objects = support::objects(&made.single());
    for (name, has_token) in with_token(&objects, "Deployment") {
        assert_eq!(has_token, name.starts_with("csi-"), "{name}");
    }
    assert!(with_token(&objects, "DaemonSet").iter().all(|(_, has_token)| !has_token));

    options.node_rule = vec!["nodes:get".parse().expect("a rule")];
    let made = manifests(&driver(), &options).expect("manifests");
    let of_node = with_token(&support::objects(&made.single()), "DaemonSet");
    assert!(of_node.contains(&("driver".to_owned(), true)));
    assert!(of_node.contains(&("livenessprobe".to_owned(), false)));
}

/// What client-go's recorder of events and its leader election call, and no other verb.
#[test]
fn events_and_leases_have_only_the_verbs_that_are_used() {
    let made =
        manifests(&driver(), &Options::new("registry.example.org/files-csi:1.0.0")).expect("manifests");
    let objects = support::objects(&made.single());
    let rules = objects.iter().filter_map(|object| object["rules"].as_array()).flatten();
    let of = |resource: &str| {
        let rule = rules.clone().find(|rule| rule["resources"][0] == resource);
        let mut verbs: Vec<String> =
            serde_json::from_value(rule.expect(resource)["verbs"].clone()).expect("verbs");
        verbs.sort();
        verbs
    };
    assert_eq!(of("events"), ["create", "patch"]);
    assert_eq!(of("leases"), ["create", "get", "update"]);
}

/// The verbs on a resource in each rule of the manifests, in their order.
fn verbs(driver: &Driver, options: &Options, resource: &str) -> Vec<Vec<String>> {
    let objects = support::objects(&manifests(driver, options).expect("manifests").single());
    let rules = objects.iter().filter_map(|object| object["rules"].as_array()).flatten();
    let of_resource = rules.filter(|rule| rule["resources"][0] == resource);
    of_resource.map(|rule| serde_json::from_value(rule["verbs"].clone()).expect("verbs")).collect()
}

#[test]
fn without_sidecars_claims_are_changed_only_for_a_topology_or_clones() {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    options.no_sidecars = true;
    let claims = |driver: &Driver| verbs(driver, &options, "persistentvolumeclaims");
    let changed = ["get", "list", "watch", "patch"];
    assert_eq!(claims(&driver()), [["list", "watch"]]);
    assert_eq!(claims(&with_topology(driver())), [changed]);
    let clones = [ControllerCapability::CreateDeleteVolume, ControllerCapability::CloneVolume];
    assert_eq!(claims(&driver().with_controller(clones)), [changed]);
    let records = verbs(&driver(), &options, "configmaps");
    assert_eq!(records, [vec!["create"], vec!["get", "patch"]]);
}

/// No other sidecar lends the health monitor its rules here.
#[test]
fn a_driver_that_only_reports_health_has_all_rules_of_the_monitor() {
    let driver = Driver::new("files.csi.example.org")
        .with_controller([ControllerCapability::GetVolumeHealth])
        .with_node([NodeCapability::VolumeMountGroup]);
    for no_sidecars in [false, true] {
        let mut options = Options::new("registry.example.org/files-csi:1.0.0");
        options.no_sidecars = no_sidecars;
        let objects = support::objects(&manifests(&driver, &options).expect("manifests").single());
        let role = objects.iter().find(|object| object["kind"] == "ClusterRole").expect("a role");
        let rules = role["rules"].as_array().expect("rules");
        let resources: BTreeSet<_> =
            rules.iter().map(|rule| rule["resources"][0].as_str().expect("a resource")).collect();
        let expected =
            ["events", "persistentvolumeclaims", "persistentvolumeclaims/status", "persistentvolumes"];
        assert_eq!(resources, BTreeSet::from(expected), "--no-sidecars: {no_sidecars}");
    }
}

#[test]
fn only_the_kubelet_and_named_namespaces_reach_the_pods() {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    let policies = |options: &Options| -> Vec<serde_json::Value> {
        let made = manifests(&driver(), options).expect("manifests");
        let objects = support::objects(&made.single());
        objects.into_iter().filter(|object| object["kind"] == "NetworkPolicy").collect()
    };
    let closed = policies(&options);
    assert_eq!(closed.len(), 2, "one for each kind of pods");
    for policy in &closed {
        assert_eq!(policy["spec"]["policyTypes"][0], "Ingress");
        assert!(policy["spec"].get("ingress").is_none(), "{policy}");
        assert!(
            policy["spec"]["podSelector"]["matchLabels"].as_object().is_some_and(|labels| labels.len() == 2)
        );
    }

    options.metrics_from = vec!["monitoring".to_owned()];
    options.host_network = true;
    let [of_controller] = &policies(&options)[..] else { panic!("no policy applies to the host's network") };
    let peer = &of_controller["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"];
    assert_eq!(peer["kubernetes.io/metadata.name"], "monitoring");
}

#[test]
fn without_host_pid_a_driver_of_devices_says_what_it_lacks() {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    let is_said = |options: &Options| {
        let made = manifests(&driver(), options).expect("manifests");
        made.notes().iter().any(|note| note.contains("without --host-pid the driver can't name the pod"))
    };
    assert!(!is_said(&options), "it has no devices");
    options.devices = true;
    assert!(is_said(&options));
    options.host_pid = true;
    assert!(!is_said(&options));
}

/// Numbers in base 60 (`1:30`) stay plain: the parsers of Kubernetes read them as text.
#[test]
fn what_yaml_1_1_takes_for_something_else_is_quoted() {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    let words = ["yes", "on", "n", "0755", "1e3", "~", "null", "#x", "a: b", ""];
    let named = |(index, word): (usize, &&str)| (format!("WORD{index}"), (*word).to_owned());
    options.env = words.iter().enumerate().map(named).collect();
    let text = manifests(&driver(), &options).expect("manifests").single();
    for word in words {
        let quoted = [format!("value: \"{word}\"\n"), format!("value: '{word}'\n")];
        assert!(quoted.iter().any(|due| text.contains(due)), "{word} is not quoted: {text}");
    }
}

/// The manifests with this text in every option that takes any.
fn with_text(text: &str) -> String {
    let mut options = Options::new("registry.example.org/files-csi:1.0.0");
    options.env = vec![("A".to_owned(), text.to_owned()), (text.to_owned(), "value".to_owned())];
    options.arg = vec![text.to_owned()];
    options.token = vec![text.replace('=', "").parse().expect("a token")];
    options.node_rule = vec![Rule::new(text, text, ["get"]), Rule::new("", text, ["get"]).in_namespace()];
    let mut class = Class::new("fast");
    class.parameters.insert(text.to_owned(), text.to_owned());
    options.storage_class = vec![class];
    options.default_fstype = Some(text.to_owned());
    manifests(&driver(), &options).expect("manifests").single()
}

/// Whatever text an option has: it is one value of its field, and no line, object or escape sequence of its own.
#[test]
fn text_from_outside_stays_in_its_field() {
    for text in [
        "a\nkind: Forged",
        "---\nkind: Forged\n",
        "a\r\n---\rkind: Forged",
        "\u{1b}[2J\u{7}\u{9b}\u{7f}\0",
        "a\u{85}kind: Forged\u{2028}b\u{2029}c\u{feff}",
        "\t",
        "a\tb",
        " a ",
        "- a",
        "? a",
        "a: ",
        "!!str a",
        "&a *b",
        "%TAG",
        "`a",
        "@a",
        "| a",
        "> a",
        "'a\"b\\c",
        "\\n",
        "{{a}}",
        "[a, b]",
        "a #b",
        "-",
        "...",
        "---",
        ".inf",
        "0x1f",
        "1_000",
        "2001-01-01",
        "=",
        "<<",
        "é\u{301}👍",
    ] {
        let all = with_text(text);
        let raw =
            all.chars().find(|c| *c != '\n' && (c.is_control() || "\u{2028}\u{2029}\u{feff}".contains(*c)));
        assert!(raw.is_none(), "{raw:?} of {text:?}: {all}");
        assert!(
            !all.lines().any(|line| line.trim_start_matches(['#', ' ']).starts_with("kind: Forged")),
            "{all}"
        );
        let objects = support::objects(&all);
        assert_eq!(objects.len(), support::objects(&with_text("x")).len(), "{text:?}: {all}");
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).expect(kind);
        let container = &of("DaemonSet")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"].as_array().expect("arguments").last().expect("one"), text);
        let env = container["env"].as_array().expect("variables");
        assert!(env.iter().any(|one| one["name"] == "A" && one["value"] == text), "{text:?}: {env:?}");
        assert!(env.iter().any(|one| one["name"] == text && one["value"] == "value"), "{text:?}: {env:?}");
        assert_eq!(of("StorageClass")["parameters"][text], text);
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

/// The object is readable by everybody who reads its kind.
#[test]
fn a_private_key_does_not_become_the_ca() {
    let driver = driver().with_plugin(&[service(PluginService::SnapshotMetadataService)]);
    let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let key = "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----\n";
    let made = |ca: String| {
        let mut options = Options::new("registry.example.org/files-csi:1.0.0");
        options.snapshot_metadata_secret = Some("certificate".to_owned());
        options.snapshot_metadata_ca = Some(ca);
        manifests(&driver, &options)
    };
    assert!(made(certificate.to_owned()).is_ok_and(|made| made.single().contains("caCert: LS0t")));
    for bad in [key.to_owned(), format!("{certificate}{key}"), "MIIB".to_owned()] {
        let error = made(bad).expect_err("no certificate alone").to_string();
        assert!(error.starts_with("snapshot-metadata-ca: ") && !error.contains("hunter2"), "{error}");
    }
}
