//! Tests any CSI driver on a socket, in whatever language it is written.
//!
//! In a driver's own tests:
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kit = csi_conformance::Kit::new("unix:///run/csi/csi.sock".parse()?);
//! let report = kit.staging("/var/tmp/staging").target("/var/tmp/target").run().await?;
//! report.assert_ok();
//! # Ok(()) }
//! ```
//!
//! The same as a program: `csi-conformance --endpoint unix:///run/csi/csi.sock --staging DIR --target DIR`.
//!
//! The kit asks the driver what it can do and runs what applies; what does not apply is in the [`Report`] too, with the
//! reason. A failure says what was sent, what came and what was due, and names the rule. Whatever a test makes is undone
//! when it ends, however it ends; [`Kit::journal`] and [`Kit::clean_up`] are for runs that were killed.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `program` | yes | the program |
#![forbid(unsafe_code)]
#![cfg(unix)]

mod clean_up;
mod content;
mod cx;
mod failure;
mod hidden;
mod journal;
mod judge;
mod kit;
mod ledger;
mod life;
mod meet;
mod needs;
mod offers;
mod patience;
mod report;
mod run;
mod settings;
mod soak;
mod suite;
mod test;
mod trace;
mod wire;

pub use failure::Failure;
pub use kit::Kit;
pub use report::{Entry, Report, Verdict};
pub use run::{CouldNotRun, Progress};
pub use settings::{MountAccess, Pairs};
pub use soak::{Soak, SoakReport};
pub use test::Test;

pub use csi_core::Endpoint;
