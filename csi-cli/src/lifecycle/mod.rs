//! A volume's life, run against a driver: shared by `csi lifecycle` and the quickstart.
//!
//! [`discover`] asks a driver for its capabilities. [`run_life_cycle`] takes a volume from its creation to its
//! deletion, makes each call twice, and reports one line per step. [`UndoLog`] records the steps that have to be
//! undone, and [`undo`](UndoLog::undo) undoes them, however the run ended.
//!
//! ```no_run
//! use csi_cli::lifecycle::{
//!     Caller, Content, Places, Report, Sockets, UndoLog, VolumeSpec, discover, run_life_cycle,
//! };
//! use csi_proto::client::Client;
//! use std::time::Duration;
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let sockets = Sockets::new(Client::new(&"unix:///run/csi/csi.sock".parse()?));
//! let spec = VolumeSpec::new("pvc-1", Content::Files, 1 << 30, 2 << 30);
//! let places = Places { staging: "/mnt/staging".into(), target: "/mnt/pods".into() };
//! let (mut report, mut undo_log) = (Report::new(), UndoLog::default());
//! let mut caller = Caller::new(sockets.clone(), Duration::from_secs(60), &mut report);
//! let result = match discover(&mut caller).await {
//!     Ok(offers) => run_life_cycle(&mut caller, &offers, &spec, Some(&places), &mut undo_log).await,
//!     Err(failure) => Err(failure),
//! };
//! if let Err(failure) = result {
//!     report.failed(&failure.step, &failure.reason, &[]);
//!     undo_log.undo(&sockets).await;
//! }
//! # Ok(()) }
//! ```

mod call;
mod copies;
mod discovery;
mod expand;
mod on_node;
mod report;
mod scenario;
mod signals;
mod snapshot;
mod steps;
mod target;
mod undo;
mod volume_spec;

pub use call::{Caller, Failure, Outcome, Sockets};
pub use discovery::{Growth, Offers, discover};
pub use report::{Report, Timing, size};
pub use scenario::run_life_cycle;
pub use signals::{Caught, Signals};
pub use target::Content;
#[cfg(feature = "program")]
pub(crate) use undo::quoted;
pub use undo::{UndoLog, UndoResult};
pub use volume_spec::{ExistingVolume, Keep, Places, TargetChecks, VolumeSpec};

pub use crate::secrets::{Hidden, Secrets};
