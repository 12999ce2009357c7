//! What is recorded about a volume: tags of its logical volume, and the name of that.

use std::fmt;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::erase::EraseMode;
use crate::error::{Error, ErrorKind, Result};

const DRIVER: &str = "csi.driver=";
const STATE: &str = "csi.state=";
const SOURCE: &str = "csi.source=";
const DISKS: &str = "csi.disks=";
const ERASE: &str = "csi.erase=";
const ERASED: &str = "csi.erased=";
const HEADER: &str = "csi.header=";
const STAGED: &str = "csi.staged";

/// The longest name in bytes. A tag has at most 1024 characters, and an escaped byte takes three.
const LONGEST_NAME: usize = 256;
/// The longest name that a logical volume gets as it is. The device mapper's names have at most 127 bytes, with that
/// of the volume group, and each hyphen counts twice there.
const LONGEST_PLAIN: usize = 56;
/// The name of a volume or snapshot, as the caller chose it. The two kinds have separate names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LvmName {
    /// A volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
    /// The part by which the thick volume of this name grows, until it reads as zeros and the volume gets it. No call
    /// returns or takes it.
    #[doc(hidden)]
    Growth(String),
}

impl LvmName {
    /// The name without its kind.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Volume(name) | Self::Snapshot(name) | Self::Growth(name) => name,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Volume(_) => "volume",
            Self::Snapshot(_) => "snapshot",
            Self::Growth(_) => "growth",
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if (1..=LONGEST_NAME).contains(&self.as_str().len()) {
            return Ok(());
        }
        let reason = format!("the name of a {} has 1 to {LONGEST_NAME} bytes", self.kind());
        Err(Error::new(ErrorKind::InvalidInput, "name a logical volume", reason))
    }

    /// The name of the logical volume: readable if it can be, else a hash. The two can't be equal, because a plain
    /// name has no underscore; lvm2 names the parts of its volumes by underscores. Whose the logical volume is, its tags say.
    pub(super) fn logical_volume(&self) -> String {
        let prefix = match self {
            Self::Volume(_) => "csi",
            Self::Snapshot(_) => "csisnap",
            Self::Growth(_) => "csigrow",
        };
        let name = self.as_str();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        let length = name.len() + name.bytes().filter(|byte| *byte == b'-').count();
        if name.bytes().all(is_plain) && length <= LONGEST_PLAIN {
            return format!("{prefix}-{name}");
        }
        let hash = Sha256::digest(name.as_bytes());
        hash[..16].iter().fold(format!("{prefix}_h_"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    fn to_text(&self) -> String {
        format!("{}:{}", self.kind(), encode(self.as_str()))
    }

    fn from_text(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("volume", name) => decode(name).map(Self::Volume),
            ("snapshot", name) => decode(name).map(Self::Snapshot),
            _ => None,
        }
    }
}

/// `volume pvc-1`, for messages.
impl fmt::Display for LvmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.as_str())
    }
}

/// The state of a volume, as its tag says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LvmState {
    /// It is not usable yet: a repeated create finishes it.
    Creating,
    /// It can be used.
    Ready,
    /// It is deleted, and its space is not free before its data is erased.
    Erasing,
}

impl LvmState {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Creating, "creating"), (Self::Ready, "ready"), (Self::Erasing, "erasing")];

    fn text(self) -> &'static str {
        Self::ALL.into_iter().find(|(state, _)| *state == self).map_or("", |(_, text)| text)
    }
}

/// All that the tags say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: LvmName,
    pub(super) state: LvmState,
    pub(super) source: Option<LvmName>,
    /// The tag of the physical volumes that it is on.
    pub(super) disks: Option<String>,
    /// How it is erased when it is deleted.
    pub(super) erase: EraseMode,
    /// How much is erased already, in bytes; none if it is not known yet whether it must be erased.
    pub(super) erased: Option<u64>,
    /// How many of its bytes are not its user's.
    pub(super) header: u64,
    /// It, or what it is a copy of, was in use.
    pub(super) was_staged: bool,
}

impl Record {
    pub(super) fn new(name: LvmName, state: LvmState) -> Self {
        Self {
            name,
            state,
            source: None,
            disks: None,
            erase: EraseMode::Zero,
            erased: None,
            header: 0,
            was_staged: false,
        }
    }

    /// The tags for this driver's volume.
    pub(super) fn tags(&self, driver: &str) -> Vec<String> {
        let mut tags = vec![
            mark(driver),
            format!("csi.{}={}", self.name.kind(), encode(self.name.as_str())),
            format!("{STATE}{}", self.state.text()),
        ];
        tags.extend(self.source.as_ref().map(|source| format!("{SOURCE}{}", source.to_text())));
        tags.extend(self.disks.as_ref().map(|disks| format!("{DISKS}{disks}")));
        if self.erase != EraseMode::Zero {
            tags.push(format!("{ERASE}{}", self.erase));
        }
        if self.was_staged {
            tags.push(STAGED.to_owned());
        }
        tags.extend(self.erased.map(|bytes| format!("{ERASED}{bytes}")));
        if self.header > 0 {
            tags.push(format!("{HEADER}{}", self.header));
        }
        tags
    }

