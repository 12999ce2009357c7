//! What may never return, done so that it can be given up.

pub(crate) mod in_flight;
pub(crate) mod patiently;
pub(crate) mod place_key;
