//! What a call gets from the framework, whatever the driver does.

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
