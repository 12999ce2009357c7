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
    /// At once: a write never fails for a disk that filled up.
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
    /// Those of a request; the mutable ones have won over the others.
    pub(crate) fn of(request: &CreateVolumeRequest) -> Result<(Self, Mutable)> {
        let fixed: Self = request.parameters.parse()?;
        let mut mutable =
            Mutable { provisioning: fixed.provisioning, description: fixed.description.clone() };
        mutable.take(request.mutable_parameters.parse()?);
        Ok((fixed, mutable))
    }
}

impl Mutable {
    pub(crate) fn asked(parameters: &MutableParameters) -> Result<Self> {
        parameters.parse()
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
