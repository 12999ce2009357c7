//! The life of a volume, played against any CSI driver: see [`lifecycle`].

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod lifecycle;
mod secrets;
