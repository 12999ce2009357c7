//! The key with which a node registers.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::sys::hash::fnv1a;

/// The first 15 bits of every key of this crate.
const MARK: u64 = 0xc510;
const TOOK_OVER: u64 = 1 << 48;

/// The key with which a node registers at a device: a mark of this crate, a hash of the cluster, and a generation.
///
/// The generation grows each time that the volume is given to a node. So everybody who reads the keys of a device sees
/// which one is the newest, and a node with an older one knows that it is out. As text it has 16 digits, as `sg_persist`
/// and `nvme` print it: `c510` or `c511`, four digits for the cluster, eight for the generation. `c511` says that the node
/// took the device over from one that had not let go of it.
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
        Self(MARK << 48 | hash << 32 | u64::from(generation))
    }

    /// Reads a registered key; `None` if it has not the mark.
    pub(super) fn of(number: u64) -> Option<Self> {
        (number >> 49 == MARK >> 1).then_some(Self(number))
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

    /// Whether the node took the device over from one that had not let go of it.
    pub(super) fn took_over(self) -> bool {
        self.0 & TOOK_OVER != 0
    }

    pub(super) fn after_takeover(self) -> Self {
        Self(self.0 | TOOK_OVER)
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
            let reason = format!("{text:?} is not a key: 16 hexadecimal digits that begin with c510");
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
        assert!(!key.took_over() && key.after_takeover().took_over());
        assert!(key.is_of_cluster_of(ReservationKey::new("cluster", 1).after_takeover()));
        assert!(!key.is_of_cluster_of(ReservationKey::new("another", u32::MAX)));
        assert_eq!(ReservationKey::of(key.after_takeover().number()), Some(key.after_takeover()));
    }

    #[test]
    fn only_a_whole_key_is_read() {
        for text in [
            "",
            "0x",
            "7",
            "0xc51000000000001",
            "0xc512000000000001",
            "c50f000000000001",
            "0xzzzz000000000001",
        ] {
            let error = text.parse::<ReservationKey>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}: {error}");
        }
        assert_eq!("c510000000000001".parse::<ReservationKey>().unwrap().generation(), 1);
    }
}
