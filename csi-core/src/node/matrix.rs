//! The spec's answer when a published volume is published again, for every access mode.
//! `SINGLE_NODE_WRITER` is like `MULTI_NODE_*` if the driver does not offer SINGLE_NODE_MULTI_WRITER: see
//! [`SingleNodeWriter`].
//!
//! | mode | same target, same arguments | same target, other arguments | another target |
//! |---|---|---|---|
//! | `MULTI_NODE_*`, `SINGLE_NODE_MULTI_WRITER` | OK | ALREADY_EXISTS | OK |
//! | all others | OK | ALREADY_EXISTS | FAILED_PRECONDITION |

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::types::{AccessMode, VolumeId};

/// Where on this node a volume that is to be published is already published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PublishedTargets {
    /// What is at the request's target path.
    pub at_target: AtTarget,
    /// The volume's other targets. They can stay empty if the volume is at this target.
    pub elsewhere: Vec<PathBuf>,
}

/// What is at a request's target path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AtTarget {
    /// Nothing.
    #[default]
    Nothing,
    /// The volume, with no known difference from the request. It is published again, so that its content
    /// can be updated.
    Same,
    /// Something else, or the volume with a difference from the request; the text names the difference.
    Other(String),
}

/// How many targets on one node SINGLE_NODE_WRITER allows.
///
/// The spec allows one target. Orchestrators distinguish the modes only if the driver offers
/// SINGLE_NODE_MULTI_WRITER: then the kubelet sends SINGLE_NODE_MULTI_WRITER for ReadWriteOnce, and
/// SINGLE_NODE_SINGLE_WRITER for ReadWriteOncePod. Without that capability it sends SINGLE_NODE_WRITER for
/// ReadWriteOnce and publishes the volume to every pod of the node that uses it. To refuse the second
/// target would then break pods that work today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SingleNodeWriter {
    /// One target per node, as the spec says: the driver offers SINGLE_NODE_MULTI_WRITER.
    OneTarget,
    /// Any number of targets: the driver does not offer SINGLE_NODE_MULTI_WRITER.
    ManyTargets,
}

impl AccessMode {
    /// Whether a node can have a volume of this mode at several targets at once.
    pub(crate) fn allows_many_targets(self, single_node_writer: SingleNodeWriter) -> bool {
        match self {
            Self::MultiNodeReaderOnly
            | Self::MultiNodeSingleWriter
            | Self::MultiNodeMultiWriter
            | Self::SingleNodeMultiWriter => true,
            Self::SingleNodeWriter => single_node_writer == SingleNodeWriter::ManyTargets,
            Self::SingleNodeReaderOnly | Self::SingleNodeSingleWriter => false,
        }
    }
}

impl PublishedTargets {
    /// Creates what is at the request's target, and the volume's other targets.
    pub fn new(at_target: AtTarget, elsewhere: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { at_target, elsewhere: elsewhere.into_iter().collect() }
    }

    /// Checks a publish in this mode against the targets, as the spec requires.
    ///
    /// - spec: `node-publish-volume.repeated-is-ok`, `node-publish-volume.differs-is-already-exists`
    /// - spec: `node-publish-volume.second-target`
    ///
    /// # Errors
    /// [`Error::Incompatible`] (ALREADY_EXISTS) when something else is at the target; [`Error::InUse`]
    /// (FAILED_PRECONDITION) when the mode does not allow another target.
    pub(crate) fn check(&self, mode: AccessMode, single_node_writer: SingleNodeWriter) -> Result<()> {
        match (&self.at_target, self.elsewhere.first()) {
            (AtTarget::Other(difference), _) => {
                Err(Error::Incompatible(format!("target_path: {difference}").into()))
            }
            (AtTarget::Nothing, Some(other)) if !mode.allows_many_targets(single_node_writer) => {
                Err(Error::InUse(format!(
                    "target_path: the volume is published at {} on this node, and {mode} allows one target",
                    other.display()
                ).into()))
            }
            _ => Ok(()),
        }
    }
}

/// The volumes that are being published in a mode that allows one target.
///
/// Publishes of a volume to two targets run in parallel, and both could find that the volume is published
/// nowhere. If the mode allows one target, the second publish is therefore refused while the first runs
/// (ABORTED).
#[derive(Debug, Default)]
pub(crate) struct OneAtATime(Mutex<BTreeSet<VolumeId>>);

impl OneAtATime {
    pub(super) fn enter(&self, volume_id: &VolumeId) -> Result<Entered<'_>> {
        if self.volumes().insert(volume_id.clone()) {
            Ok(Entered { volumes: self, volume_id: volume_id.clone() })
        } else {
            Err(Error::Pending(format!(
                "volume {volume_id}: is being published at another target, and its mode allows one; try again"
            ).into()))
        }
    }

    /// Each statement leaves the set consistent, so a panic elsewhere does not damage it and the poison is
    /// ignored.
    fn volumes(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permission to publish the volume. Dropping it, at the end or in a panic, lets the next publish start.
pub(super) struct Entered<'a> {
    volumes: &'a OneAtATime,
    volume_id: VolumeId,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.volumes.volumes().remove(&self.volume_id);
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::Rpc;

    use super::*;
    use tonic::Code;

    /// Every cell of the matrix, written out: the mode, then the codes of its row with
    /// SINGLE_NODE_MULTI_WRITER and without.
    // spec: node-publish-volume.repeated-is-ok, node-publish-volume.differs-is-already-exists
    // spec: node-publish-volume.second-target
    #[test]
    fn every_cell_for_every_mode() {
        use AccessMode::*;
        use Code::{AlreadyExists as Differs, FailedPrecondition as Refused, Ok as Good};
        let one_target = [Good, Differs, Refused];
        let many_targets = [Good, Differs, Good];
        let rows = [
            (SingleNodeWriter, one_target, many_targets),
            (SingleNodeReaderOnly, one_target, one_target),
            (MultiNodeReaderOnly, many_targets, many_targets),
            (MultiNodeSingleWriter, many_targets, many_targets),
            (MultiNodeMultiWriter, many_targets, many_targets),
            (SingleNodeSingleWriter, one_target, one_target),
            (SingleNodeMultiWriter, many_targets, many_targets),
        ];
        assert_eq!(rows.map(|(mode, ..)| mode), AccessMode::ALL);
        let elsewhere = vec![PathBuf::from("/elsewhere")];
        let columns = [
            PublishedTargets { at_target: AtTarget::Same, elsewhere: elsewhere.clone() },
            PublishedTargets {
                at_target: AtTarget::Other("it differs".into()),
                elsewhere: elsewhere.clone(),
            },
            PublishedTargets { at_target: AtTarget::Nothing, elsewhere },
        ];
        let mut cells = 0;
        for (mode, declared, not_declared) in rows {
            for (rule, codes) in [
                (super::SingleNodeWriter::OneTarget, declared),
                (super::SingleNodeWriter::ManyTargets, not_declared),
            ] {
                for (found, due) in columns.iter().zip(codes) {
                    let code = found
                        .check(mode, rule)
                        .map_or_else(|error| error.code(Rpc::NodePublishVolume), |()| Good);
                    assert_eq!(code, due, "{mode}, {rule:?}, {found:?}");
                    cells += 1;
                }
                assert!(PublishedTargets::default().check(mode, rule).is_ok(), "the first publish");
            }
        }
        assert_eq!(cells, 7 * 3 * 2);
    }
}
