//! This crate at work for hostpath, on an API server in memory, in paused time.

mod bed;
mod crashes;
mod driver;
mod races;
mod rules;
mod situations;
mod turns;
