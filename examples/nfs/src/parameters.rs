//! The parameters of a StorageClass.

use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;

use csi_core::kubernetes::ClaimNames;
use csi_core::{CreateVolumeRequest, Error, Result};
use serde::{Deserialize, Serialize};

use crate::VolumeArgs;
use crate::records::{self, OWN};
use crate::share::Share;

/// The longest path of a sub-directory, in bytes; a slash counts as three. The path is a file name in the
/// records.
const LONGEST: usize = 240;

/// What happens to a volume's directory when the volume is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDelete {
    /// The directory is deleted with all its content.
    #[default]
    Delete,
    /// The directory stays where it is.
    Retain,
    /// The directory is renamed to `archived-…`, in the same parent directory.
    Archive,
}

impl fmt::Display for OnDelete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delete => "delete",
            Self::Retain => "retain",
            Self::Archive => "archive",
        })
    }
}

impl FromStr for OnDelete {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Delete, Self::Retain, Self::Archive];
        let found = all.into_iter().find(|policy| policy.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not one of delete, retain, archive"))
    }
}

/// Permissions in octal, as `chmod` takes them; 0 means that the default applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode(u32);

impl Mode {
    /// The permission bits; `None` for 0.
    pub fn bits(self) -> Option<u32> {
        (self.0 != 0).then_some(self.0)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o}", self.0)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777);
        bits.map(Self).ok_or_else(|| format!("{text:?} is not an octal mode such as 0777"))
    }
}

/// The parameters as the StorageClass has them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    server: String,
    share: String,
    #[serde(default)]
    sub_dir: Option<String>,
    #[serde(default)]
    mount_permissions: Option<String>,
    #[serde(default)]
    on_delete: Option<String>,
}

/// Where a volume is to be created, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) share: Share,
    pub(crate) sub_dir: String,
    pub(crate) mode: Option<u32>,
    pub(crate) on_delete: OnDelete,
}

impl Wanted {
    pub(crate) fn read(request: &CreateVolumeRequest, defaults: &VolumeArgs) -> Result<Self> {
        let written: Written = request.parameters.parse()?;
        let bad = |key: &str| {
            let field = format!("parameters[{key}]");
            move |why: String| Error::invalid(field, why)
        };
        let flags = request.volume_capabilities.iter().flat_map(csi_core::VolumeCapability::mount_flags);
        let share = Share::new(&written.server, &written.share)?.spoken_to(flags)?;
        let sub_dir = match &written.sub_dir {
            Some(template) => {
                filled(template, &ClaimNames::from_parameters(&request.parameters), request.name.as_str())?
            }
            None => records::key(request.name.as_str()),
        };
        let mode = match written.mount_permissions.as_deref() {
            Some(text) => text.parse().map_err(bad("mountPermissions"))?,
            None => defaults.mount_permissions,
        };
        let on_delete = match written.on_delete.as_deref() {
            Some(text) => text.parse().map_err(bad("onDelete"))?,
            None => defaults.default_on_delete,
        };
        Ok(Self { share, sub_dir: sub_dir_of("parameters[subDir]", &sub_dir)?, mode: mode.bits(), on_delete })
    }
}

/// Fills in the `${…}` of a template.
fn filled(template: &str, claim: &ClaimNames<'_>, name: &str) -> Result<String> {
    const FIELD: &str = "parameters[subDir]";
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let (key, behind) =
            after.split_once('}').ok_or_else(|| Error::invalid(FIELD, "has a ${ without a }"))?;
        let value = match key {
            "pvc.metadata.name" => claim.claim,
            "pvc.metadata.namespace" => claim.namespace,
            // Without the metadata that external-provisioner adds, the volume's name comes from the request.
            "pv.metadata.name" => claim.volume.or(Some(name)),
            _ => {
                let why = format!(
                    "has ${{{key}}}: the known keys are pvc.metadata.name, pvc.metadata.namespace and \
                     pv.metadata.name"
                );
                return Err(Error::invalid(FIELD, why));
            }
        };
        let value = value.ok_or_else(|| {
            let why = format!(
                "has ${{{key}}}, which the request does not contain: run the provisioner with \
                 --extra-create-metadata"
            );
            Error::invalid(FIELD, why)
        })?;
        if value.contains('/') || value.starts_with('.') {
            return Err(Error::invalid(
                FIELD,
                format!("${{{key}}} is {value:?}, which can't be the name of a directory"),
            ));
        }
        text.push_str(before);
        text.push_str(value);
        rest = behind;
    }
    Ok(text + rest)
}

