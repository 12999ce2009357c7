//! Leader election: at most one process of a driver's controller works at a time.
//!
//! - `timing.rs`: the three durations of an election, checked; the clock by which leadership ends, also on a machine that
//!   sleeps
//! - `record.rs`: the Lease as an election reads and writes it
//! - `election.rs`: the Lease, the identity and the clock of an election
//! - `candidate.rs`: waits until this process leads
//! - `leadership.rs`: what a leader holds; renewed in the background, checked before each action
//! - `layer.rs`: refuses the calls of a process that does not lead, and its requests
//! - `run.rs`: a whole `main` of a driver that leads or waits

mod candidate;
mod election;
mod layer;
mod leadership;
mod record;
mod run;
mod timing;

pub use election::Election;
pub use layer::while_leading;
pub use leadership::Leadership;
pub use timing::{Clock, Timing};
