//! The key with which a node registers.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::sys::hash::fnv1a;

/// The first 12 bits of every key of this crate.
const MARK: u64 = 0xc51;
/// The next four bits tell several keys of one generation apart.
const NUMBER_AT: u32 = 48;
const NUMBERS: u64 = 16;

/// The key with which a node registers at a device: a mark of this crate, a hash of the cluster, and a generation.
///
/// The generation grows each time that the volume is given to a node. So everybody who reads the keys of a device sees
/// which one is the newest, and a node with an older one knows that it is out. As text it has 16 digits, as `sg_persist`
/// and `nvme` print it: `c51`, a digit that tells the sessions of one node apart, four digits for the cluster, eight for
/// the generation.
///
/// ```
/// use csi_mount::reservation::ReservationKey;
///
/// let key = ReservationKey::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301", 7);
/// assert_eq!(key.to_string(), "0xc5100a0500000007");
/// assert_eq!(key, key.to_string().parse()?);
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservationKey(u64);

impl ReservationKey {
    /// The key of a generation. `cluster` is a name that no other cluster with access to the storage has, such as the UID
    /// of the namespace `kube-system`; only 16 bits of its hash are in the key.
    pub fn new(cluster: &str, generation: u32) -> Self {
        let hash = fnv1a(cluster.as_bytes());
        let hash = (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) & 0xffff;
        Self(MARK << 52 | hash << 32 | u64::from(generation))
    }

    /// Reads a registered key; `None` if it has not the mark.
    pub(super) fn of(number: u64) -> Option<Self> {
        (number >> 52 == MARK).then_some(Self(number))
    }

    /// The generation.
    pub fn generation(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }

    pub(super) fn is_of_cluster_of(self, other: Self) -> bool {
        (self.0 ^ other.0) >> 32 & 0xffff == 0
    }

    /// A key of the same generation that is none of these. They are fewer than sixteen.
    pub(super) fn none_of(self, keys: &[Self]) -> Self {
        let others = (0..NUMBERS).map(|number| Self(self.0 ^ number << NUMBER_AT));
        others.into_iter().find(|key| !keys.contains(key)).unwrap_or(self)
    }
}

impl fmt::Display for ReservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl FromStr for ReservationKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let number = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16);
        number.and_then(Self::of).ok_or_else(|| {
            let reason = format!("{text:?} is not a key: 16 hexadecimal digits that begin with c51");
            Error::new(ErrorKind::InvalidInput, "read a reservation key", reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_it_is_made_of() {
        let key = ReservationKey::new("cluster", u32::MAX);
        assert_eq!(key.generation(), u32::MAX);
        assert!(key.is_of_cluster_of(ReservationKey::new("cluster", 1)));
        assert!(!key.is_of_cluster_of(ReservationKey::new("another", u32::MAX)));
        let mut keys = Vec::new();
        for _ in 0..NUMBERS {
            let next = key.none_of(&keys);
            assert!(!keys.contains(&next) && next.generation() == u32::MAX && next.is_of_cluster_of(key));
            assert_eq!(ReservationKey::of(next.number()), Some(next));
            keys.push(next);
        }
    }

    #[test]
    fn only_a_whole_key_is_read() {
        for text in [
            "",
            "0x",
            "7",
            "0xc51000000000001",
            "0xc520000000000001",
            "c50f000000000001",
            "0xzzzz000000000001",
        ] {
            let error = text.parse::<ReservationKey>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}: {error}");
        }
        assert_eq!("c510000000000001".parse::<ReservationKey>().unwrap().generation(), 1);
    }
}
