//! The cost of the toolkit, compared with the alternatives that a user has.
//!
//! A [`Subject`] is one kind of work, at one or several sizes. Its [`Contestant`]s do it in different ways:
//! this toolkit, the bare system calls in the same process, programs of util-linux, other crates, and
//! `k8s.io/mount-utils` of Go. An [`Engine`] measures them. There are two engines for the same subjects:
//!
//! | engine | used by | how |
//! |---|---|---|
//! | [`Interleaved`] | `cargo xtask bench` | all contestants of a subject take turns, in random order, in short rounds |
//! | [`Once`] | `tests/root_smoke.rs`, in the gate | each once, so that they keep working |
//!
//! The ratios in the documents come from [`Interleaved`]. The speed of a machine changes within seconds, so
//! medians that were measured seconds apart also compare the machine with itself. In one round all
//! contestants see the same machine. The ratio is therefore computed within each round, and then the median
//! of the ratios.
//!
//! Everything runs in a mount namespace of the process ([`enter_namespace`]) and on a tmpfs of the subject
//! ([`Place`]), and vanishes with them.

mod contest;
pub mod counted;
mod engine;
pub mod footprint;
mod mount_utils;
mod place;
mod rpc;
mod subjects;

pub use contest::{Contestant, Kind, each, looped, program};
pub use engine::{Engine, Interleaved, Limits, Once, Taken};
pub use place::{Image, Place, enter_namespace};
pub use subjects::{ALL, Bench, Subject};
