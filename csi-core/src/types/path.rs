//! Paths in requests.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

macro_rules! path_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(PathBuf);

        impl Deref for $name {
            type Target = Path;

            fn deref(&self) -> &Path {
                &self.0
            }
        }

        impl AsRef<Path> for $name {
            fn as_ref(&self) -> &Path {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.display().fmt(f)
            }
        }
    };
}

path_type!(
    /// An absolute path without `..` and NUL. The spec's size limit for strings does not apply to paths.
    AbsolutePath
);
path_type!(
    /// A path at which the caller believes a volume to be. It can be relative, and need not exist: a path
    /// without the volume is answered with NOT_FOUND, not refused as malformed.
    VolumePath
);

// spec: size-limits.paths, node.paths-absolute
fn check(field: &str, path: &str) -> Result<()> {
    match path {
        "" => Err(Error::invalid(field, "is required and must not be empty")),
        path if path.contains('\0') => Err(Error::invalid(field, "holds a NUL byte, which a path may not")),
        _ => Ok(()),
    }
}

impl AbsolutePath {
    pub(crate) fn read(field: &str, path: String) -> Result<Self> {
        check(field, &path)?;
        let path = PathBuf::from(path);
        if !path.is_absolute() {
            return Err(Error::invalid(field, format!("is {}, must be absolute", path.display())));
        }
        if path.components().any(|component| component == std::path::Component::ParentDir) {
            return Err(Error::invalid(field, format!("is {}, must not hold ..", path.display())));
        }
        Ok(Self(path))
    }
}

impl VolumePath {
    pub(crate) fn read(field: &str, path: String) -> Result<Self> {
        check(field, &path)?;
        Ok(Self(PathBuf::from(path)))
    }
}
