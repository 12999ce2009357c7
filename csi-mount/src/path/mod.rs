//! Paths: their text, and what they lead to, looked up without asking a filesystem.

pub(crate) mod lookup;
pub(crate) mod paths;
