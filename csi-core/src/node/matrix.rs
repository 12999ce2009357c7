//! A volume that is published already, and published again: what the spec answers, for every mode.
//!
//! | mode | same target, same arguments | same target, other arguments | another target |
//! |---|---|---|---|
//! | `MULTI_NODE_*`, `SINGLE_NODE_MULTI_WRITER` | OK | ALREADY_EXISTS | OK |
//! | all others | OK | ALREADY_EXISTS | FAILED_PRECONDITION |

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Node, NodePublishVolumeRequest};
use crate::{AccessMode, Error, Result, VolumeId};

/// Where on this node a volume is published already, when it is to be published (again).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublishedTargets {
    /// What is at the target path that the request names.
    pub at_target: AtTarget,
    /// The volume's other targets. They need not be looked for when it is at this one.
    pub elsewhere: Vec<PathBuf>,
}

/// What is at a target path, to a request that names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AtTarget {
    /// Nothing.
    #[default]
    Nothing,
    /// The volume, and nothing is known in which it differs from what is asked for. It is published again, so that
    /// what is in it can be brought up to date.
    Same,
    /// Something else, or the volume otherwise than asked for; the text names the difference.
    Other(String),
}

/// What SINGLE_NODE_WRITER means on one node.
///
/// The spec allows the mode one target. Orchestrators know better only with SINGLE_NODE_MULTI_WRITER: then the
/// kubelet sends that mode for ReadWriteOnce, and SINGLE_NODE_SINGLE_WRITER for ReadWriteOncePod. Without that
/// capability it sends SINGLE_NODE_WRITER for ReadWriteOnce and publishes the volume to every pod of the node that uses
/// it, so refusing the second target would break pods that run today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SingleNodeWriter {
    /// One target a node, as the spec has it: the driver offers SINGLE_NODE_MULTI_WRITER.
    OneTarget,
    /// As many as the orchestrator wants: the driver does not.
    ManyTargets,
}

impl AccessMode {
    /// Whether a node may have a volume of this mode at several targets at once.
    pub fn allows_many_targets(self, single_node_writer: SingleNodeWriter) -> bool {
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
    /// What the spec answers to a publish of this mode.
    ///
    /// The framework asks this of what [`Node::published`] tells; a driver that judges by itself can too.
    ///
    /// ```
    /// use csi_core::{AccessMode, PublishedTargets, SingleNodeWriter};
    ///
    /// let found = PublishedTargets { elsewhere: vec!["/pods/1/volume".into()], ..Default::default() };
    /// assert!(found.check(AccessMode::MultiNodeMultiWriter, SingleNodeWriter::OneTarget).is_ok());
    /// let refused = found.check(AccessMode::SingleNodeSingleWriter, SingleNodeWriter::OneTarget).unwrap_err();
    /// assert!(refused.to_string().contains("/pods/1/volume"));
    /// ```
    ///
    /// - spec: `node-publish-volume.repeated-is-ok`, `node-publish-volume.differs-is-already-exists`
    /// - spec: `node-publish-volume.second-target`
    ///
    /// # Errors
    /// [`Error::Incompatible`] (ALREADY_EXISTS) when something else is at the target; [`Error::InUse`]
    /// (FAILED_PRECONDITION) when the mode does not allow another target.
    pub fn check(&self, mode: AccessMode, single_node_writer: SingleNodeWriter) -> Result<()> {
        match (&self.at_target, self.elsewhere.first()) {
            (AtTarget::Other(difference), _) => {
                Err(Error::Incompatible(format!("target_path: {difference}")))
            }
            (AtTarget::Nothing, Some(other)) if !mode.allows_many_targets(single_node_writer) => {
                Err(Error::InUse(format!(
                    "target_path: the volume is published at {} on this node, and {mode} allows one target",
                    other.display()
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The volumes that are being published in a mode which allows one target.
///
/// Publishes of a volume to two targets run beside each other, and both could find that it is published nowhere. Where
/// that decides, one of them has to come after the other.
#[derive(Debug, Default)]
pub(crate) struct OneAtATime(Mutex<BTreeSet<VolumeId>>);

impl OneAtATime {
    fn enter(&self, volume_id: &VolumeId) -> Result<Entered<'_>> {
        match self.volumes().insert(volume_id.clone()) {
            true => Ok(Entered { volumes: self, volume_id: volume_id.clone() }),
            false => Err(Error::Pending(format!(
                "volume {volume_id}: is being published at another target, and its mode allows one; try again"
            ))),
        }
    }

    /// The set is right after every statement that changes it, so a panic elsewhere does not spoil it.
    fn volumes(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to publish. Dropping it, at the end or in a panic, lets the next one in.
struct Entered<'a> {
    volumes: &'a OneAtATime,
    volume_id: VolumeId,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.volumes.volumes().remove(&self.volume_id);
    }
}

impl NodePublishVolumeRequest {
    /// Publishes the volume, unless what is published already forbids it.
    pub(crate) async fn answer(
        self,
        driver: &dyn Node,
        single_node_writer: SingleNodeWriter,
        one_at_a_time: &OneAtATime,
    ) -> Result<()> {
        let mode = self.volume_capability.access_mode;
        let _entered = match mode.allows_many_targets(single_node_writer) {
            true => None,
            false => Some(one_at_a_time.enter(&self.volume_id)?),
        };
        driver.published(&self).await?.check(mode, single_node_writer)?;
        driver.publish_volume(self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rpc;
    use tonic::Code;

    /// Every cell of the matrix, spelt out: mode, then the codes of its row with SINGLE_NODE_MULTI_WRITER and without.
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
