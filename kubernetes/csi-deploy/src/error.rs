//! Why no manifests were made.

use std::path::PathBuf;

/// Why no manifests were made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option, or a fact of the driver, that Kubernetes refuses or that contradicts another one.
    #[error("{field}: {reason}")]
    Invalid {
        /// The option or the fact, by the name of its flag without dashes, or `driver name`.
        field: &'static str,
        /// What is wrong with it, and how to fix it.
        reason: String,
    },
    /// An object can't be written as YAML. It would be an error of this crate.
    #[error("{kind} can't be written as YAML: {reason}")]
    Yaml {
        /// The kind of the object.
        kind: &'static str,
        /// What the serializer said.
        reason: String,
    },
    /// A file can't be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }
}
