//! Places to mount on: where they are, who owns them, and what is mounted on them.
//!
//! [`Target`](target::Target) is a directory that is held open and a name in it; [`Root`](root::Root) makes
//! targets of relative paths that cannot leave it; [`Owner`](owner::Owner) names the owner of a target.
//!
//! Imports from `detached`, `path` and what is below them.

pub(crate) mod mark;
pub(crate) mod nesting;
pub(crate) mod on_device;
pub(crate) mod other_namespaces;
pub(crate) mod owned_mounts;
pub(crate) mod owned_path;
pub(crate) mod owner;
pub(crate) mod protected;
pub(crate) mod rename;
pub(crate) mod root;
pub(crate) mod target;
pub(crate) mod target_lock;
