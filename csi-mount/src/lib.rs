//! To come.
#![cfg(target_os = "linux")]

mod device_number;
mod error;

pub use device_number::DeviceNumber;
pub use error::{Error, ErrorKind, Result};
