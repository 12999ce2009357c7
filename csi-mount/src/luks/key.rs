//! The key of an encrypted device, which is never printed and does not stay in memory.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::tool::INPUT;

/// The key of an encrypted device: a passphrase or random bytes, used exactly as given, including a newline
/// at the end.
///
/// It reaches `cryptsetup` through a pipe and is in no command line, file, log line or error. Its memory is
/// wiped when its last clone is dropped.
///
/// ```
/// let key = csi_mount::LuksKey::new("correct horse battery staple")?;
/// assert_eq!(format!("{key:?}"), "LuksKey(..)");
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Clone)]
pub struct LuksKey(Arc<Zeroizing<Vec<u8>>>);

impl LuksKey {
    /// The maximum length in bytes: 4096, which every pipe can hold.
    const MAX: usize = INPUT;

    /// A key of these bytes. It takes over their memory.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if there are none, or more than 4096 bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let secret = Zeroizing::new(bytes.into());
        let refuse = |reason: String| Err(Error::new(ErrorKind::InvalidInput, "read a LUKS key", reason));
        match secret.len() {
            0 => refuse("it is empty".to_owned()),
            length if length > Self::MAX => {
                refuse(format!("it has {length} bytes, more than the maximum of {}", Self::MAX))
            }
            _ => Ok(Self(Arc::new(secret))),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for LuksKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LuksKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_bytes_of_a_size_and_does_not_print() {
        assert_eq!(LuksKey::new("a\n").unwrap().bytes(), b"a\n");
        for bad in [vec![], vec![b'#'; 4097]] {
            let error = LuksKey::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!error.to_string().contains('#'), "{error}");
        }
        let key = LuksKey::new("canary").unwrap();
        assert!(!format!("{key:?} {:?}", (key.clone(), crate::Luks::new())).contains("canary"));
    }

    /// Searches for the key at its former place in this process's memory.
    #[test]
    fn a_key_is_wiped() {
        use std::os::unix::fs::FileExt as _;
        let bytes = ["canary", "of", "the", "key", "that", "goes"].join("-").into_bytes();
        let key = LuksKey::new(bytes).unwrap();
        // The allocator can write to the start of freed memory.
        let end = &key.bytes()[16..];
        let place = end.as_ptr().addr() as u64;
        let end = end.to_vec();
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let has_it = || {
            let mut there = vec![0; end.len()];
            memory.read_exact_at(&mut there, place).is_ok() && there == end
        };
        let other = key.clone();
        drop(key);
        assert!(has_it());
        drop(other);
        assert!(!has_it());
    }
}
