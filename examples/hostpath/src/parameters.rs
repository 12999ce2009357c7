//! The parameters of a StorageClass, a VolumeAttributesClass or an inline volume.

use csi_core::kubernetes::Quantity;
use csi_core::types::StringMap;
use csi_core::{CreateVolumeRequest, Result};
use serde::{Deserialize, Serialize};

use crate::kind::Kind;

/// When the blocks of an image are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Provisioning {
    /// When they are written.
    #[default]
    Thin,
    /// At creation, and never shared with a copy: a write does not fail when the disk is full. Exception: on
    /// btrfs it can fail, because a copy shares the blocks of its source.
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

/// The mutable parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mutable {
    #[serde(default)]
    pub(crate) provisioning: Option<Provisioning>,
    #[serde(default)]
    pub(crate) description: Option<String>,
}

/// The attributes of an inline volume.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Inline {
    #[serde(default)]
    pub(crate) kind: Option<Kind>,
    #[serde(default)]
    pub(crate) size: Option<Quantity>,
}

impl Parameters {
    /// Reads the parameters of a request. Mutable parameters override the others. `accepted` names are
    /// allowed among the mutable ones too.
    pub(crate) fn of(request: &CreateVolumeRequest, accepted: &[String]) -> Result<(Self, Mutable)> {
        let fixed: Self = request.parameters.parse()?;
        let mut mutable =
            Mutable { provisioning: fixed.provisioning, description: fixed.description.clone() };
        let asked = &request.mutable_parameters;
        mutable.take(if is_known(asked.iter(), accepted) { asked.parse_known()? } else { asked.parse()? });
        Ok((fixed, mutable))
    }
}

impl Mutable {
    const NAMES: [&str; 2] = ["provisioning", "description"];

    pub(crate) fn asked(parameters: &StringMap, accepted: &[String]) -> Result<Self> {
        if is_known(parameters.iter(), accepted) { parameters.parse_known() } else { parameters.parse() }
    }

    /// Takes over the values that are set in `named`, and keeps the others.
    pub(crate) fn take(&mut self, named: Self) {
        self.provisioning = named.provisioning.or(self.provisioning);
        self.description = named.description.or_else(|| self.description.take());
    }

    pub(crate) fn is_thick(&self) -> bool {
        self.provisioning == Some(Provisioning::Thick)
    }
}

/// Whether all names are the driver's own or in `accepted`.
fn is_known<'a>(mut named: impl Iterator<Item = (&'a str, &'a str)>, accepted: &[String]) -> bool {
    named.all(|(name, _)| Mutable::NAMES.contains(&name) || accepted.iter().any(|one| one == name))
}