    /// Reads the tags. None if they are not this driver's, or somebody has changed them.
    pub(super) fn from_tags(driver: &str, tags: &[String]) -> Option<Self> {
        let has_mark = tags.contains(&mark(driver));
        let one = |prefix: &str| {
            let mut found = tags.iter().filter_map(|tag| tag.strip_prefix(prefix));
            found.next().filter(|_| found.next().is_none())
        };
        let name = match (one("csi.volume="), one("csi.snapshot="), one("csi.growth=")) {
            (Some(name), None, None) => LvmName::Volume(decode(name)?),
            (None, Some(name), None) => LvmName::Snapshot(decode(name)?),
            (None, None, Some(name)) => LvmName::Growth(decode(name)?),
            _ => return None,
        };
        let state = one(STATE)?;
        let (state, _) = LvmState::ALL.into_iter().find(|(_, text)| *text == state)?;
        let erase = match one(ERASE) {
            Some(mode) => mode.parse().ok()?,
            None => EraseMode::Zero,
        };
        let header = match one(HEADER) {
            Some(bytes) => bytes.parse().ok()?,
            None => 0,
        };
        has_mark.then(|| Self {
            name,
            state,
            source: one(SOURCE).and_then(LvmName::from_text),
            disks: one(DISKS).map(str::to_owned),
            erase,
            erased: one(ERASED).and_then(|bytes| bytes.parse().ok()),
            header,
            was_staged: tags.iter().any(|tag| tag == STAGED),
        })
    }
}

/// The tag that says whose a logical volume is.
pub(super) fn mark(driver: &str) -> String {
    format!("{DRIVER}{}", encode(driver))
}

/// In the characters of a tag (`lvm(8)`): a byte that is not a letter, a digit or one of `-._` becomes `#` and its
/// hexadecimal digits.
fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            encoded.push(byte.into());
        } else {
            let _ = write!(encoded, "#{byte:02x}");
        }
        encoded
    })
}

fn decode(text: &str) -> Option<String> {
    let mut parts = text.split('#');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok().filter(|decoded| encode(decoded) == text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn logical_volumes_are_named_readably_or_by_a_hash() {
        let plain = LvmName::Volume("pvc-3f2a0c1e-0f6b-4d0e-9f43-7a0f5d3c1b22".into());
        assert_eq!(plain.logical_volume(), "csi-pvc-3f2a0c1e-0f6b-4d0e-9f43-7a0f5d3c1b22");
        assert_eq!(LvmName::Snapshot("s".into()).logical_volume(), "csisnap-s");
        let hash = "csi_h_684b9a7fbac7fa6a0c6d5c4f1b8d5c0c".len();
        for name in ["A", "a_tdata", "ü", "a b", "-".repeat(29).as_str(), "h_x"] {
            let hashed = LvmName::Volume(name.into()).logical_volume();
            assert!(hashed.starts_with("csi_h_") && hashed.len() == hash, "{name}: {hashed}");
        }
        for (name, is_good) in [("", false), (&*"x".repeat(256), true), (&*"x".repeat(257), false)] {
            assert_eq!(LvmName::Volume(name.into()).check().is_ok(), is_good);
        }
    }

    #[test]
    fn tags_that_somebody_changed_are_not_ours() {
        let good = ["csi.driver=d", "csi.volume=a", "csi.state=ready"];
        let read = |tags: &[&str]| {
            Record::from_tags("d", &tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(read(&good), Some(Record::new(LvmName::Volume("a".into()), LvmState::Ready)));
        assert!(read(&[&good[..], &["another"]].concat()).is_some());
        for missing in 0..good.len() {
            let tags: Vec<&str> =
                good.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, tag)| *tag).collect();
            assert_eq!(read(&tags), None, "{tags:?}");
        }
        for more in [
            "csi.volume=b",
            "csi.snapshot=a",
            "csi.growth=a",
            "csi.state=creating",
            "csi.erase=dd",
            "csi.header=x",
        ] {
            assert_eq!(read(&[&good[..], &[more]].concat()), None, "{more}");
        }
        for (at, wrong) in
            [(0, "csi.driver=e"), (1, "csi.volume=a#2"), (1, "csi.volume=#61"), (2, "csi.state=")]
        {
            let mut tags = good;
            tags[at] = wrong;
            assert_eq!(read(&tags), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn tags_keep_every_name(name in "\\PC{1,40}|[\\x00-\\x7f]{1,20}", erased in proptest::option::of(0..9_u64), header in 0..9_u64, is_snapshot: bool, was_staged: bool) {
            let named = if is_snapshot { LvmName::Snapshot } else { LvmName::Volume };
            for (state, _) in LvmState::ALL {
                let mut record = Record::new(named(name.clone()), state);
                record.source = Some(LvmName::Snapshot(name.clone()));
                record.disks = Some("ssd".to_owned());
                record.erased = erased;
                record.header = header;
                record.was_staged = was_staged;
                if state == LvmState::Erasing {
                    record.erase = EraseMode::Discard;
                }
                let tags = record.tags(&name);
                let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-/=!:#&".contains(&byte);
                prop_assert!(tags.iter().all(|tag| tag.len() <= 1024 && tag.bytes().all(is_allowed)));
                prop_assert_eq!(Record::from_tags(&name, &tags), Some(record));
            }
        }
    }
}
