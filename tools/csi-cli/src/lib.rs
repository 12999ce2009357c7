//! `csi`, a command-line client for any CSI driver, and the volume's life that it runs.
//!
//! | module | holds |
//! |---|---|
//! | [`lifecycle`] | a volume's life against a driver, step by step, also for other programs |
//! | `program` | the program: its command line, its commands, its exit status |
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `program` | yes | the program `csi`; without it the library needs neither a parser of command lines nor reflection |

#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(target_os = "linux"))))]
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod lifecycle;
#[cfg(feature = "program")]
pub mod program;
mod secrets;

/// The examples in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
