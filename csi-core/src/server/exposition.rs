//! The page of metrics: the counters of calls, the process, and what the driver adds.

use std::fmt;
use std::sync::Arc;

use csi_proto::Rpc;
use tonic::Code;

use super::openmetrics::{EOF, Family};
use super::process;
use crate::call::metrics::{BOUNDS, Metrics};

/// What writes the driver's own metrics.
#[derive(Clone)]
pub(crate) struct OwnMetrics(Arc<dyn Fn(&mut String) -> fmt::Result + Send + Sync>);

impl OwnMetrics {
    pub(crate) fn new(write: impl Fn(&mut String) -> fmt::Result + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }
}

impl fmt::Debug for OwnMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnMetrics")
    }
}

/// All metrics of the plugin and the process, and the driver's own.
///
/// # Errors
/// The error of the function that writes the driver's own.
pub(super) fn text(metrics: &PluginMetrics, own: &[OwnMetrics]) -> Result<String, fmt::Error> {
    let mut out = metrics.to_string();
    process::write_metrics(&mut out)?;
    for OwnMetrics(write) in own {
        write(&mut out)?;
    }
    out += EOF;
    Ok(out)
}

/// The plugin's metrics: see [`Plugin::plugin_metrics`](crate::Plugin::plugin_metrics). `Display` writes their values at
/// that time as OpenMetrics text, without the line `# EOF`.
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

impl fmt::Display for PluginMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metrics, driver_name, vendor_version } = self;
        let driver = ("driver_name", driver_name.as_str());
        let labels = [driver, ("vendor_version", vendor_version)];
        Family::new(f, "csi_plugin_info", "gauge", "The plugin that this is.")?.sample("", &labels, 1)?;

        let name = "csi_plugin_operations_in_flight";
        let mut family = Family::new(f, name, "gauge", "Calls that wait for their answer.")?;
        for rpc in Rpc::ALL {
            let method = method(*rpc);
            family.sample("", &[driver, ("method_name", &method)], metrics.in_flight(*rpc))?;
        }

        let name = "csi_plugin_operations_seconds";
        let help = "Seconds that calls took, by method and gRPC status code.";
        let mut family = Family::new(f, name, "histogram", help)?;
        for (rpc, code, histogram) in metrics.histograms() {
            let method = method(rpc);
            let labels = [driver, ("grpc_status_code", code_name(code)), ("method_name", &method)];
            let (counts, sum) = histogram.counts();
            family.histogram(&labels, &BOUNDS, &counts, sum)?;
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
#[must_use]
pub fn code_name(code: Code) -> &'static str {
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
