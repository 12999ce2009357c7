//! Volumes that the driver fills with files.

use super::{Kernel, VolumePlace};
use crate::Result;
use crate::flow::ephemeral::{self, Change, Content, EphemeralPlan};

/// The steps of [`flow::ephemeral`](crate::flow::ephemeral). Such a volume is unpublished as a
/// [directory](super::DirectorySteps::unpublish) is.
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait EphemeralSteps: Send + Sync {
    /// Publishes content in memory; see [`publish`](ephemeral::publish).
    fn publish(&self, target: &VolumePlace, content: &Content, plan: &EphemeralPlan) -> Result<Change>;
}

impl EphemeralSteps for Kernel {
    fn publish(&self, target: &VolumePlace, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
        ephemeral::publish(&target.target()?, content, plan)
    }
}
