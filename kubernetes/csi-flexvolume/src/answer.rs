//! The JSON object that a command prints (`DriverStatus` in driver-call.go).

use std::collections::BTreeMap;

use csi_proto::escape;
use serde::Serialize;

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attached: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_new_size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<BTreeMap<&'static str, bool>>,
}

impl Answer {
    pub(crate) fn success() -> Self {
        Self { status: "Success", ..Self::default() }
    }

    /// The callers log the message and put it into events of the pod.
    pub(crate) fn failure(message: &str) -> Self {
        Self { status: "Failure", message: escape::message(message).into_owned(), ..Self::default() }
    }

    /// The kubelet then uses its default and never calls this command again before the next `init`, so don't return
    /// it for one volume.
    pub(crate) fn not_supported() -> Self {
        Self { status: "Not supported", ..Self::default() }
    }

    pub(crate) fn capabilities(capabilities: BTreeMap<&'static str, bool>) -> Self {
        Self { capabilities: Some(capabilities), ..Self::success() }
    }

    pub(crate) fn device(device: String) -> Self {
        Self { device: Some(device), ..Self::success() }
    }

    pub(crate) fn attached(attached: bool) -> Self {
        Self { attached: Some(attached), ..Self::success() }
    }

    pub(crate) fn new_size(bytes: i64) -> Self {
        Self { volume_new_size: Some(bytes), ..Self::success() }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers")
    }
}
