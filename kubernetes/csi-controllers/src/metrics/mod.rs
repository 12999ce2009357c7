//! The metrics that dashboards of the sidecars look for.

mod queues;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_core::internal::code_name;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use tonic::Code;

pub(crate) use self::queues::QueueMetrics;
use self::queues::Queues;

/// The seconds in the sidecars' histogram.
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// The seconds in the histograms of external-provisioner's library.
const VOLUME_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Names and values.
pub(crate) type Labels<const N: usize> = [(&'static str, String); N];

type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// A new family.
fn registered<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn histograms<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    histogram: fn() -> Histogram,
) -> Histograms<N> {
    let histograms = Family::new_with_constructor(histogram);
    registry.register(name, help, Histograms::clone(&histograms));
    histograms
}

/// Attempts: how many succeeded, how long these took, and how many failed.
#[derive(Clone)]
pub(crate) struct Attempts<const N: usize> {
    succeeded: Family<Labels<N>, Counter>,
    failed: Family<Labels<N>, Counter>,
    seconds: Histograms<N>,
}

impl<const N: usize> Attempts<N> {
    fn new(registry: &mut Registry, name: &str) -> Self {
        let took = format!("{name}_duration_seconds");
        let buckets = || Histogram::new(VOLUME_BUCKETS);
        Self {
            succeeded: registered(registry, name, "Successful attempts"),
            failed: registered(registry, &format!("{name}_failed"), "Failed attempts"),
            seconds: histograms(registry, &took, "How long successful attempts took", buckets),
        }
    }

    /// Counts an attempt that took so long, or failed.
    pub(crate) fn count(&self, labels: &Labels<N>, succeeded: Option<Duration>) {
        let Some(took) = succeeded else {
            self.failed.get_or_create(labels).inc();
            return;
        };
        self.succeeded.get_or_create(labels).inc();
        self.seconds.get_or_create(labels).observe(took.as_secs_f64());
    }
}

/// The counters of one driver. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    driver: Arc<str>,
    operations: Histograms<4>,
    leases: Family<Labels<1>, Gauge>,
    /// By `class` and `source`: the kind of it, or nothing.
    pub(crate) creations: Attempts<2>,
    /// By `class`.
    pub(crate) deletions: Attempts<1>,
    pub(crate) queues: Queues,
}

impl Metrics {
    pub(crate) fn new(driver: &str) -> Self {
        let mut registry = Registry::default();
        let seconds = "Container Storage Interface operation duration with gRPC error code status total";
        let is_leader = "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates \
                         master";
        let buckets = || Histogram::new(BUCKETS);
        Self {
            driver: driver.into(),
            operations: histograms(&mut registry, "csi_sidecar_operations_seconds", seconds, buckets),
            leases: registered(&mut registry, "leader_election_master_status", is_leader),
            creations: Attempts::new(&mut registry, "controller_persistentvolumeclaim_provision"),
            deletions: Attempts::new(&mut registry, "controller_persistentvolume_delete"),
            queues: Queues::new(&mut registry),
            registry: Arc::new(registry),
        }
    }

    /// Whether this process holds the lease.
    pub(crate) fn holds(&self, lease: &str, is_held: bool) {
        self.leases.get_or_create(&[("name", lease.to_owned())]).set(is_held.into());
    }

    /// Counts a call of the driver; `method` is its path: `/csi.v1.Controller/CreateVolume`.
    pub(crate) fn called(&self, method: &str, code: Code, took: Duration) {
        let labels = [
            ("driver_name", self.driver.to_string()),
            ("method_name", method.to_owned()),
            ("grpc_status_code", code_name(code).to_owned()),
            ("migrated", "false".to_owned()),
        ];
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn write(&self, out: &mut String) -> fmt::Result {
        self.queues.refresh();
        encode_registry(out, &self.registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_sidecars_names() {
        let metrics = Metrics::new("block.csi.example.org");
        let took = Duration::from_millis(300);
        metrics.called("/csi.v1.Controller/CreateVolume", Code::ResourceExhausted, took);
        metrics.holds("one", false);
        metrics.holds("one", true);
        let from_snapshot = [("class", "fast".to_owned()), ("source", "VolumeSnapshot".to_owned())];
        metrics.creations.count(&from_snapshot, Some(took));
        metrics.creations.count(&from_snapshot, None);
        metrics.deletions.count(&[("class", "fast".to_owned())], None);
        let mut text = String::new();
        metrics.write(&mut text).unwrap();
        let labels = r#"driver_name="block.csi.example.org",method_name="/csi.v1.Controller/CreateVolume",grpc_status_code="ResourceExhausted",migrated="false""#;
        assert!(text.contains(&format!("csi_sidecar_operations_seconds_count{{{labels}}} 1\n")), "{text}");
        let lines = [
            "leader_election_master_status{name=\"one\"} 1",
            "controller_persistentvolumeclaim_provision_total{class=\"fast\",source=\"VolumeSnapshot\"} 1",
            "controller_persistentvolumeclaim_provision_failed_total{class=\"fast\",source=\"VolumeSnapshot\"} 1",
            "controller_persistentvolumeclaim_provision_duration_seconds_sum{class=\"fast\",source=\"VolumeSnapshot\"} 0.3",
            "controller_persistentvolume_delete_failed_total{class=\"fast\"} 1",
        ];
        for line in lines {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
