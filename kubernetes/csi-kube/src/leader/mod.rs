//! Leader election: at most one process of a driver's controller works at a time.
//!
//! - `clock.rs`: the clock by which leadership ends, also on a machine that sleeps
//! - `timing.rs`: the three durations of an election, checked
//! - `record.rs`: the Lease as an election reads and writes it
//! - `election.rs`: the Lease, the identity and the clock of an election
//! - `candidate.rs`: waits until this process leads
//! - `leadership.rs`: what a leader holds; renewed in the background, checked before each action
//! - `layer.rs`: refuses the calls of a process that does not lead
//! - `run.rs`: a whole `main` of a driver that leads or waits

mod candidate;
mod clock;
mod election;
mod layer;
mod leadership;
mod record;
mod run;
mod timing;

pub use clock::Clock;
pub use election::Election;
pub use layer::{LeaderLayer, LeaderOnly};
pub use leadership::Leadership;
pub use timing::Timing;
