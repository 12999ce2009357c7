//! Questions that the kernel may never answer, asked so that they can be given up.
//!
//! [`in_flight`] asks in a child process, at most one question at a time for each subject, and gives up after a limit.
//! [`allow_blocking`] lets a thread call the kernel itself instead.
//!
//! Imports from `sys` and `error` only.

pub(crate) mod allow_blocking;
pub(crate) mod in_flight;
pub(crate) mod place_key;
