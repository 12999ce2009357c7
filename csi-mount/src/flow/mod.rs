//! Ready-made node flows: what a node does with a volume, but for what only its vendor knows.
//!
//! They need paths and no orchestrator, and each step may be repeated after a crash at any point.
//!
//! | volumes that are | |
//! |---|---|
//! | block devices | [`block`] |
//! | filesystems of a server | [`shared`] |
//! | filesystems that a program serves by FUSE | [`fuse`] |
//! | known content, in memory | [`ephemeral`] |

pub mod block;
pub mod ephemeral;
pub mod fuse;
mod lost;
pub mod shared;
