//! The counters as Prometheus reads them, in the text format of OpenMetrics.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tonic::Code;

use super::process::ProcessMetrics;
use crate::Rpc;
use crate::call::metrics::{BOUNDS, Metrics};

/// The content type of the answer.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the plugin and the process, and the driver's own.
pub(super) fn text(metrics: PluginMetrics, own: Option<&Registry>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics));
    registry.register_collector(Box::new(ProcessMetrics));
    let mut out = String::with_capacity(4096);
    let mut write = || {
        encode_registry(&mut out, &registry)?;
        own.map_or(Ok(()), |own| encode_registry(&mut out, own))?;
        encode_eof(&mut out)
    };
    write().expect("a string takes whatever is written to it");
    out
}

/// The plugin's metrics, for a registry of the driver: see
/// [`Plugin::collector`](crate::Plugin::collector).
#[derive(Clone)]
pub struct PluginMetrics {
    metrics: Arc<Metrics>,
    driver_name: String,
    vendor_version: String,
}

impl PluginMetrics {
    pub(crate) fn new(metrics: Arc<Metrics>, driver_name: &str, vendor_version: &str) -> Self {
        Self { metrics, driver_name: driver_name.to_owned(), vendor_version: vendor_version.to_owned() }
    }
}

impl Collector for PluginMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let driver = ("driver_name", self.driver_name.as_str());
        let labels = [driver, ("vendor_version", &self.vendor_version)];
        encoder
            .encode_descriptor("csi_plugin_info", "The plugin that this is.", None, MetricType::Gauge)?
            .encode_family(&labels)?
            .encode_gauge(&1_i64)?;

        let name = "csi_plugin_operations_in_flight";
        let help = "Calls that wait for their answer.";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for rpc in Rpc::ALL {
            let method = method(*rpc);
            let labels = [driver, ("method_name", &method)];
            family.encode_family(&labels)?.encode_gauge(&self.metrics.in_flight(*rpc))?;
        }

        let name = "csi_plugin_operations_seconds";
        let help = "Seconds that calls took, by method and gRPC status code.";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (rpc, code, histogram) in self.metrics.histograms() {
            let method = method(rpc);
            let labels = [driver, ("grpc_status_code", code_name(code)), ("method_name", &method)];
            let (counts, sum) = histogram.counts();
            let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
            let count = counts.iter().sum();
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

impl fmt::Debug for PluginMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PluginMetrics").field(&self.driver_name).finish()
    }
}

fn method(rpc: Rpc) -> String {
    format!("/csi.v1.{}/{rpc}", rpc.service())
}

/// The names of the codes in gRPC's Go library, which dashboards look for.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_s_value_can_hold_anything() {
        let metrics = PluginMetrics::new(Arc::default(), "a.b", "1 \"x\"\n\\");
        let text = text(metrics, None);
        assert!(text.contains(r#"vendor_version="1 \"x\"\n\\"} 1"#), "{text}");
    }
}
