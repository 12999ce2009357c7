//! Which operations can run at the same time: every operation claims what it touches, and holds the claims
//! until it is done.
//!
//! An operation runs on its own task, and that task holds the [`Permit`](table::Permit). A caller that
//! gives up ends its wait, not the work. A second request that is equal apart from secrets joins the
//! running operation and gets its answer. A different request that claims the same thing is
//! [`Error::Pending`](crate::Error::Pending). `docs/admission.md` has the table of which operations exclude
//! each other.
//!
//! The table holds running operations only, so its size is proportional to their number.
//!
//! It imports the RPCs and errors. Its types are [`Admission`] and [`Claim`].

mod claims;
mod key;
#[cfg(test)]
mod model;
mod table;

pub use claims::{Claimed, Claims};
pub(crate) use key::{Claim, Key};
pub(crate) use table::{Admission, Admitted};
