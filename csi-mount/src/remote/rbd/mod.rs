//! RBD: images of a Ceph cluster, by the kernel's client and without the program `rbd`.
//!
//! | file | has |
//! |---|---|
//! | `target.rs` | what a driver says: the image, the monitors, the user |
//! | `key.rs` | the user's key, as the kernel's keyring takes it |
//! | `mapping.rs` | the mappings that the kernel has, and which of them is the volume's |
//! | `map.rs` | the calls that can hang: map, unmap |
//! | `attach.rs` | the steps of an attach, a refresh and a detach |

mod attach;
mod key;
mod map;
mod mapping;
pub(super) mod target;
