//! Identifiers and names as types, so that errors can contain them.
//!
//! It imports nothing of this crate. `types/id.rs` makes the values after a check of the spec's rules.

use std::fmt;

macro_rules! text_types {
    ($($(#[$doc:meta])* $name:ident;)+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Takes a text that is known to follow the spec's rules.
            pub(crate) fn new_checked(text: String) -> Self {
                Self(text)
            }

            /// Returns the text.
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
    )+ };
}

text_types! {
    /// A volume's id, chosen by the driver: 1 to 128 bytes.
    VolumeId;
    /// A node's id, chosen by the driver on that node: 1 to 256 bytes.
    NodeId;
    /// A snapshot's id, chosen by the driver: 1 to 128 bytes.
    SnapshotId;
    /// A group snapshot's id, chosen by the driver: 1 to 128 bytes.
    GroupSnapshotId;
    /// The name that the orchestrator suggests for a volume, a snapshot or a group snapshot, and the idempotency key
    /// of its creation: 1 to 128 bytes, any Unicode except control characters.
    Name;
    /// Where a listing continues, as the driver's last page returned it. Opaque to the caller.
    Token;
}
