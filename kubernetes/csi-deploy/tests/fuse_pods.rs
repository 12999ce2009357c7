//! The pods of FUSE programs.

mod support;

use csi_deploy::{Driver, FusePods, Options, manifests};
use csi_kube::rules;
use csi_proto::ControllerCapability;
use serde_json::{Value, json};

fn options() -> Options {
    let mut options = Options::new("registry.example.org/flat-csi:1.0.0");
    options.namespace = "flat-csi".to_owned();
    options.fuse_pods = Some(FusePods::PerNode);
    options
}

fn objects(options: &Options) -> Vec<Value> {
    let driver = Driver::new("flat.csi.example.org").with_node([]);
    support::objects(&manifests(&driver, options).expect("manifests").single())
}

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

const NAME: &str = "flat-csi-example-org-fuse";

/// Each field that the level `restricted` of the Pod Security Standards asks for, and what it forbids.
#[test]
fn the_pods_have_no_privilege_and_nothing_of_the_host() {
    let objects = objects(&options());
    let labels = &named(&objects, "Namespace", NAME)["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted");
    let set = named(&objects, "DaemonSet", NAME);
    assert_eq!(set["metadata"]["namespace"], NAME);
    assert_eq!(set["spec"]["updateStrategy"], json!({ "type": "OnDelete" }));
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(
        pod["securityContext"],
        json!({"runAsGroup": 65532, "runAsNonRoot": true, "runAsUser": 65532})
    );
    assert_eq!(pod["terminationGracePeriodSeconds"], 600);
    for field in ["hostNetwork", "hostPID", "hostIPC", "initContainers", "serviceAccountName"] {
        assert_eq!(pod[field], Value::Null, "{field}");
    }
    for volume in pod["volumes"].as_array().expect("volumes") {
        assert!(volume["emptyDir"].is_object(), "{volume}");
    }
    let container = &pod["containers"][0];
    let security = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    assert_eq!(container["securityContext"], security);
    assert_eq!(container["image"], "registry.example.org/flat-csi:1.0.0");
    assert_eq!(container["args"], json!(["--fuse-mounter=/mounter", "--grace=570s"]));
    assert_eq!(container["resources"]["limits"]["memory"], "1Gi");
    assert_eq!(container["resources"]["requests"]["memory"], "1Gi");
}

/// A release that is uninstalled ends no volume that is in use.
#[test]
fn helm_keeps_what_serves_volumes() {
    let objects = objects(&options());
    for kind in ["Namespace", "DaemonSet"] {
        let annotations = &named(&objects, kind, NAME)["metadata"]["annotations"];
        assert_eq!(*annotations, json!({ "helm.sh/resource-policy": "keep" }), "{kind}");
    }
    let is_kept = |object: &&Value| object["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep";
    assert_eq!(objects.iter().filter(is_kept).count(), 2, "all else goes");
}

/// csi-mount looks for the volume `mounter`, and for the names of the pods' log directories.
#[test]
fn the_driver_finds_the_pods() {
    let objects = objects(&options());
    let pod = &named(&objects, "DaemonSet", "flat-csi-example-org-node")["spec"]["template"]["spec"];
    let driver = &pod["containers"][0];
    let flag = json!(format!("--fuse-pods={NAME}/{NAME}"));
    assert!(driver["args"].as_array().expect("arguments").contains(&flag), "{driver}");
    let mounts = driver["volumeMounts"].as_array().expect("mounts");
    let logs = json!({"mountPath": "/var/log/pods", "name": "pod-logs", "readOnly": true});
    assert!(mounts.contains(&logs), "{driver}");
    let notes = |options: &Options| {
        let driver = Driver::new("flat.csi.example.org").with_node([]);
        manifests(&driver, options).expect("manifests").notes().to_vec()
    };
    assert!(notes(&options())[0].contains("--requires-republish"));
    let mut without = options();
    without.requires_republish = true;
    assert!(notes(&without).is_empty());
    without.fuse_pods = None;
    let text = format!("{:?}", self::objects(&without));
    assert!(!text.contains("fuse") && !text.contains("/var/log"), "{text}");
}

#[test]
fn another_image_gets_the_drivers_program() {
    let mut options = options();
    options.fuse_image = Some("registry.example.org/rclone:1".to_owned());
    options.fuse_memory = "4Gi".to_owned();
    options.fuse_priority_class = Some("storage".to_owned());
    options.arg = vec!["--region=eu".to_owned()];
    let objects = objects(&options);
    let pod = &named(&objects, "DaemonSet", NAME)["spec"]["template"]["spec"];
    let install = &pod["initContainers"][0];
    assert_eq!(install["image"], "registry.example.org/flat-csi:1.0.0");
    assert_eq!(install["args"], json!(["--copy-program-to=/csi-program/mounter", "--region=eu"]));
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "registry.example.org/rclone:1");
    assert_eq!(container["command"], json!(["/csi-program/mounter"]));
    assert_eq!(container["resources"]["limits"]["memory"], "4Gi");
    assert_eq!(pod["priorityClassName"], "storage");
}

