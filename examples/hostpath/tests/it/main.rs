//! The tests of hostpath.

mod support;

mod manifests;
mod root_capabilities;
mod root_clock;
mod root_conformance;
mod root_content;
mod root_crash;
mod root_crash_next;
mod root_damage;
mod root_flags;
mod root_inline;
mod root_metadata;
#[cfg(feature = "controllers")]
mod root_node_events;
mod root_recovery;
mod root_resources;
mod root_scale;
mod simulated;
