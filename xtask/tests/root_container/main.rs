//! The images of the examples, run by `runc` as a kubelet's runtime runs a node plugin: privileged, with a
//! read-only root, a process and a mount namespace of its own, and the kubelet's directory with
//! `Bidirectional` propagation. Every test plays the kubelet on a node of its own.
//!
//! `cargo xtask container` builds the images and runs this. Needs root.

mod block;
mod container;
mod directories;
mod fuse;
mod life;
mod node;
mod volume;
