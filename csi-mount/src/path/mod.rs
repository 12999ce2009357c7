//! Paths: checked as text, and opened without hanging.
//!
//! [`paths`] refuses a path that can never work; [`lookup`] opens one from the kernel's cache, or else in a
//! child process.
//!
//! Imports from `table` and what is below it.

pub(crate) mod lookup;
pub(crate) mod paths;
