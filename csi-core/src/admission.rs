//! Who may run beside whom: every operation claims what it touches, and owns the claim until it is done.
//!
//! An operation runs on a task of its own and that task holds the [`Permit`], so a caller that gives up ends its
//! wait and not the work. A second request that is the same, secrets aside, joins the running operation and gets
//! its answer; one that claims the same thing and is not the same is [`Error::Pending`].
//!
//! The table holds running operations only, so its size is that of the work in hand.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result, Rpc};

/// What an operation touches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A volume by the name that it is to get.
    VolumeName(String),
    /// A volume as the controller sees it.
    Volume(String),
    /// A volume and the node that it is attached to; an empty node stands for all of them.
    Attachment(String, String),
    /// A snapshot by the name that it is to get.
    SnapshotName(String),
    /// A snapshot.
    Snapshot(String),
    /// A group snapshot by the name that it is to get.
    GroupSnapshotName(String),
    /// A group snapshot.
    GroupSnapshot(String),
    /// A volume as this node sees it.
    NodeVolume(String),
    /// A path on this node that a volume is published at.
    Target(String),
}

impl Key {
    fn describe(&self) -> String {
        match self {
            Self::VolumeName(name) => format!("volume name {name}"),
            Self::Volume(id) | Self::NodeVolume(id) => format!("volume {id}"),
            Self::Attachment(id, node) => format!("volume {id} on node {node}"),
            Self::SnapshotName(name) => format!("snapshot name {name}"),
            Self::Snapshot(id) => format!("snapshot {id}"),
            Self::GroupSnapshotName(name) => format!("group snapshot name {name}"),
            Self::GroupSnapshot(id) => format!("group snapshot {id}"),
            Self::Target(path) => format!("target {path}"),
        }
    }
}

/// One thing that an operation touches, and whether others may touch it meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    key: Key,
    exclusive: bool,
}

impl Claim {
    /// Nobody else may touch it.
    pub(crate) fn alone(key: Key) -> Self {
        Self { key, exclusive: true }
    }

    /// Others may touch it, as long as nobody wants it alone.
    pub(crate) fn shared(key: Key) -> Self {
        Self { key, exclusive: false }
    }
}

/// A running operation, for those who come to join it: `identity` is its request and `outcome` where its answer
/// will be, both of types that only its own RPC knows.
pub(crate) struct Operation {
    pub(crate) rpc: Rpc,
    pub(crate) identity: Box<dyn Any + Send + Sync>,
    pub(crate) outcome: Box<dyn Any + Send + Sync>,
}

enum Holder {
    Alone(Arc<Operation>),
    Shared { count: usize, last: Arc<Operation> },
}

impl Holder {
    fn operation(&self) -> &Arc<Operation> {
        match self {
            Self::Alone(operation) | Self::Shared { last: operation, .. } => operation,
        }
    }
}

/// The operations that are running.
#[derive(Default)]
pub(crate) struct Admission {
    holders: Mutex<HashMap<Key, Holder>>,
}

/// What a request may do.
pub(crate) enum Admitted {
    /// Run: nobody is in the way.
    Run(Permit),
    /// Wait for this operation: it is the same request.
    Join(Arc<Operation>),
}

impl Admission {
    /// Claims all of `claims`, or none. `same` tells whether a running operation of the same RPC has the same
    /// request.
    pub(crate) fn admit(
        self: &Arc<Self>,
        claims: Vec<Claim>,
        operation: Operation,
        same: impl Fn(&Operation) -> bool,
    ) -> Result<Admitted> {
        let operation = Arc::new(operation);
        let mut holders = self.holders();
        for claim in &claims {
            let Some(holder) = holders.get(&claim.key) else { continue };
            if !claim.exclusive && matches!(holder, Holder::Shared { .. }) {
                continue;
            }
            let running = holder.operation();
            if running.rpc == operation.rpc && same(running) {
                return Ok(Admitted::Join(Arc::clone(running)));
            }
            return Err(Error::Pending(format!(
                "{}: {} is running on it; try again when it is done",
                claim.key.describe(),
                running.rpc,
            )));
        }
        for claim in &claims {
            let fresh = || match claim.exclusive {
                true => Holder::Alone(Arc::clone(&operation)),
                false => Holder::Shared { count: 0, last: Arc::clone(&operation) },
            };
            if let Holder::Shared { count, last } = holders.entry(claim.key.clone()).or_insert_with(fresh) {
                *count += 1;
                *last = Arc::clone(&operation);
            }
        }
        drop(holders);
        Ok(Admitted::Run(Permit { admission: Arc::clone(self), claims }))
    }

