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
        self.options().any(|option| option == flag.as_bytes())
    }

    /// The value of an option, without the quotes that the kernel puts around an SELinux context with commas.
    pub fn value(&self, key: &str) -> Option<&OsStr> {
        let value =
            self.options().find_map(|option| option.strip_prefix(key.as_bytes())?.strip_prefix(b"="))?;
        let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        Some(OsStr::from_bytes(unquoted.unwrap_or(value)))
    }

    /// The options one by one. A comma between quotes does not separate options.
    fn options(&self) -> impl Iterator<Item = &[u8]> {
        let mut is_quoted = false;
        self.0.split(move |byte| {
            is_quoted ^= *byte == b'"';
            *byte == b',' && !is_quoted
        })
    }
}

impl fmt::Debug for SuperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.options().map(|option| {
            let mut parts = option.splitn(2, |byte| *byte == b'=');
            let key = String::from_utf8_lossy(parts.next().unwrap_or_default());
            if parts.next().is_some() { format!("{key}=***") } else { key.into_owned() }
        });
        f.debug_list().entries(keys).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_between_quotes_is_part_of_the_value() {
        let options =
            SuperOptions::new(br#"rw,context="u:r:t:s0:c1,c2",size=1024k,password=secret"#.to_vec());
        assert_eq!(options.value("context"), Some(OsStr::new("u:r:t:s0:c1,c2")));
        assert_eq!(options.value("size"), Some(OsStr::new("1024k")));
        assert!(options.has_flag("rw") && !options.has_flag("c2\""));
        assert_eq!(format!("{options:?}"), r#"["rw", "context=***", "size=***", "password=***"]"#);
    }
}
