//! Identifiers and names: made once at the edge, never a bare string after that.

use std::fmt;

use crate::{Error, Result};

/// The spec's limit for a string field, in bytes.
pub(crate) const STRING_MAX: usize = 128;

/// What the spec forbids in a name: control characters but for tab, line feed and carriage return.
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

/// Whether `text` is one plain component of a path: not hidden, not `..`, with no separator.
fn is_file_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']) && text.len() <= 255
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $field:literal, $max:expr, $check:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            #[doc = concat!("Takes the text if the spec allows it in a `", $field, "`.")]
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] naming the field when it is empty or too long.
            pub fn new(text: impl Into<String>) -> Result<Self> {
                Self::read($field, text.into())
            }

            pub(crate) fn read(field: &str, text: String) -> Result<Self> {
                $check(field, &text, $max)?;
                Ok(Self(text))
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<$name> for String {
            fn from(this: $name) -> String {
                this.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }
    };
}

text_type!(
    /// A volume's id, chosen by the driver: 1 to 128 bytes.
    VolumeId, "volume_id", STRING_MAX, check_text
);
text_type!(
    /// A node's id, chosen by the driver on that node: 1 to 256 bytes.
    // spec: size-limits.node-id
    NodeId, "node_id", 256, check_text
);
text_type!(
    /// A snapshot's id, chosen by the driver: 1 to 128 bytes.
    SnapshotId, "snapshot_id", STRING_MAX, check_text
);
text_type!(
    /// A group snapshot's id, chosen by the driver: 1 to 128 bytes.
    GroupSnapshotId, "group_snapshot_id", STRING_MAX, check_text
);
text_type!(
    /// The name that the orchestrator suggests for a volume, and the idempotency key of CreateVolume:
    /// 1 to 128 bytes, any Unicode but control characters.
    VolumeName, "name", STRING_MAX, check_name
);
text_type!(
    /// The name that the orchestrator suggests for a snapshot, and the idempotency key of CreateSnapshot:
    /// 1 to 128 bytes, any Unicode but control characters.
    SnapshotName, "name", STRING_MAX, check_name
);
text_type!(
    /// The name that the orchestrator suggests for a group snapshot, and its idempotency key: 1 to 128 bytes,
    /// any Unicode but control characters.
    GroupSnapshotName, "name", STRING_MAX, check_name
);
text_type!(
    /// Where a listing goes on, as the driver's last page named it. Opaque to the caller.
    Token, "starting_token", STRING_MAX, check_text
);

impl VolumeId {
    /// The id that stands for this name and is safe as a file name, for drivers whose volumes are files or
    /// directories. Equal names give equal ids, different names different ones.
    ///
    /// `/`, `%` and a leading dot are percent-encoded; everything else stays as it is.
    ///
    /// - spec: `create-volume.id-is-unique`
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming `name` when the encoded form is over 128 bytes.
    pub fn from_name(name: &VolumeName) -> Result<Self> {
        let mut id = String::with_capacity(name.as_str().len());
        for (at, character) in name.as_str().char_indices() {
            match character {
                '/' => id.push_str("%2F"),
                '%' => id.push_str("%25"),
                '.' if at == 0 => id.push_str("%2E"),
                other => id.push(other),
            }
        }
        Self::read("name", id)
    }

    /// The id as one component of a path, for joining to a directory of the driver's.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] when it could name anything but a plain entry there: `..`, a hidden entry, a
    /// path. No volume of such a driver has that id, and the code says so.
    ///
    /// ```
    /// use csi_core::VolumeId;
    /// assert_eq!(VolumeId::new("pvc-1")?.as_file_name()?, "pvc-1");
    /// assert!(VolumeId::new("../../etc")?.as_file_name().is_err());
    /// # Ok::<(), csi_core::Error>(())
    /// ```
    pub fn as_file_name(&self) -> Result<&str> {
        if is_file_name(&self.0) { Ok(&self.0) } else { Err(Error::VolumeNotFound(self.clone())) }
    }
}

impl SnapshotId {
    /// The id as one component of a path; see [`VolumeId::as_file_name`].
    ///
    /// # Errors
    /// [`Error::SnapshotNotFound`] when it could name anything but a plain entry.
    pub fn as_file_name(&self) -> Result<&str> {
        if is_file_name(&self.0) { Ok(&self.0) } else { Err(Error::SnapshotNotFound(self.clone())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: size-limits.string, size-limits.node-id
    #[test]
    fn limits_are_in_bytes_and_exact() {
        assert!(VolumeId::new("é".repeat(64)).is_ok());
        let error = VolumeId::new("é".repeat(64) + "x").unwrap_err().to_string();
        assert_eq!(error, "volume_id: is 129 bytes, the limit is 128");
        assert!(NodeId::new("n".repeat(256)).is_ok());
        assert!(NodeId::new("n".repeat(257)).is_err());
        assert!(VolumeId::new("").is_err());
    }

    // spec: fields.names
    #[test]
    fn names_refuse_control_characters_only() {
        for bad in ["\0", "\u{8}", "\u{b}", "\u{c}", "\u{e}", "\u{1f}", "\u{7f}", "\u{9f}"] {
            let error = VolumeName::new(format!("a{bad}")).unwrap_err().to_string();
            assert!(error.starts_with("name: holds U+"), "{error}");
        }
        for good in ["\t", "\n", "\r", " ", "ü", "名前", "\u{a0}", "👾"] {
            assert!(VolumeName::new(good).is_ok(), "{good:?}");
        }
    }

    // spec: create-volume.id-is-unique
    #[test]
    fn an_id_from_a_name_is_a_file_name_and_tells_names_apart() {
        let names = ["a", "a/b", "a%2Fb", ".", "..", ".hidden", "%2E", "名前", "a.b"];
        let ids: Vec<VolumeId> =
            names.iter().map(|name| VolumeId::from_name(&VolumeName::new(*name).unwrap()).unwrap()).collect();
        for (at, id) in ids.iter().enumerate() {
            assert!(id.as_file_name().is_ok(), "{id}");
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
