//! To come.
#![cfg(target_os = "linux")]

mod error;

pub use error::{Error, ErrorKind, Result};
