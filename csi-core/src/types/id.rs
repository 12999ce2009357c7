//! Identifiers and names: checked once when a request arrives, then never used as bare strings.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::percent;
use crate::error::{Error, Result};

pub use crate::ids::{GroupSnapshotId, Name, NodeId, SnapshotId, Token, VolumeId};

/// The spec's limit for a string field, in bytes.
pub(crate) const STRING_MAX: usize = 128;

/// Characters that the spec forbids in a name: control characters except tab, line feed and carriage
/// return.
fn forbidden_in_name(character: char) -> bool {
    matches!(character, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{9f}')
}

pub(crate) fn check_text(field: &str, text: &str, max: usize) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(field, "is required and must not be empty"));
    }
    check_size(field, text, max)
}

// spec: size-limits.string
pub(crate) fn check_size(field: &str, text: &str, max: usize) -> Result<()> {
    if text.len() > max {
        return Err(Error::invalid(field, format!("is {} bytes, the limit is {max}", text.len())));
    }
    Ok(())
}

// spec: fields.names
fn check_name(field: &str, text: &str, max: usize) -> Result<()> {
    check_text(field, text, max)?;
    match text.chars().find(|&character| forbidden_in_name(character)) {
        Some(bad) => {
            Err(Error::invalid(field, format!("holds U+{:04X}, which a name may not", u32::from(bad))))
        }
        None => Ok(()),
    }
}

/// Whether `text` is one plain path component: not hidden, not `..`, without a separator, at most 255
/// bytes.
fn is_file_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']) && text.len() <= 255
}

/// Declares how the text of each type is checked: the name of its field, the limit in bytes, the rule.
macro_rules! checked {
    ($($name:ident: $field:literal, $max:expr, $check:ident;)+) => { $(
        impl $name {
            #[doc = concat!("Takes the text if the spec allows it in a `", $field, "`.")]
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] that names the field, when the text is empty, too long or not
            /// allowed.
            pub fn new(text: impl Into<String>) -> Result<Self> {
                Self::read($field, text.into())
            }

            pub(crate) fn read(field: &str, text: String) -> Result<Self> {
                $check(field, &text, $max)?;
                Ok(Self::new_checked(text))
            }
        }

        /// Writes the text, for example into a driver's record.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        /// Reads and checks the text, as [`new`](Self::new) does.
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    )+ };
}

checked! {
    VolumeId: "volume_id", STRING_MAX, check_text;
    // spec: size-limits.node-id
    NodeId: "node_id", 256, check_text;
    SnapshotId: "snapshot_id", STRING_MAX, check_text;
    GroupSnapshotId: "group_snapshot_id", STRING_MAX, check_text;
    Name: "name", STRING_MAX, check_name;
    Token: "starting_token", STRING_MAX, check_text;
}

/// Ids that are made from the name in the create request, and used as file names.
macro_rules! file_names {
    ($($id:ident: $not_found:ident;)+) => { $(
        impl $id {
            /// Makes an id from this name that is safe as a file name, for drivers whose objects are files
            /// or directories. Equal names give equal ids, different names give different ids.
            ///
            /// `/`, `%` and a leading dot are percent-encoded; everything else stays as it is.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] that names `name`, when the encoded form exceeds 128 bytes.
            pub fn from_name(name: &Name) -> Result<Self> {
                let is_escaped =
                    |at, character| matches!(character, '/' | '%') || (at == 0 && character == '.');
                Self::read("name", percent::encode(name.as_str(), is_escaped))
            }

            /// Returns the id as one path component, to join to a directory of the driver.
            ///
            /// # Errors
            #[doc = concat!("[`Error::", stringify!($not_found), "`] when the id could name anything but a")]
            /// plain directory entry: `..`, a hidden entry, a path. No object of such a driver has that id,
            /// so NOT_FOUND is the right answer.
            ///
            /// ```
            #[doc = concat!("use csi_core::types::", stringify!($id), ";")]
            #[doc = concat!("assert_eq!(", stringify!($id), "::new(\"pvc-1\")?.as_file_name()?, \"pvc-1\");")]
            #[doc = concat!("assert!(", stringify!($id), "::new(\"../../etc\")?.as_file_name().is_err());")]
            /// # Ok::<(), csi_core::Error>(())
            /// ```
            pub fn as_file_name(&self) -> Result<&str> {
                if is_file_name(self.as_str()) {
                    Ok(self.as_str())
                } else {
                    Err(Error::$not_found(self.clone()))
                }
            }
        }
    )+ };
}

file_names! {
    VolumeId: VolumeNotFound;
    SnapshotId: SnapshotNotFound;
    GroupSnapshotId: GroupSnapshotNotFound;
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: create-volume.id-is-unique, create-snapshot.id-is-unique
    #[test]
    fn an_id_from_a_name_is_a_file_name_and_unique() {
        let names = ["a", "a/b", "a%2Fb", ".", "..", ".hidden", "%2E", "名前", "a.b"];
        let ids: Vec<VolumeId> =
            names.iter().map(|name| VolumeId::from_name(&Name::new(*name).unwrap()).unwrap()).collect();
        for (at, id) in ids.iter().enumerate() {
            assert!(id.as_file_name().is_ok(), "{id}");
            let snapshot = SnapshotId::from_name(&Name::new(names[at]).unwrap()).unwrap();
            assert_eq!(snapshot.as_file_name().unwrap(), id.as_str());
            assert!(ids[at + 1..].iter().all(|other| other != id), "{id} stands for two names");
        }
    }

    #[test]
    fn an_id_that_climbs_is_no_volume_of_ours() {
        for id in ["..", ".", "a/b", "/etc", "../x", ".git", "a\0b"] {
            let error = VolumeId::new(id).unwrap().as_file_name().unwrap_err();
            assert!(matches!(error, Error::VolumeNotFound(_)), "{id}: {error}");
        }
    }
}
