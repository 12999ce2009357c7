//! A volume's life, run against a driver: shared by `csi lifecycle` and the quickstart.
//!
//! [`meet`] asks a driver for its capabilities. [`play`] takes a volume from its creation to its deletion,
//! makes each call twice, and reports one line per step. [`Begun`] records at any time what has to be undone,
//! and [`undo`](Begun::undo) does that, however the play ended.
//!
//! ```no_run
//! use csi_cli::lifecycle::{Begun, Caller, Content, Places, Report, Sockets, Wanted, meet, play};
//! use csi_proto::client::Client;
//! use std::time::Duration;
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let sockets = Sockets::new(Client::new(&"unix:///run/csi/csi.sock".parse()?));
//! let wanted = Wanted::new("pvc-1", Content::Files, 1 << 30, 2 << 30);
//! let places = Places { staging: "/mnt/staging".into(), target: "/mnt/pods".into() };
//! let (mut report, mut begun) = (Report::new(), Begun::default());
//! let mut caller = Caller::new(sockets.clone(), Duration::from_secs(60), &mut report);
//! let played = match meet(&mut caller).await {
//!     Ok(offers) => play(&mut caller, &offers, &wanted, Some(&places), &mut begun).await,
//!     Err(failure) => Err(failure),
//! };
//! if let Err(failure) = played {
//!     report.failed(&failure.step, &failure.reason, &[]);
//!     begun.undo(&sockets).await;
//! }
//! # Ok(()) }
//! ```

mod begun;
mod call;
mod expand;
mod introductions;
mod on_node;
mod report;
mod scenario;
mod signals;
mod snapshot;
mod target;
mod wanted;

#[cfg(feature = "program")]
pub(crate) use begun::quoted;
pub use begun::{Begun, Undone};
pub use call::{Caller, Failure, Outcome, Sockets};
pub use introductions::{Growth, Offers, meet};
pub use report::{Report, Timing, size};
pub use scenario::play;
pub use signals::{Caught, Signals};
pub use target::Content;
pub use wanted::{Keep, Looks, Places, Premade, Wanted};

pub use crate::secrets::{Hidden, Secrets};
