//! `csi` as a process: its commands, its output, its exit status.
#![cfg(feature = "program")]

mod capabilities;
mod completion;
mod exit_status;
mod lifecycle;
mod manifests;
mod new;
mod outside_text;
mod rpcs;
mod secrets;
mod streams;
#[path = "../support/mod.rs"]
mod support;
