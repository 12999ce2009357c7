//! A driver as a process of its own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../driver/mod.rs"]
mod driver;
mod program;
#[path = "../raw/mod.rs"]
mod raw;
#[path = "../rpcs/mod.rs"]
mod rpcs;

mod canary_formats;
mod ends;
