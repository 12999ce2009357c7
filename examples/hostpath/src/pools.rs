//! Pools: an amount of space at a place, from which volumes and snapshots take their sizes.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi_core::kubernetes::Quantity;
use csi_core::types::{Place, Topology};
use csi_core::{Error, Result};

use crate::args::pair;

/// A pool as a flag defines it: `NAME=SIZE[,KEY=VALUE]…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolArg {
    /// The name that the StorageClass's parameter refers to.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its topology segments, with keys without prefix. An empty list means no particular place.
    pub topology: Vec<(String, String)>,
}

impl FromStr for PoolArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let (name, size) = pair(parts.next().unwrap_or_default())?;
        let bytes = size.parse::<Quantity>().map_err(|error| error.to_string())?.bytes();
        Ok(Self { name, bytes, topology: parts.map(pair).collect::<Result<_, _>>()? })
    }
}

/// A pool.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The topologies whose nodes can use its volumes, any of these. An empty list means everywhere.
    pub(crate) places: Vec<Topology>,
}

/// All pools, and how much of each is taken.
#[derive(Debug, Clone)]
pub(crate) struct Pools {
    pools: Arc<[Pool]>,
    reserved: Arc<Mutex<HashMap<String, u64>>>,
}

/// Reserved space in a pool. Dropping it returns the space, unless it was kept.
#[derive(Debug)]
pub(crate) struct Reservation {
    pools: Pools,
    pool: String,
    bytes: u64,
}

impl Pools {
    pub(crate) fn new(pools: Vec<Pool>) -> Self {
        Self { pools: pools.into(), reserved: Arc::default() }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// All topologies of the pools.
    pub(crate) fn topologies(&self) -> Vec<Topology> {
        self.pools.iter().flat_map(|pool| pool.places.clone()).collect()
    }

    /// The pools as places: the pool named `only`, or all of them, with the one named `first` at the front.
    pub(crate) fn places(&self, only: Option<&str>, first: &str) -> Vec<Place<Pool>> {
        let mut pools: Vec<&Pool> =
            self.pools.iter().filter(|pool| only.is_none_or(|name| pool.name == name)).collect();
        pools.sort_by_key(|pool| pool.name != first);
        let reserved = self.reserved();
        let mut places = Vec::new();
        for pool in pools {
            let left = left(pool, &reserved);
            let everywhere = pool.places.is_empty().then(Topology::default);
            for topology in pool.places.iter().cloned().chain(everywhere) {
                places.push(Place::new(topology, pool.clone()).available_bytes(left));
            }
        }
        places
    }

    /// Takes space for an object that exists, or is known to fit.
    pub(crate) fn take(&self, pool: &str, bytes: u64) {
        *self.reserved().entry(pool.to_owned()).or_default() += bytes;
    }

    pub(crate) fn release(&self, pool: &str, bytes: u64) {
        if let Some(reserved) = self.reserved().get_mut(pool) {
            *reserved = reserved.saturating_sub(bytes);
        }
    }

    /// Reserves space in a pool.
    ///
    /// # Errors
    /// [`Error::LimitReached`] when the pool has less space left.
    pub(crate) fn reserve(&self, name: &str, bytes: u64) -> Result<Reservation> {
        let pool = self
            .get(name)
            .ok_or_else(|| Error::LimitReached(format!("pool {name} no longer exists").into()))?;
        let mut reserved = self.reserved();
        let left = left(pool, &reserved);
        if bytes > left {
            return Err(Error::LimitReached(
                format!("pool {name} has {left} bytes left, {bytes} are needed").into(),
            ));
        }
        *reserved.entry(name.to_owned()).or_default() += bytes;
        Ok(Reservation { pools: self.clone(), pool: name.to_owned(), bytes })
    }

    /// Ignores poisoning: the table is valid after every statement that changes it.
    fn reserved(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn left(pool: &Pool, reserved: &HashMap<String, u64>) -> u64 {
    pool.bytes.saturating_sub(reserved.get(&pool.name).copied().unwrap_or(0))
}

impl Reservation {
    /// Keeps the space for an object that exists now.
    pub(crate) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pools.release(&self.pool, self.bytes);
    }
}

/// The places of a pool: those that its flag names, or else each node that has the data directory.
pub(crate) fn places_of(own: &[(String, String)], nodes: &[Topology], prefix: &str) -> Vec<Topology> {
    if own.is_empty() { nodes.to_vec() } else { vec![topology(own, prefix)] }
}

/// Makes a topology of keys and values; the keys get this prefix.
pub(crate) fn topology(pairs: &[(String, String)], prefix: &str) -> Topology {
    let pairs: BTreeMap<_, _> = pairs.iter().cloned().collect();
    pairs
        .into_iter()
        .fold(Topology::default(), |place, (key, value)| place.and(format!("{prefix}/{key}"), value))
}
