//! RBD: images of a Ceph cluster, by the kernel's client and without the program `rbd`.
//!
//! | file | has |
//! |---|---|
//! | `target.rs` | what a driver says: the image, the monitors, the user |
//! | `key.rs` | the user's key, as the kernel's keyring takes it |
//! | `tree.rs` | the mappings that the kernel has |
//! | `decide.rs` | which of them is the volume's |
//! | `attach.rs`, `detach.rs` | the steps: map, read a new size; unmap |

pub(super) mod attach;
pub(super) mod decide;
pub(super) mod detach;
mod key;
pub(super) mod target;
pub(super) mod tree;
