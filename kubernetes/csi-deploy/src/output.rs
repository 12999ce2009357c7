//! Where the manifests go, as flags.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::error::Error;
use crate::manifests::Manifests;

/// The flags for where the manifests go, in addition to [`Options`](crate::Options).
#[derive(Debug, Clone, clap::Args)]
#[command(about = None, long_about = None)]
#[group(required = true, multiple = false)]
pub struct Output {
    /// Write a kustomize base into this directory, for `kubectl apply -k DIR`
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    to: Option<PathBuf>,

    /// Write a Helm chart into this directory, for `helm install NAME DIR`; DIR/values.yaml has its values. A chart
    /// of the same driver in it is replaced; another directory with files is refused
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    chart: Option<PathBuf>,

    /// Write the description of the driver for the External Storage suite of Kubernetes' end-to-end tests, for
    /// `e2e.test -storage.testdriver=FILE`, and no manifests
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    e2e_testdriver: Option<PathBuf>,

    /// Print all objects as one text, for `kubectl apply -f -`
    #[arg(long, help_heading = "Output")]
    single: bool,
}

const CHART_NOTE: &str = "the chart has no Namespace: create it with the label \
                          pod-security.kubernetes.io/enforce=privileged, which the node's pods need";

impl Output {
    /// Writes what the flag asks for to its place, or the manifests to `stdout` as one text. The notes on manifests
    /// go to `notes`, one line each.
    ///
    /// # Errors
    /// [`Error::Io`] with the path that can't be written, and [`Error::Invalid`] for a directory that a chart
    /// would not replace.
    pub fn write(
        &self,
        manifests: &Manifests,
        stdout: &mut dyn Write,
        notes: &mut dyn Write,
    ) -> Result<(), Error> {
        let failed = |path: &str| {
            let path = PathBuf::from(path);
            |source: io::Error| Error::Io { path, source }
        };
        if let Some(directory) = &self.to {
            manifests.write_to(directory)?;
        } else if let Some(directory) = &self.chart {
            manifests.write_chart_to(directory)?;
        } else if let Some(file) = &self.e2e_testdriver {
            return fs::write(file, manifests.e2e_testdriver())
                .map_err(|source| Error::Io { path: file.clone(), source });
        } else {
            stdout
                .write_all(manifests.single().as_bytes())
                .and_then(|()| stdout.flush())
                .map_err(failed("standard output"))?;
        }
        let namespace = self.chart.as_ref().map(|_| CHART_NOTE.to_owned());
        for note in manifests.notes().iter().chain(&namespace) {
            writeln!(notes, "note: {note}").map_err(failed("standard error"))?;
        }
        Ok(())
    }
}
