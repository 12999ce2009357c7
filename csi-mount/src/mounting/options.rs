//! Mount options, split into attributes of the mount, options of the filesystem, and refused words.

use std::ffi::c_int;
use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::attributes::MountAttributes;

/// One option of a filesystem: a flag (`nouuid`) or a key with a value (`commit=30`).
///
/// The value can be a password or a token, so neither `Debug` nor any error shows it. It goes only to the
/// kernel, never onto a command line.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FsOption {
    key: String,
    value: Option<String>,
}

impl FsOption {
    /// The name of the option.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value of the option. None for a flag. Do not print it.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }
}

impl fmt::Debug for FsOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if self.value.is_some() { f.write_str("=***") } else { Ok(()) }
    }
}

/// The options of a mount: the attributes of the mount, and the options of its filesystem.
///
/// When a filesystem is mounted, [`RDONLY`](MountAttributes::RDONLY) makes both the mount and the superblock
/// read-only. This allows a read-only device to be mounted. A bind has only its own attributes.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{MountAttributes, MountOptions};
///
/// let options = MountOptions::parse(["noatime", "commit=30", "nosuid"])?.read_only();
/// assert!(options.attributes().contains(MountAttributes::NOATIME | MountAttributes::RDONLY));
/// assert_eq!(format!("{:?}", options.filesystem()), "[commit=***]");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    attributes: MountAttributes,
    filesystem: Vec<FsOption>,
}

/// Words of fstab and mount(8) that the kernel does not use and a node plugin does not need.
const NO_MEANING: [&str; 7] = ["defaults", "auto", "noauto", "nofail", "_netdev", "nouser", "norelatime"];

/// Words that turn a mount into another operation, each with the reason for the refusal.
const REFUSED: [(&str, &str); 15] = [
    ("bind", "the driver chooses what is bound"),
    ("rbind", "the driver chooses what is bound"),
    ("move", "the driver chooses what is moved"),
    ("remount", "an existing mount is not changed"),
    ("beneath", "mounts are not stacked"),
    ("loop", "the driver attaches loop devices"),
    ("source", "the driver chooses what is mounted"),
    ("shared", "propagation belongs to the orchestrator"),
    ("rshared", "propagation belongs to the orchestrator"),
    ("private", "propagation belongs to the orchestrator"),
    ("rprivate", "propagation belongs to the orchestrator"),
    ("slave", "propagation belongs to the orchestrator"),
    ("rslave", "propagation belongs to the orchestrator"),
    ("unbindable", "propagation belongs to the orchestrator"),
    ("runbindable", "propagation belongs to the orchestrator"),
];

impl MountOptions {
    /// No attributes and no options: read-write, relatime, the filesystem's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the mount flags of a volume capability. Each element is one option.
    ///
    /// An element is never split at commas, because the value of an SELinux context contains commas. One pair
    /// of double quotes around a value is removed. Later elements override earlier ones, as in `mount(8)`.
    /// Words of fstab that have no meaning here (`defaults`, `_netdev`, `nofail`, `x-…`) are accepted and
    /// ignored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the option but never its value: an empty option, one with a NUL, a
    /// flag that contains a comma, and words that ask for another operation (`bind`, `remount`, `rshared` …).
    pub fn parse<I>(flags: I) -> Result<Self>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        flags.into_iter().try_fold(Self::new(), |options, flag| options.with_flag(flag.as_ref()))
    }

    fn with_flag(mut self, flag: &str) -> Result<Self> {
        let (key, value) = match flag.split_once('=') {
            Some((key, value)) => (key, Some(unquoted(value))),
            None => (flag, None),
        };
        check(key, value)?;
        if value.is_none() {
            if let Some(attributes) = self.attributes.apply_option(key) {
                self.attributes = attributes;
                return Ok(self);
            }
            if NO_MEANING.contains(&key) {
                return Ok(self);
            }
        }
        if !key.starts_with("x-") && !key.starts_with("X-") {
            self.push(key, value);
        }
        Ok(self)
    }

    /// Makes the mount read-only, and the superblock of the filesystem that it mounts.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.with_attributes(MountAttributes::RDONLY)
    }

    /// Adds these attributes.
    #[must_use]
    pub(crate) fn with_attributes(mut self, attributes: MountAttributes) -> Self {
        self.attributes = self.attributes.combined_with(attributes);
        self
    }

    /// Adds the filesystem option `key=value`. It replaces an option with the same key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], as for [`parse`](Self::parse).
    pub fn with_option(mut self, key: &str, value: &str) -> Result<Self> {
        check(key, Some(value))?;
        self.push(key, Some(value));
        Ok(self)
    }

    /// Adds a filesystem flag, such as `nouuid`. Words for mount attributes are accepted too.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], as for [`parse`](Self::parse).
    pub(crate) fn with_flag_option(self, flag: &str) -> Result<Self> {
        check(flag, None)?;
        self.with_flag(flag)
    }

    /// Adds an option of the filesystem, unless the options have it or its opposite.
    pub(crate) fn with_default(mut self, key: &str, opposite: &str, value: Option<&str>) -> Self {
        if !self.filesystem.iter().any(|option| [key, opposite].contains(&option.key())) {
            self.push(key, value);
        }
        self
    }

    /// The attributes of the mount.
    pub fn attributes(&self) -> MountAttributes {
        self.attributes
    }

    /// The options of the filesystem, in the given order.
    pub fn filesystem(&self) -> &[FsOption] {
        &self.filesystem
    }

    /// The descriptors that options of FUSE and 9p name by number.
    pub(crate) fn named_descriptors(&self) -> Vec<c_int> {
        let is_descriptor = |option: &&FsOption| ["fd", "rfdno", "wfdno"].contains(&option.key());
        let named = self.filesystem.iter().filter(is_descriptor);
        named.filter_map(|option| option.value()?.parse().ok()).collect()
    }

    /// Whether the mount is read-only.
    pub fn is_read_only(&self) -> bool {
        self.attributes.contains(MountAttributes::RDONLY)
    }

    fn push(&mut self, key: &str, value: Option<&str>) {
        self.filesystem.retain(|option| option.key != key);
        self.filesystem.push(FsOption { key: key.to_owned(), value: value.map(str::to_owned) });
    }
}

