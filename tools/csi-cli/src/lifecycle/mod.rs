//! A volume's life, run against a driver.
//!
//! [`run`] takes volumes from their creation to their deletion, makes each call twice, and prints one line per
//! step. After a failure it undoes all steps.
//!
//! ```no_run
//! use csi_cli::lifecycle::{Content, Options, VolumeSpec, run};
//! use csi_proto::client::Client;
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(&"unix:///run/csi/csi.sock".parse()?);
//! let volume = VolumeSpec::new("pvc-1", Content::Files, 1 << 30, 2 << 30).fs_type("ext4");
//! run(&Options::new(client).places("/mnt/staging", "/mnt/pods").volume(volume)).await?;
//! # Ok(()) }
//! ```

mod copies;
mod discovery;
mod driver;
mod expand;
mod options;
mod report;
mod scenario;
mod signals;
mod steps;
mod target;
mod undo;
mod volume_spec;

pub use options::Options;
pub use scenario::run;
pub use steps::Failure;
pub use target::Content;
pub use volume_spec::VolumeSpec;

/// What the example `quickstart` shares with the program.
#[doc(hidden)]
pub mod internal {
    pub use super::report::{Report, Timing};
    pub use super::scenario::run_recorded;
    pub use super::signals::{Signal, Signals};
    pub use super::steps::Outcome;
    pub use super::undo::UndoLog;
    pub use super::volume_spec::Keep;
}

#[cfg(feature = "program")]
pub(crate) use {
    driver::Sockets,
    report::size,
    undo::{UndoResult, quoted},
    volume_spec::{Places, TargetChecks},
};
