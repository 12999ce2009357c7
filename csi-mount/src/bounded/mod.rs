//! Queries that the kernel might never answer, made so that the caller can stop waiting.
//!
//! [`in_flight`] asks in a child process, at most one query at a time per subject, with a time limit.
//! [`allow_blocking`] lets a thread make the system calls itself instead.
//!
//! Imports from `sys` and `error` only.

pub(crate) mod allow_blocking;
pub(crate) mod in_flight;
