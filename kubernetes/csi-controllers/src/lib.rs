//! The work of the controller's sidecars, inside the driver: [`run`] with the flags [`ControllerArgs`].
//!
//! | module | |
//! |---|---|
//! | `run`, `args` | a driver's `main`: the leases, and the parts put together |
//! | `context` | what all parts share |
//! | `provision`, `delete`, `attach`, `resize`, `modify`, `snapshot`, `capacity`, `health` | the parts: one for each job of a sidecar |
//! | `cache`, `caches`, `queue` | when a part works: objects that change, and keys that wait |
//! | `driver`, `calls`, `capability`, `metrics` | what the driver can, its calls, and the access that they ask for |
//! | `api` | requests to the API server, and changes that lose nothing of others |
//! | `objects`, `keys`, `secrets` | Kubernetes' objects, their names, and the secrets that classes name |
//! | `memory` | what this process remembers |
//! | `error` | why a step failed |
//!
//! All state is in the objects. A part's step reads an object from the cache, decides, and makes the calls and writes
//! in the sidecars' order. After a crash the next process repeats it.

mod api;
mod args;
mod attach;
mod cache;
mod caches;
mod calls;
mod capability;
mod capacity;
mod context;
mod delete;
mod driver;
mod error;
mod health;
mod keys;
mod memory;
mod metrics;
mod modify;
mod objects;
mod provision;
mod queue;
mod resize;
mod run;
mod secrets;
mod snapshot;

pub use args::ControllerArgs;
pub use run::run;

/// For the tests of this crate.
#[doc(hidden)]
pub mod internal {
    pub use crate::run::{work_alone, work_in_turn};
}