/// Removes the one pair of quotes that protects commas from mount(8).
fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

fn check(key: &str, value: Option<&str>) -> Result<()> {
    let refuse = |reason: String| Err(Error::new(ErrorKind::InvalidOption, "read mount option", reason));
    if key.is_empty() {
        return refuse("an option is empty".into());
    }
    if key.contains('\0') || value.is_some_and(|value| value.contains('\0')) {
        return refuse(format!("{:?} contains a NUL character", key.replace('\0', "\u{fffd}")));
    }
    if key.contains(',') {
        let first = key.split(',').next().unwrap_or(key);
        return refuse(format!("{first:?} is followed by a comma; pass each option as a separate element"));
    }
    match REFUSED.iter().find(|(word, _)| *word == key) {
        Some((word, why)) => refuse(format!("{word:?} is not accepted: {why}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_the_mount_from_its_filesystem() {
        let options =
            MountOptions::parse(["ro", "noatime", "data=ordered", "nouuid", "_netdev", "x-systemd.a=b"])
                .unwrap();
        assert_eq!(options.attributes(), MountAttributes::RDONLY | MountAttributes::NOATIME);
        let keys: Vec<_> = options.filesystem().iter().map(FsOption::key).collect();
        assert_eq!(keys, ["data", "nouuid"]);
    }

    #[test]
    fn later_options_override() {
        let options = MountOptions::parse(["ro", "rw", "commit=5", "commit=9"]).unwrap();
        assert!(!options.is_read_only());
        assert_eq!(options.filesystem().len(), 1);
        assert_eq!(options.filesystem()[0].value(), Some("9"));
    }

    #[test]
    fn keeps_the_commas_of_a_context() {
        let options = MountOptions::parse([r#"context="system_u:object_r:x_t:s0:c1,c2""#]).unwrap();
        assert_eq!(options.filesystem()[0].value(), Some("system_u:object_r:x_t:s0:c1,c2"));
    }

    #[test]
    fn refuses_flags_that_are_not_options() {
        for (flag, named) in [
            ("", "empty"),
            ("=x", "empty"),
            ("a\0b", "NUL"),
            ("a=\0", "NUL"),
            ("ro,noexec", "\"ro\" is followed by a comma"),
            ("bind", "bind"),
            ("remount", "remount"),
            ("rshared", "rshared"),
            ("source=/dev/sda", "source"),
        ] {
            let error = MountOptions::parse([flag]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{flag:?}");
            assert!(error.to_string().contains(named), "{flag:?}: {error}");
        }
    }

    #[test]
    fn never_shows_a_value() {
        let options = MountOptions::parse(["password=hunter2"]).unwrap();
        assert!(!format!("{options:?}").contains("hunter2"));
        let error = MountOptions::parse(["a,password=hunter2"]).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"), "{error}");
    }
}
