//! Where the manifests go, as flags.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::{Error, Manifests};

/// The flags for where the manifests go, in addition to [`Options`](crate::Options).
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
#[non_exhaustive]
pub struct Output {
    /// Write a kustomize base into this directory, for `kubectl apply -k DIR`
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub to: Option<PathBuf>,

    /// Print all objects as one text, for `kubectl apply -f -`
    #[arg(long, help_heading = "Output")]
    pub single: bool,
}

impl Output {
    /// Writes the manifests to the directory, or to `stdout` as one text. The notes go to `notes`, one line
    /// each.
    ///
    /// # Errors
    /// [`Error::Io`] with the path that can't be written.
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
        match &self.to {
            Some(directory) => manifests.write_to(directory)?,
            None => stdout
                .write_all(manifests.single().as_bytes())
                .and_then(|()| stdout.flush())
                .map_err(failed("standard output"))?,
        }
        for note in manifests.notes() {
            writeln!(notes, "note: {note}").map_err(failed("standard error"))?;
        }
        Ok(())
    }
}
