//! Who may run beside whom: every operation claims what it touches, and owns the claim until it is done.
//!
//! An operation runs on a task of its own and that task holds the [`Permit`](table::Permit), so a caller that gives up ends its
//! wait and not the work. A second request that is the same, secrets aside, joins the running operation and gets
//! its answer; one that claims the same thing and is not the same is [`Error::Pending`](crate::Error::Pending).
//! `docs/admission.md` has the table of who excludes whom.
//!
//! The table holds running operations only, so its size is that of the work in hand.
//!
//! It imports the RPCs and errors. Its types are [`Admission`], [`Claim`] and [`InFlight`].

mod in_flight;
mod key;
#[cfg(test)]
mod model;
mod table;

pub(crate) use in_flight::InFlight;
pub(crate) use key::{Claim, Key};
pub(crate) use table::{Admission, Admitted};
