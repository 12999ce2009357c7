//! The options of a mounted filesystem, as the kernel reports them.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;

/// The options of a mounted filesystem. They can contain secrets, so `Debug` shows only the keys.
#[derive(Clone, PartialEq, Eq)]
pub struct SuperOptions(Vec<u8>);

impl SuperOptions {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Whether the options contain this flag: `ro`, `nouuid`.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.0.split(|byte| *byte == b',').any(|option| option == flag.as_bytes())
    }

    /// The value of an option.
    pub fn value(&self, key: &str) -> Option<&OsStr> {
        let mut options = self.0.split(|byte| *byte == b',');
        let value = options.find_map(|option| option.strip_prefix(key.as_bytes())?.strip_prefix(b"="))?;
        Some(OsStr::from_bytes(value))
    }
}

impl fmt::Debug for SuperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.0.split(|byte| *byte == b',').map(|option| {
            let mut parts = option.splitn(2, |byte| *byte == b'=');
            let key = String::from_utf8_lossy(parts.next().unwrap_or_default());
            if parts.next().is_some() { format!("{key}=***") } else { key.into_owned() }
        });
        f.debug_list().entries(keys).finish()
    }
}
