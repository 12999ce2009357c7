//! What a StorageClass, a VolumeAttributesClass or an inline volume can say.

use csi_core::{CreateVolumeRequest, MutableParameters, Quantity, Result};
use serde::{Deserialize, Serialize};

use crate::kind::Kind;

/// How an image gets its room on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Provisioning {
    /// As it is written.
    #[default]
    Thin,
    /// At once, and shared with no copy: a write never fails for a disk that filled up. On btrfs it can all the same: there
    /// a copy's blocks are shared with it.
    Thick,
}

/// Parameters of a StorageClass.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Parameters {
    #[serde(default)]
    pub(crate) kind: Option<Kind>,
    #[serde(default)]
    pub(crate) pool: Option<String>,
    #[serde(default)]
    provisioning: Option<Provisioning>,
    #[serde(default)]
    description: Option<String>,
}

/// Those that can be changed later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mutable {
    #[serde(default)]
    pub(crate) provisioning: Option<Provisioning>,
    #[serde(default)]
    pub(crate) description: Option<String>,
}

/// Attributes of an inline volume.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Inline {
    #[serde(default)]
    pub(crate) kind: Option<Kind>,
    #[serde(default)]
    pub(crate) size: Option<Quantity>,
}

impl Parameters {
    /// Those of a request; the mutable ones have won over the others. `accepted` may be among these, too.
    pub(crate) fn of(request: &CreateVolumeRequest, accepted: &[String]) -> Result<(Self, Mutable)> {
        let fixed: Self = request.parameters.parse()?;
        let mut mutable =
            Mutable { provisioning: fixed.provisioning, description: fixed.description.clone() };
        let asked = &request.mutable_parameters;
        mutable.take(match is_known(asked.iter(), accepted) {
            true => asked.parse_known()?,
            false => asked.parse()?,
        });
        Ok((fixed, mutable))
    }
}

impl Mutable {
    const NAMES: [&str; 2] = ["provisioning", "description"];

    pub(crate) fn asked(parameters: &MutableParameters, accepted: &[String]) -> Result<Self> {
        match is_known(parameters.iter(), accepted) {
            true => parameters.parse_known(),
            false => parameters.parse(),
        }
    }

    /// Takes over what is named; the rest stays.
    pub(crate) fn take(&mut self, named: Self) {
        self.provisioning = named.provisioning.or(self.provisioning);
        self.description = named.description.or_else(|| self.description.take());
    }

    pub(crate) fn is_thick(&self) -> bool {
        self.provisioning == Some(Provisioning::Thick)
    }
}

/// Whether each of these is a name of ours or one that is accepted.
fn is_known<'a>(mut named: impl Iterator<Item = (&'a str, &'a str)>, accepted: &[String]) -> bool {
    named.all(|(name, _)| Mutable::NAMES.contains(&name) || accepted.iter().any(|one| one == name))
}
