//! Ready-made node flows: the steps of a volume on a node, without the parts that only the vendor knows.
//!
//! The flows take paths and need no orchestrator. Each step can be repeated after a crash at any point.
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

use crate::{Created, Target};

/// Removes the directory or file that a failed step has made.
fn remove_created(created: Created, target: &Target) {
    if created == Created::Created
        && let Err(left) = target.remove()
    {
        tracing::warn!(%left, "an empty target stays after a failed publish");
    }
}
