//! Mounts in no place that anybody sees: made ready here, put somewhere later, or gone unseen.

pub(crate) mod prepared;
pub(crate) mod scratch;
pub(crate) mod unseen;
