//! `CSI_ENDPOINT`: where the orchestrator expects the plugin's socket.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const VARIABLE: &str = "CSI_ENDPOINT";
/// The longest path in a `sockaddr_un`, without its closing NUL (unix(7)).
const PATH_MAX: usize = 107;

/// A unix socket's path, in the form of `CSI_ENDPOINT`: `unix:///run/csi/csi.sock`, or the bare path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl Endpoint {
    /// Reads the endpoint from the environment.
    ///
    /// - spec: `endpoint.from-environment`
    ///
    /// # Errors
    /// [`EndpointError`] when `CSI_ENDPOINT` is not set or is not a unix socket.
    pub fn from_env() -> Result<Self, EndpointError> {
        match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse(),
            Err(std::env::VarError::NotUnicode(_)) => Err(refuse("is not UTF-8")),
            _ => Err(refuse("is not set")),
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    // spec: endpoint.unix-socket
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = match text.split_once("://") {
            Some(("unix", path)) => path,
            Some((scheme, _)) => {
                return Err(refuse(&format!("is {text:?}: {scheme} is not served, only unix sockets are")));
            }
            None => text.strip_prefix("unix:").unwrap_or(text),
        };
        if !path.starts_with('/') {
            return Err(refuse(&format!("is {text:?}: {path:?} is not an absolute path")));
        }
        if path.ends_with('/') || path.contains('\0') {
            return Err(refuse(&format!("is {text:?}: that can't be a socket's path")));
        }
        if path.len() > PATH_MAX {
            let length = path.len();
            return Err(refuse(&format!(
                "has a path of {length} bytes, a unix socket's is at most {PATH_MAX}"
            )));
        }
        Ok(Self(PathBuf::from(path)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

/// The endpoint is missing, or not a unix socket. The text says what is wrong and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointError(String);

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for EndpointError {}

fn refuse(what: &str) -> EndpointError {
    EndpointError(format!(
        "{VARIABLE} {what}; set it to the plugin's socket, for example unix:///run/csi/csi.sock"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: endpoint.unix-socket
    #[test]
    fn takes_unix_urls_and_bare_paths() {
        for text in ["unix:///run/csi.sock", "/run/csi.sock", "unix:/run/csi.sock"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().path(), Path::new("/run/csi.sock"), "{text}");
        }
    }

    // spec: endpoint.unix-socket
    #[test]
    fn refuses_everything_else_by_name_and_with_how_to_fix_it() {
        for bad in
            ["tcp://127.0.0.1:1", "http:///x", "unix://relative.sock", "csi.sock", "unix:///", "unix:///a\0b"]
        {
            let error = bad.parse::<Endpoint>().unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("CSI_ENDPOINT is ") && text.contains("unix:///run/csi"), "{text}");
        }
        assert!(format!("/{}", "x".repeat(PATH_MAX - 1)).parse::<Endpoint>().is_ok());
        assert!(format!("/{}", "x".repeat(PATH_MAX)).parse::<Endpoint>().is_err());
    }
}
