//! What the Prometheus operator reads: the Service of the metrics, a ServiceMonitor, and alerts.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use crate::error::Error;
use crate::files::{Document, Files};
use crate::plan::{Plan, labels};
use crate::pods::{METRICS_PORT, port_name};

const FILE: &str = "monitoring.yaml";
const API: &str = "monitoring.coreos.com/v1";
const ALERTS: &str = include_str!("../docs/alerts.yaml");
/// How the alerts select the driver among all that Prometheus reads.
const ANY_JOB: &str = r#"job=~".*csi.*""#;

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    if !plan.options.service_monitor {
        return Ok(());
    }
    let name = format!("{}-metrics", plan.name);
    let mut own_labels = labels(plan, None);
    own_labels.insert("app.kubernetes.io/component".to_owned(), "metrics".to_owned());
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(plan.options.namespace.clone()),
        labels: Some(own_labels.clone()),
        ..ObjectMeta::default()
    };
    let driver = plan.probes_by_http().then_some((METRICS_PORT, plan.options.port));
    let sidecars = plan.sidecars().into_iter().map(|sidecar| (port_name(sidecar), sidecar.port(plan)));
    let ports: Vec<(&str, u16)> = driver.into_iter().chain(sidecars).collect();
    let service_port = |(name, number): &(&str, u16)| ServicePort {
        name: Some((*name).to_owned()),
        port: (*number).into(),
        // By name: a pod without this port is then no target of it.
        target_port: Some(IntOrString::String((*name).to_owned())),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        ports: Some(ports.iter().map(service_port).collect()),
        selector: Some(labels(plan, None)),
        ..ServiceSpec::default()
    };
    let service = Service { metadata: metadata.clone(), spec: Some(spec), ..Service::default() };
    files.add(FILE, Vec::new(), &service)?;
    let endpoints: Vec<Value> = ports.iter().map(|(name, _)| json!({ "port": name })).collect();
    let monitor = json!({
        "apiVersion": API,
        "kind": "ServiceMonitor",
        "metadata": metadata,
        "spec": { "endpoints": endpoints, "selector": { "matchLabels": own_labels } },
    });
    files.add_as("ServiceMonitor", FILE, Vec::new(), &monitor)?;
    if plan.options.prometheus_rule {
        let kind = "PrometheusRule";
        let object = json!({ "apiVersion": API, "kind": kind, "metadata": metadata });
        let job = format!(r#"job="{name}",endpoint="{METRICS_PORT}""#);
        let groups: String =
            ALERTS.replace(ANY_JOB, &job).lines().map(|line| format!("  {line}\n")).collect();
        let tail = format!("spec:\n{groups}");
        files.push(FILE, Document { tail, ..Document::new(kind, &[], &object)? });
    }
    Ok(())
}
