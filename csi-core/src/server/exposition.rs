//! The counters in Prometheus's text format, version 0.0.4.

use std::fmt::{self, Write};

use csi_proto::v1;
use tonic::Code;

use super::process;
use crate::Rpc;
use crate::call::metrics::{BOUNDS, Metrics};

/// The content type of the answer.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of the plugin and the process.
pub(super) fn text(metrics: &Metrics, info: &v1::GetPluginInfoResponse) -> String {
    let mut out = String::with_capacity(4096);
    write(&mut out, metrics, info).expect("a string takes whatever is written to it");
    process::write(&mut out).expect("a string takes whatever is written to it");
    out
}

fn write(out: &mut String, metrics: &Metrics, info: &v1::GetPluginInfoResponse) -> fmt::Result {
    let driver = Label(&info.name);
    let version = Label(&info.vendor_version);
    family(out, "csi_plugin_info", "gauge", "The plugin that this is.")?;
    writeln!(out, "csi_plugin_info{{driver_name=\"{driver}\",vendor_version=\"{version}\"}} 1")?;

    family(out, "csi_plugin_operations_in_flight", "gauge", "Calls that wait for their answer.")?;
    for rpc in Rpc::ALL {
        let labels = format!("driver_name=\"{driver}\",method_name=\"{}\"", method(*rpc));
        writeln!(out, "csi_plugin_operations_in_flight{{{labels}}} {}", metrics.in_flight(*rpc))?;
    }

    let name = "csi_plugin_operations_seconds";
    family(out, name, "histogram", "Seconds that calls took, by method and gRPC status code.")?;
    for (rpc, code, histogram) in metrics.histograms() {
        let method = method(rpc);
        let code = code_name(code);
        let labels = format!("driver_name=\"{driver}\",grpc_status_code=\"{code}\",method_name=\"{method}\"");
        let (counts, sum) = histogram.cumulative();
        for (bound, count) in BOUNDS.iter().zip(counts) {
            writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}")?;
        }
        let count = counts[BOUNDS.len()];
        writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
        writeln!(out, "{name}_sum{{{labels}}} {sum}")?;
        writeln!(out, "{name}_count{{{labels}}} {count}")?;
    }
    Ok(())
}

/// The header of a metric family.
pub(super) fn family(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
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

/// A label's value, escaped as the format requires.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}
