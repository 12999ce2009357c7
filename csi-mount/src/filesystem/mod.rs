//! What is on a device, and the programs that make it, check it and let it grow.

pub(crate) mod check;
pub(crate) mod format;
pub(crate) mod grow;
pub(crate) mod kernel_features;
pub(crate) mod kind;
pub(crate) mod probe;
pub(crate) mod tool;
