//! The key of a user of the cluster.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

/// Ceph's `CryptoKey`: a type, a time, a length, and the secret. It is never printed, and wiped from memory.
#[derive(Clone)]
pub(super) struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// Reads the text that `ceph auth print-key` prints: base64.
    pub(super) fn parse(text: &str) -> Result<Self> {
        // The text is a secret, so the error does not have it.
        let invalid = || {
            let reason = "the key is not base64, as `ceph auth print-key` prints it";
            Error::new(ErrorKind::InvalidInput, "read the key of a Ceph user", reason)
        };
        let bytes = STANDARD.decode(text.trim()).map(Zeroizing::new).map_err(|_| invalid())?;
        if bytes.len() > HEADER { Ok(Self(bytes)) } else { Err(invalid()) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes before the secret.
const HEADER: usize = 12;

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_printed() {
        let text = "AQBgmRxlAAAAABAAHf1YsTmDP7P5Q7kKzuxq9A==";
        let key = Key::parse(text).unwrap();
        assert_eq!((format!("{key:?}").as_str(), key.bytes().len()), ("Key(..)", 28));
        for wrong in ["", "Zm9v", "geheim!", "AQBgmRxlAAAAABAAHf1YsTmDP7P5Q7kKzuxq9A"] {
            let error = Key::parse(wrong).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && !error.to_string().contains("geheim"));
        }
    }
}
