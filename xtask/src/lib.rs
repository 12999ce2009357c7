//! The code in README.md and in pages for vendors, compiled as doctests.
#![cfg(target_os = "linux")]
#![doc = include_str!("../../README.md")]

#[doc = include_str!("../../docs/first-driver.md")]
mod first_driver {}

#[doc = include_str!("../../docs/node-plugins.md")]
mod node_plugins {}
