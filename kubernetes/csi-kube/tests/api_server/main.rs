//! Each part of the crate against a mock of the API server, in paused time.

mod drain;
mod events;
mod fuse_pods;
mod leader_calls;
mod leader_election;
mod leader_run;
mod mock;
mod node_events;
mod node_labels;
mod objects;
mod startup_taint;
