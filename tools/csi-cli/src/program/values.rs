//! Values on the command line: capabilities, sizes, pairs.

use std::collections::BTreeMap;

use csi_proto::v1;
use parse_size::{ByteSuffix, Config};
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    /// The value can be shown with the reason.
    #[error("{0}")]
    Value(String),
    /// The value is or can be a secret.
    #[error("{0}")]
    Secret(&'static str),
}

impl From<String> for ValueError {
    fn from(reason: String) -> Self {
        Self::Value(reason)
    }
}

const SHORT: [(&str, Mode); 4] = [
    ("rwo", Mode::SingleNodeWriter),
    ("rwop", Mode::SingleNodeSingleWriter),
    ("rox", Mode::MultiNodeReaderOnly),
    ("rwx", Mode::MultiNodeMultiWriter),
];

pub(crate) const CAPABILITY_HELP: &str = "\
MODE is rwo, rwop, rox, rwx or the spec's name of a mode; TYPE is mount or block. After mount, a filesystem,
mount flags and group=GID are optional: rwo,mount,xfs,noatime,group=2000 (no filesystem: rwo,mount,,noatime)";

/// Parses a capability such as `rwo,mount,ext4,noatime` or `rwx,block`.
///
/// # Errors
/// Names the unknown word, and the known ones.
pub(crate) fn capability(text: &str) -> Result<v1::VolumeCapability, ValueError> {
    let words = words(text);
    if words.iter().any(|word| is_secret(word)) {
        return Err(ValueError::Secret(
            "every process can read mount flags on the command line: give this one in --request FILE, or as \
             the secret from which the driver creates it",
        ));
    }
    let mut words = words.into_iter();
    let mode = mode(words.next().unwrap_or_default())?;
    let access = match words.next() {
        Some("block") => {
            if let Some(more) = words.next() {
                return Err(
                    format!("{more:?} after block: a block volume has no filesystem and no flags").into()
                );
            }
            AccessType::Block(BlockVolume {})
        }
        Some("mount") => {
            let fs_type = words.next().unwrap_or_default().to_owned();
            let (groups, flags): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with("group="));
            AccessType::Mount(MountVolume {
                fs_type,
                mount_flags: flags.into_iter().map(str::to_owned).collect(),
                volume_mount_group: groups
                    .last()
                    .and_then(|group| group.strip_prefix("group="))
                    .unwrap_or_default()
                    .to_owned(),
            })
        }
        Some(other) => {
            return Err(format!("unknown access type {other:?}: the known types are mount, block").into());
        }
        None => {
            return Err("the access type is missing: rwo,mount or rwo,mount,ext4 or rwo,block"
                .to_owned()
                .into());
        }
    };
    Ok(v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access),
    })
}

/// Splits at commas outside double quotes: the flag `context="…"` contains commas.
fn words(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let split = text.split(|letter| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    });
    split.map(str::trim).collect()
}

/// Whether a flag's name says that its value is a secret.
fn is_secret(flag: &str) -> bool {
    const SECRET: [&str; 5] = ["pass", "secret", "token", "cred", "key"];
    let name = flag.split_once('=').map_or("", |(name, _)| name).to_lowercase();
    SECRET.iter().any(|word| name.contains(word))
}

fn mode(word: &str) -> Result<Mode, String> {
    let long = word.to_uppercase().replace('-', "_");
    let short = SHORT.iter().find(|(name, _)| *name == word.to_lowercase()).map(|(_, mode)| *mode);
    short.or_else(|| Mode::ALL.into_iter().find(|mode| mode.as_str_name() == long)).ok_or_else(|| {
        let short = SHORT.iter().map(|(name, mode)| format!("{name} ({})", mode.as_str_name()));
        let others = Mode::ALL.iter().filter(|mode| !SHORT.iter().any(|(_, known)| known == *mode));
        let known = short.chain(others.map(|mode| mode.as_str_name().to_owned())).collect::<Vec<_>>();
        format!("unknown access mode {word:?}: the known modes are {}", known.join(", "))
    })
}

