//! What a call gets from the framework, whatever the driver does.

#[path = "../common/mod.rs"]
mod common;
#[path = "../driver/mod.rs"]
mod driver;
#[path = "../log/mod.rs"]
mod log;
#[path = "../rpcs/mod.rs"]
mod rpcs;

mod admission;
mod answers;
mod bad_input;
mod contradictions;
mod every_field;
mod lenient;
mod limited_directories;
mod metadata_streams;
mod needs_capability;
mod older_callers;
mod overridden;
mod pages;
mod path_gate;
mod service;
mod traps;