/// Normalizes a path below a share: relative, without `.` and `..`, and outside the driver's own directory.
pub(crate) fn sub_dir_of(field: &str, text: &str) -> Result<String> {
    let refuse = |why: &str| Err(Error::invalid(field, format!("is {text:?}: {why}")));
    let path = Path::new(text);
    if text.chars().any(char::is_control) {
        return refuse("it contains a control character");
    }
    if path.is_absolute() {
        return refuse("it must be relative, below the share");
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return refuse("it must not contain \"..\"");
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.first() == Some(&OWN) {
        return refuse("the driver stores its own records there");
    }
    let clean = parts.join("/");
    // The name of the place's record, in which these are encoded.
    match clean.len() + 2 * clean.matches(['/', '%']).count() {
        0 => refuse("it is not the name of a directory"),
        1..=LONGEST => Ok(clean),
        _ => refuse("it is longer than 240 bytes, with three bytes for each slash"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_has_one_form() {
        for (text, clean) in [("a", "a"), ("a//b/", "a/b"), ("./a/./b", "a/b"), ("a/.csi-nfs", "a/.csi-nfs")]
        {
            assert_eq!(sub_dir_of("subDir", text).unwrap(), clean);
        }
    }

    #[test]
    fn templates_take_what_the_provisioner_tells() {
        let mut claim = ClaimNames::default();
        claim.claim = Some("data");
        claim.namespace = Some("red");
        let fill = |template: &str| filled(template, &claim, "pvc-1");
        assert_eq!(fill("${pvc.metadata.namespace}/${pvc.metadata.name}").unwrap(), "red/data");
        assert_eq!(fill("x${pv.metadata.name}y$z").unwrap(), "xpvc-1y$z");
        for (template, word) in [("${pvc.name}", "the known keys are"), ("${pv.metadata.name", "without a }")]
        {
            let error = fill(template).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        claim.namespace = None;
        let error = filled("${pvc.metadata.namespace}", &claim, "pvc-1").unwrap_err().to_string();
        assert!(error.contains("--extra-create-metadata"), "{error}");
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!("0777".parse(), Ok(Mode(0o777)));
        assert_eq!("0".parse::<Mode>().unwrap().bits(), None);
        assert!(["", "8", "10000", "u+x", "-1"].iter().all(|text| text.parse::<Mode>().is_err()));
        for policy in [OnDelete::Delete, OnDelete::Retain, OnDelete::Archive] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
    }

    proptest! {
        /// An accepted path has plain names only, is outside the driver's own directory, and does not change
        /// when it is normalized again.
        #[test]
        fn no_path_climbs(text in "(\\.|\\.\\.|/|a|%|\\.csi-nfs|\\PC|\n){0,12}") {
            if let Ok(clean) = sub_dir_of("subDir", &text) {
                let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
                prop_assert!(Path::new(&clean).components().all(plain), "{clean}");
                prop_assert!(!Path::new(&clean).starts_with(OWN) && !clean.ends_with('/') && !clean.contains("//"));
                prop_assert_eq!(sub_dir_of("subDir", &clean).unwrap(), clean);
            }
        }

        /// The name of a claim can't add or remove a path component.
        #[test]
        fn no_name_of_a_claim_climbs(name in "(\\.|/|a|\\$|\\{|\\}|\\PC){0,8}") {
            let mut claim = ClaimNames::default();
            claim.claim = Some(&name);
            if let Ok(path) = filled("a/${pvc.metadata.name}/b", &claim, "pvc-1") {
                let levels = sub_dir_of("subDir", &path).map_or(3, |path| path.split('/').count());
                prop_assert!(levels == 3 || name.is_empty(), "{path}");
            }
        }
    }
}