/// Parses a size such as `1Gi`, `500M` or `4096`.
///
/// # Errors
/// When it is not a size, or too large.
pub(crate) fn size(text: &str) -> Result<i64, String> {
    // `b` could mean bits.
    let sizes = Config::new().with_byte_suffix(ByteSuffix::Deny);
    let bytes = sizes.parse_size(text).ok().and_then(|bytes| i64::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("{text:?} is not a size: write 1Gi, 500M, 1.5Ti or bytes, less than 8Ei"))
}

/// Parses `key=value`.
///
/// # Errors
/// When there is no key, or no `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), ValueError> {
    match text.split_once('=') {
        Some((key, _)) if key == csi_proto::internal::TOKENS_KEY => Err(ValueError::Secret(
            "every process can read tokens on the command line: give them in --request FILE",
        )),
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write key=value".to_owned().into()),
    }
}

/// Parses `KEY=VARIABLE`. The value can be a secret by mistake.
///
/// # Errors
/// When there is no key, or no `=`.
pub(crate) fn variable(text: &str) -> Result<(String, String), ValueError> {
    pair(text)
        .map_err(|_| ValueError::Secret("--secrets-env: write KEY=VARIABLE, with the name of a variable"))
}

/// Parses a topology such as `zone=a,rack=7`.
///
/// # Errors
/// When a segment is not `key=value`.
pub(crate) fn topology(text: &str) -> Result<v1::Topology, ValueError> {
    let segments = text.split(',').map(pair).collect::<Result<BTreeMap<_, _>, _>>()?;
    Ok(v1::Topology { segments })
}

/// A size with its unit and in bytes: `1 GiB (1073741824)`.
pub(crate) fn bytes(count: i64) -> String {
    match u64::try_from(count) {
        Ok(bytes) if bytes >= 1024 => format!("{} ({bytes})", crate::lifecycle::size(bytes)),
        Ok(bytes) => format!("{bytes} B"),
        Err(_) => format!("{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities() {
        let Some(AccessType::Mount(mount)) =
            capability("rwo,mount,ext4,noatime,group=7").unwrap().access_type
        else {
            panic!("it is a mount")
        };
        assert_eq!((mount.fs_type.as_str(), mount.volume_mount_group.as_str()), ("ext4", "7"));
        assert_eq!(mount.mount_flags, ["noatime"]);
        let Some(AccessType::Mount(mount)) =
            capability(r#"rwo,mount,,context="a:b:c0,c1",noatime"#).unwrap().access_type
        else {
            panic!("it is a mount")
        };
        assert_eq!(mount.mount_flags, [r#"context="a:b:c0,c1""#, "noatime"]);
        let block = capability("single-node-multi-writer,block").unwrap();
        assert_eq!(block.access_mode.unwrap().mode(), Mode::SingleNodeMultiWriter);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_known() {
        for (text, says) in [
            ("rwq,mount", "unknown access mode \"rwq\": the known modes are rwo (SINGLE_NODE_WRITER), rwop"),
            ("rwo,disk", "unknown access type \"disk\": the known types are mount, block"),
            ("rwo", "the access type is missing"),
            ("rwo,block,ext4", "a block volume has no filesystem"),
            ("rwo,mount,cifs,password=canary", "give this one in --request FILE"),
        ] {
            let error = capability(text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("canary"), "{text}: {error}");
        }
        assert!(size("1Gb").unwrap_err().contains("write 1Gi"));
        assert!(size("9Ei").unwrap_err().contains("less than 8Ei"));
        assert!(pair("=x").is_err() && pair("x").is_err());
        let token = pair(&format!("{}=canary", csi_proto::internal::TOKENS_KEY)).unwrap_err().to_string();
        assert!(token.contains("--request") && !token.contains("canary"));
    }

    #[test]
    fn sizes_are_human_and_exact() {
        assert_eq!(bytes(1 << 30), "1 GiB (1073741824)");
        assert_eq!(bytes(0), "0 B");
    }
}
