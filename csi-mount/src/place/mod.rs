//! Where something is mounted, and whose place it is.

pub(crate) mod nesting;
pub(crate) mod on_device;
pub(crate) mod other_namespaces;
pub(crate) mod owner;
pub(crate) mod protected;
pub(crate) mod root;
pub(crate) mod small_file;
pub(crate) mod state;
pub(crate) mod target;
pub(crate) mod turn;
