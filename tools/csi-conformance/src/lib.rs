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
//! Each test has a [`Level`]. A MUST of the spec that the driver breaks fails the run. A SHOULD and good practice
//! are shown and counted apart, and fail the run only with [`Kit::strict`].
//!
//! The kit asks the driver for its capabilities and runs the tests that apply. The [`Report`] also lists the
//! tests that do not apply, with the reason. A failure shows the request, the answer and the expected answer,
//! and names the rule. Everything that a test creates is undone when the test ends, however it ends.
//! [`Kit::journal`] and [`Kit::clean_up`] clean up after runs that were killed.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `program` | yes | the program |
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(unix))))]
#![forbid(unsafe_code)]
#![cfg(unix)]

mod clean_up;
mod content;
mod context;
mod discovery;
mod failure;
mod hidden;
mod journal;
mod judge;
mod kit;
mod ledger;
mod life;
mod needs;
mod offers;
mod own_mount;
mod report;
mod retries;
mod run;
mod settings;
mod sources;
mod suite;
mod test;
mod trace;
mod wire;

pub use failure::Failure;
pub use kit::Kit;
pub use report::{Entry, Report, Verdict};
pub use run::{CouldNotRun, Progress};
pub use settings::MountAccess;
pub use test::{Level, Test};

pub use csi_proto::{Endpoint, Pairs};

/// The examples in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