    /// How many things are claimed.
    pub(crate) fn len(&self) -> usize {
        self.holders().len()
    }

    /// The table is right after every statement that changes it, so a panic elsewhere does not spoil it.
    fn holders(&self) -> MutexGuard<'_, HashMap<Key, Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to run. Dropping it, at the end or in a panic, frees what was claimed.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    claims: Vec<Claim>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut holders = self.admission.holders();
        for claim in &self.claims {
            match holders.get_mut(&claim.key) {
                Some(Holder::Shared { count, .. }) if *count > 1 => *count -= 1,
                _ => drop(holders.remove(&claim.key)),
            }
        }
        // A burst of work must not keep its memory for good.
        if holders.is_empty() && holders.capacity() > 1024 {
            holders.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(admission: &Arc<Admission>, rpc: Rpc, claims: Vec<Claim>, id: u32) -> Result<Admitted> {
        let operation = Operation { rpc, identity: Box::new(id), outcome: Box::new(()) };
        admission.admit(claims, operation, |running| running.identity.downcast_ref() == Some(&id))
    }

    fn key(id: &str) -> Key {
        Key::NodeVolume(id.to_owned())
    }

    #[test]
    fn sharers_run_together_and_exclude_whoever_wants_it_alone() {
        let admission = Arc::new(Admission::default());
        let first = admit(&admission, Rpc::NodePublishVolume, vec![Claim::shared(key("v"))], 1).unwrap();
        let second = admit(&admission, Rpc::NodePublishVolume, vec![Claim::shared(key("v"))], 2).unwrap();
        let alone = || admit(&admission, Rpc::NodeUnstageVolume, vec![Claim::alone(key("v"))], 3);
        assert!(matches!(alone(), Err(Error::Pending(_))));
        drop(first);
        assert!(matches!(alone(), Err(Error::Pending(_))), "one sharer is left");
        drop(second);
        let third = alone().unwrap();
        assert!(matches!(
            admit(&admission, Rpc::NodePublishVolume, vec![Claim::shared(key("v"))], 1),
            Err(Error::Pending(_))
        ));
        drop(third);
        assert_eq!(admission.len(), 0);
    }

    #[test]
    fn a_refused_claim_leaves_nothing_claimed() {
        let admission = Arc::new(Admission::default());
        let held = admit(&admission, Rpc::NodeStageVolume, vec![Claim::alone(key("b"))], 1).unwrap();
        let both = vec![Claim::alone(key("a")), Claim::alone(key("b"))];
        assert!(admit(&admission, Rpc::NodeUnstageVolume, both, 2).is_err());
        assert_eq!(admission.len(), 1);
        drop(held);
        assert_eq!(admission.len(), 0);
    }

    #[test]
    fn the_same_request_joins_and_another_does_not() {
        let admission = Arc::new(Admission::default());
        let _held = admit(&admission, Rpc::NodeStageVolume, vec![Claim::alone(key("v"))], 7).unwrap();
        let again = |rpc, id| admit(&admission, rpc, vec![Claim::alone(key("v"))], id);
        assert!(matches!(again(Rpc::NodeStageVolume, 7), Ok(Admitted::Join(_))));
        assert!(matches!(again(Rpc::NodeStageVolume, 8), Err(Error::Pending(_))));
        assert!(matches!(again(Rpc::NodeUnstageVolume, 7), Err(Error::Pending(_))));
    }
}
