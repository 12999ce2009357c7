//! What is reported about thin pools.

use crate::lvm::report::{Kind, PoolFacts, Report};

/// The state of a thin pool.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LvmPool {
    /// The name of its logical volume.
    pub name: String,
    /// Its size for data in bytes.
    pub bytes: u64,
    /// The sizes of all its volumes and snapshots together, in bytes: also of those of others.
    pub promised: u64,
    /// How much of its data is in use; none while it is not active.
    pub data_percent: Option<f64>,
    /// How much of its metadata is in use; none while it is not active.
    pub metadata_percent: Option<f64>,
    /// What happens to a write that needs space when the pool is full.
    pub when_full: LvmWhenFull,
    /// Why it needs an administrator; none if it is well.
    pub fault: Option<String>,
}

/// What a full thin pool does with a write that needs space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LvmWhenFull {
    /// It waits for the pool to grow, for 60 seconds unless the kernel's `dm_thin_pool.no_space_timeout` is changed, and
    /// then fails.
    Wait,
    /// It fails at once.
    Fail,
}

impl Report {
    pub(super) fn pools(&self) -> Vec<LvmPool> {
        let pools = self.volumes.iter().filter_map(|found| match &found.kind {
            Kind::Pool(facts) => Some(LvmPool {
                name: found.name.clone(),
                bytes: found.bytes,
                promised: self.promised(&found.name),
                data_percent: facts.data_percent,
                metadata_percent: facts.metadata_percent,
                when_full: if facts.fails_when_full { LvmWhenFull::Fail } else { LvmWhenFull::Wait },
                fault: facts.fault(),
            }),
            _ => None,
        });
        pools.collect()
    }

    pub(super) fn promised(&self, pool: &str) -> u64 {
        let is_in_pool = |kind: &Kind| matches!(kind, Kind::Thin { pool: its, .. } if its == pool);
        self.volumes
            .iter()
            .filter(|found| is_in_pool(&found.kind))
            .fold(0, |sum, found| sum.saturating_add(found.bytes))
    }
}

/// lvm keeps the old metadata in a logical volume that this driver has not made.
const CHECK: &str =
    "its metadata needs a check: lvconvert --repair, then lvremove the copy of the old metadata";

impl PoolFacts {
    pub(super) fn fault(&self) -> Option<String> {
        let faults = [
            self.needs_check.then(|| CHECK.to_owned()),
            (!self.zeroes)
                .then(|| "it shows old data, because it does not zero new blocks: lvchange -Zy".to_owned()),
            (!self.health.is_empty()).then(|| format!("its health is {}", self.health)),
        ];
        let faults: Vec<String> = faults.into_iter().flatten().collect();
        (!faults.is_empty()).then(|| faults.join(", "))
    }
}
