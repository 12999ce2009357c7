//! The driver's own directory on a share, and the records in it.

use csi_core::mount::{Root, Target};
use csi_core::records::Records;
use csi_core::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};

/// The driver's own directory on a share. Nothing in it belongs to a volume.
pub(crate) const OWN: &str = ".csi-nfs";

/// The subdirectories, each with one entry per key of a volume, snapshot or place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Records of volumes.
    Volumes,
    /// Records of places: which volumes own each directory.
    Places,
    /// Records of snapshots.
    Snapshots,
    /// The content of snapshots.
    Contents,
    /// Unfinished copies.
    Unfinished,
    /// Directories of deleted volumes that are being emptied.
    Trash,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::Places => "places",
            Self::Snapshots => "snapshots",
            Self::Contents => "contents",
            Self::Unfinished => "unfinished",
            Self::Trash => "trash",
        }
    }

    /// The path of an entry, relative to the share.
    pub(crate) fn path(self, key: &str) -> String {
        format!("{OWN}/{}/{key}", self.name())
    }

    /// An entry to read or remove. It need not exist.
    pub(crate) fn at(self, root: &Root, key: &str) -> Result<Target> {
        Ok(root.target(self.path(key))?)
    }

    /// An entry to create. Creates the directory above it.
    pub(crate) fn place(self, root: &Root, key: &str) -> csi_core::mount::Result<Target> {
        // Mode 0700: users who mount the whole share must not read it.
        root.create_dirs(format!("{OWN}/{}", self.name()), 0o700)?;
        root.target(self.path(key))
    }

    /// The records of this part; `None` before the first.
    pub(crate) fn records<T>(self, root: &Root) -> Result<Option<Records<T>>> {
        let path = format!("{OWN}/{}", self.name());
        let directory = root.directory_at(&path)?;
        directory.map(|directory| Records::in_directory(directory, root.path().join(path))).transpose()
    }

    pub(crate) fn read<T: DeserializeOwned>(self, root: &Root, key: &str) -> Result<Option<T>> {
        let records = self.records(root)?;
        Ok(records.map(|records| records.get(key)).transpose()?.flatten())
    }

    pub(crate) fn write<T: Serialize>(self, root: &Root, key: &str, record: &T) -> Result<()> {
        self.place(root, "new")?;
        let records = self.records(root)?.ok_or_else(|| Error::Internal(format!("{OWN} is gone").into()))?;
        records.put(key, record)
    }

    /// Removes a record, and what killed processes have not finished to write, on this node or another.
    pub(crate) fn remove(self, root: &Root, key: &str) -> Result<()> {
        let Some(records) = self.records::<()>(root)? else { return Ok(()) };
        records.remove(key)?;
        records.remove_unfinished()
    }
}

/// The longest name, in bytes, that is used as a key unchanged.
const LONGEST: usize = 48;

/// Turns the name of a volume or snapshot into a file name that is short enough to be part of an id. A plain,
/// short name is its own key.
///
/// A longer name is replaced by a 128-bit hash. Records hold the full name, so that a collision is noticed.
pub(crate) fn key(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=LONGEST).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.') {
        return name.to_owned();
    }
    format!("~{:032x}", fnv(name.as_bytes()))
}

/// Whether the text is a valid key. An id in a request can hold anything.
pub(crate) fn is_key(text: &str) -> bool {
    let hash = text.strip_prefix('~').unwrap_or_default();
    key(text) == text || hash.len() == 32 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// FNV-1a of 128 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn fnv(bytes: &[u8]) -> u128 {
    let basis = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let prime = 0x0000_0000_0100_0000_0000_0000_0000_013b_u128;
    bytes.iter().fold(basis, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(prime))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_can_be_keys_are() {
        for name in ["pvc-8f7c1a52-0000-4000-8000-123456789abc", "a", "A_b.c"] {
            assert_eq!(key(name), name);
        }
        for name in ["", ".", "..", ".hidden", "a/b", "ü", "a b", "~a", &"x".repeat(49)] {
            assert!(key(name).starts_with('~'), "{name}");
        }
        // A published test vector of FNV-1a.
        assert_eq!(fnv(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    proptest! {
        #[test]
        fn keys_are_file_names_and_differ_by_each_character(name in ".{0,130}", more in ".") {
            let key = key(&name);
            prop_assert!(is_key(&key), "{key}");
            prop_assert!(!key.is_empty() && key.len() <= LONGEST && !key.starts_with('.'));
            prop_assert!(!key.contains(['/', '\0', ':', '%']));
            prop_assert_ne!(super::key(&format!("{name}{more}")), key);
        }
    }
}
