//! What the toolkit costs, beside what a user would pick instead.
//!
//! A [`Subject`] is one thing that is done, at one or several sizes of the work. Its [`Contestant`]s do it in their own
//! ways: this toolkit, the bare system calls in the same process, programs of util-linux, other crates. An [`Engine`]
//! measures them. There are three, over the same subjects:
//!
//! | engine | used by | how |
//! |---|---|---|
//! | [`Interleaved`] | `cargo xtask bench` | all contestants of a subject take turns, in random order, in short rounds |
//! | Criterion | `cargo bench -p benches` | one contestant after the other, each for seconds |
//! | [`Once`] | `tests/root_smoke.rs`, in the gate | each once, so that they keep working |
//!
//! The ratios of the documents come from the first. Two medians that were taken seconds apart compare the machine with
//! itself as much as the contestants with each other; two rounds that are neighbours met the same machine, so the ratio
//! is taken within the round and the median afterwards. Criterion is for looking at one contestant closely: its outliers,
//! its history.
//!
//! Everything happens in a mount namespace of the process's own ([`enter_namespace`]) and on a tmpfs of the subject's own
//! ([`Place`]), and is gone with it.

mod contest;
pub mod counted;
mod engine;
pub mod footprint;
mod place;
mod rpc;
mod subject;
mod subjects;

pub use contest::{Contestant, Kind, each, looped, program};
pub use engine::{Engine, Interleaved, Limits, Once, Taken};
pub use place::{Image, Place, enter_namespace};
pub use subject::{Bench, Subject};
pub use subjects::ALL;