#[test]
fn what_can_not_work_is_refused() {
    let driver = Driver::new("flat.csi.example.org").with_node([]);
    let refused = |change: fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        manifests(&driver, &options).expect_err("refused").to_string()
    };
    assert!(refused(|options| options.classic = true).contains("fuse-pods"));
    assert!(refused(|options| options.fuse_memory = "much".to_owned()).contains("fuse-memory"));
    assert!(refused(|options| options.fuse_memory = "12x".to_owned()).contains("fuse-memory"));
    assert!(refused(|options| options.fuse_memory = "0Gi".to_owned()).contains("fuse-memory"));
    let memory = refused(|options| {
        options.fuse_pods = None;
        options.fuse_memory = "2Gi".to_owned();
    });
    assert!(memory.contains("only with --fuse-pods"), "{memory}");
    let image = refused(|options| {
        options.fuse_pods = None;
        options.fuse_image = Some("a/b:1".to_owned());
    });
    assert!(image.contains("fuse-image"), "{image}");
    let class = refused(|options| {
        options.fuse_pods = None;
        options.fuse_priority_class = Some("high".to_owned());
    });
    assert!(class.contains("fuse-priority-class"), "{class}");
    assert!(
        refused(|options| options.fuse_priority_class = Some("High!".to_owned())).contains("priority-class")
    );
    let no_controller = refused(|options| options.fuse_pods = Some(FusePods::PerVolume));
    assert!(no_controller.contains("FusePods"), "{no_controller}");
}

/// The controller makes pods in that namespace, and can do it in no other one.
#[test]
fn a_controller_that_makes_pods_has_the_rights_for_that() {
    let driver = Driver::new("flat.csi.example.org")
        .with_controller([ControllerCapability::PublishUnpublishVolume])
        .with_node([]);
    let mut options = options();
    options.fuse_pods = Some(FusePods::PerVolume);
    let objects = support::objects(&manifests(&driver, &options).expect("manifests").single());
    let kinds = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
    assert_eq!(kinds("DaemonSet"), 1, "the driver's own");
    let template = &named(&objects, "PodTemplate", NAME)["template"];
    let per_node = self::objects(&self::options());
    let set = &named(&per_node, "DaemonSet", NAME)["spec"]["template"];
    assert_eq!(template["spec"]["priorityClassName"], Value::Null);
    let mut due = set["spec"].clone();
    due.as_object_mut().expect("a pod").remove("priorityClassName");
    assert_eq!(template["spec"], due, "it is the same pod");
    assert_eq!(template["metadata"]["labels"], set["metadata"]["labels"]);
    named(&objects, "Namespace", NAME);
    let role = named(&objects, "Role", NAME);
    assert_eq!(role["metadata"]["namespace"], NAME);
    let rule = |rule: &rules::Rule| json!({"apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs});
    assert_eq!(role["rules"], rules::FUSE_PODS_NAMESPACE.iter().map(rule).collect::<Value>());
    let binding = named(&objects, "RoleBinding", NAME);
    assert_eq!(binding["subjects"][0]["name"], "flat-csi-example-org-controller");
    let cluster = named(&objects, "ClusterRole", "flat-csi-example-org-controller");
    let verbs = |group: &str, resource: &str| {
        let rules = cluster["rules"].as_array().expect("rules").iter();
        let is_it =
            |rule: &&Value| rule["resources"] == json!([resource]) && rule["apiGroups"] == json!([group]);
        rules
            .clone()
            .find(is_it)
            .map(|rule| rule["verbs"].as_array().expect("verbs").clone())
            .unwrap_or_default()
    };
    for rule in rules::FUSE_PODS {
        let found = verbs(rule.group, rule.resource);
        assert!(rule.verbs.iter().all(|verb| found.contains(&json!(verb))), "{rule}: {found:?}");
    }
    assert_eq!(verbs("", "pods"), ["list"], "no right to make pods elsewhere: {cluster}");
    for (kind, name) in
        [("Deployment", "flat-csi-example-org-controller"), ("DaemonSet", "flat-csi-example-org-node")]
    {
        let driver = &named(&objects, kind, name)["spec"]["template"]["spec"]["containers"][0];
        assert!(driver["args"].as_array().expect("args").contains(&json!(format!("--fuse-pods={NAME}"))));
        let calls = driver["volumeMounts"].to_string().contains("api-token");
        assert_eq!(calls, kind == "Deployment", "only the controller calls the API");
    }
}

/// In a chart, the driver's namespace is Helm's, and this one is made.
#[test]
fn the_chart_has_the_namespace_and_the_values_of_its_pods() {
    let driver = Driver::new("flat.csi.example.org")
        .with_controller([ControllerCapability::PublishUnpublishVolume])
        .with_node([]);
    for kind in [FusePods::PerNode, FusePods::PerVolume] {
        let mut options = options();
        options.fuse_pods = Some(kind);
        options.fuse_image = Some("registry.example.org/rclone:1".to_owned());
        options.fuse_priority_class = Some("storage".to_owned());
        let directory = tempfile::tempdir().expect("a directory");
        manifests(&driver, &options).expect("manifests").write_chart_to(directory.path()).expect("a chart");
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect(name);
        let text = read("templates/fuse.yaml");
        assert!(!directory.path().join("templates/namespace.yaml").exists());
        assert!(!read("templates/node.yaml").contains("null"), "{kind:?}");
        let values: Value = serde_saphyr::from_str(&read("values.yaml")).expect("values");
        assert_eq!(values["fuse"]["priorityClassName"], "storage", "{kind:?}");
        assert_eq!(values["node"]["priorityClassName"], "system-node-critical", "{kind:?}");
        assert_eq!(values["images"]["mounter"], "registry.example.org/rclone:1", "{kind:?}");
        for due in [
            "kind: Namespace",
            &format!("name: {NAME}"),
            "priorityClassName: {{ toJson .Values.fuse.priorityClassName }}",
            "image: {{ toJson .Values.images.driver }}",
            "image: {{ toJson .Values.images.mounter }}",
        ] {
            assert!(text.contains(due), "{kind:?}: {due}: {text}");
        }
    }
}
