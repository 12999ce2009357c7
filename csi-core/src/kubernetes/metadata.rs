//! What Kubernetes adds to the spec's fields: the claim, the pod, and its service account's tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::types::{Parameters, Secrets, VolumeContext};

/// The claim that a volume is created for, if the provisioner runs with `--extra-create-metadata`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClaimNames<'a> {
    /// The PersistentVolumeClaim's name.
    pub claim: Option<&'a str>,
    /// The PersistentVolumeClaim's namespace.
    pub namespace: Option<&'a str>,
    /// The PersistentVolume's name.
    pub volume: Option<&'a str>,
}

impl<'a> ClaimNames<'a> {
    /// Reads the names from CreateVolume's parameters.
    pub fn from_parameters(parameters: &'a Parameters) -> Self {
        Self {
            claim: parameters.kubernetes("pvc/name"),
            namespace: parameters.kubernetes("pvc/namespace"),
            volume: parameters.kubernetes("pv/name"),
        }
    }
}

/// The pod that a volume is published for, if the CSIDriver object sets `podInfoOnMount`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodInfo<'a> {
    /// The pod's name.
    pub name: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's unique id.
    pub uid: &'a str,
    /// The name of the pod's service account.
    pub service_account: &'a str,
}

impl<'a> PodInfo<'a> {
    /// Creates the pod's names, for tests of a driver.
    pub const fn new(name: &'a str, namespace: &'a str, uid: &'a str, service_account: &'a str) -> Self {
        Self { name, namespace, uid, service_account }
    }

    /// Reads the pod from NodePublishVolume's volume context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the missing key and how to fix it, for example that the
    /// CSIDriver object lacks `podInfoOnMount: true`.
    pub fn from_context(context: &'a VolumeContext) -> Result<Self> {
        let part = |key: &str| {
            context.pod(key).ok_or_else(|| {
                let field = format!("volume_context[csi.storage.k8s.io/{key}]");
                Error::invalid(field, "is missing: set podInfoOnMount: true in the CSIDriver object")
            })
        };
        Ok(Self {
            name: part("pod.name")?,
            namespace: part("pod.namespace")?,
            uid: part("pod.uid")?,
            service_account: part("serviceAccount.name")?,
        })
    }
}

/// The key of the tokens, in the secrets and in the volume context.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The pod's service account tokens by audience, if the CSIDriver object sets `tokenRequests`.
///
/// The tokens are never printed: `Debug` shows audiences and expiries only.
///
/// ```
/// # use csi_core::kubernetes::ServiceAccountTokens;
/// # use csi_core::node::NodePublishVolumeRequest;
/// # use csi_core::{Result, prelude::*};
/// # fn publish(request: &NodePublishVolumeRequest) -> Result<()> {
/// let tokens = ServiceAccountTokens::from_request(&request.secrets, &request.volume_context)?;
/// if let Some(token) = tokens.for_audience("vault") {
///     let bearer = token.reveal();
/// #   let _ = bearer;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct ServiceAccountTokens(BTreeMap<String, ServiceAccountToken>);

impl ServiceAccountTokens {
    /// Reads the tokens from NodePublishVolume's secrets, where newer kubelets put them on request, else
    /// from the volume context. Empty if neither has tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the tokens can't be parsed. It names the key, and nothing of the
    /// value.
    pub fn from_request(secrets: &Secrets, context: &VolumeContext) -> Result<Self> {
        let places =
            [("secrets", secrets.get(TOKENS)), ("volume_context", context.pod("serviceAccount.tokens"))];
        let Some((map, json)) = places.into_iter().find_map(|(map, json)| json.map(|json| (map, json)))
        else {
            return Ok(Self::default());
        };
        // The parser's message can quote its input, so the error only gives the position.
        let tokens = serde_json::from_str::<BTreeMap<String, Wire>>(json).map_err(|error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            Error::invalid(
                format!("{map}[{TOKENS}]"),
                format!(
                    "is not JSON of audiences with token and expirationTimestamp: it goes wrong at {place}"
                ),
            )
        })?;
        let tokens = tokens.into_iter().map(|(audience, wire)| {
            let expires = expiry(&wire.expires).ok_or_else(|| {
                Error::invalid(format!("{map}[{TOKENS}]"), "has an expirationTimestamp that is not RFC 3339")
            })?;
            Ok((audience, ServiceAccountToken { token: wire.token, expires }))
        });
        tokens.collect::<Result<_>>().map(Self)
    }

    /// Returns the token for this audience; the empty audience is the API server's.
    pub fn for_audience(&self, audience: &str) -> Option<&ServiceAccountToken> {
        self.0.get(audience)
    }
}

#[derive(Deserialize)]
struct Wire {
    token: String,
    #[serde(rename = "expirationTimestamp")]
    expires: String,
}

/// Parses a time such as `2026-11-20T23:34:00Z`.
fn expiry(text: &str) -> Option<SystemTime> {
    SystemTime::try_from(text.parse::<prost_types::Timestamp>().ok()?).ok()
}

/// A service account token for one audience. Never printed.
#[derive(Clone)]
pub struct ServiceAccountToken {
    token: String,
    expires: SystemTime,
}

impl ServiceAccountToken {
    /// Returns the token itself. Keep it out of logs, errors and program arguments.
    pub fn reveal(&self) -> &str {
        &self.token
    }

    /// Returns when the token expires. Before that, the kubelet publishes the volume again with a new token
    /// (`requiresRepublish`).
    pub fn expires(&self) -> SystemTime {
        self.expires
    }
}

impl fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountToken").field("expires", &self.expires).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn tokens(secrets: &[(&str, &str)], context: &[(&str, &str)]) -> Result<ServiceAccountTokens> {
        let secrets = Secrets::read("secrets", &map(secrets)).unwrap();
        ServiceAccountTokens::from_request(
            &secrets,
            &VolumeContext::read("volume_context", &map(context)).unwrap(),
        )
    }

    fn json(token: &str) -> String {
        format!(
            r#"{{"vault":{{"token":"{token}","expirationTimestamp":"1970-01-02T00:00:01Z"}},"":{{"token":"t","expirationTimestamp":"2026-11-20T23:34:00Z"}}}}"#
        )
    }

    #[test]
    fn tokens_come_from_the_secrets_first() {
        let secret = json("new");
        let context = json("old");
        let found = |secrets: &[_], context: &[_]| {
            let tokens = tokens(secrets, context).unwrap();
            tokens.for_audience("vault").map(|token| token.reveal().to_owned())
        };
        let secret = (TOKENS, secret.as_str());
        let context = (TOKENS, context.as_str());
        assert_eq!(found(&[secret], &[context]).as_deref(), Some("new"));
        assert_eq!(found(&[("other", "x")], &[context]).as_deref(), Some("old"));
        assert_eq!(found(&[], &[]), None);
    }

    #[test]
    fn tokens_expire_and_never_print() {
        let found = tokens(&[], &[(TOKENS, &json("canary"))]).unwrap();
        let day = Duration::from_secs(86_401);
        assert_eq!(found.for_audience("vault").unwrap().expires(), SystemTime::UNIX_EPOCH + day);
        let printed = format!("{found:?} {:#?}", found.for_audience("vault"));
        assert!(printed.contains("vault") && !printed.contains("canary"), "{printed}");
        assert_eq!(found.0.len(), 2);
    }

    #[test]
    fn an_error_names_the_key_and_nothing_in_it() {
        let time = json("canary").replace("1970-01-02T00:00:01Z", "canary");
        for bad in ["canary", r#"{"canary":"canary"}"#, r#"{"a":{"token":"canary"}}"#, r#"["canary"]"#, &time]
        {
            let error = tokens(&[(TOKENS, bad)], &[]).unwrap_err().to_string();
            assert!(error.starts_with("secrets[csi.storage.k8s.io/serviceAccount.tokens]: "), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn the_claim_and_the_pod() {
        let prefixed = |key: &str| format!("csi.storage.k8s.io/{key}");
        let parameters: BTreeMap<_, _> = [("pvc/name", "c"), ("pvc/namespace", "n"), ("pv/name", "v")]
            .map(|(k, v)| (prefixed(k), v.to_owned()))
            .into();
        let parameters = Parameters::read("parameters", &parameters).unwrap();
        let due = ClaimNames { claim: Some("c"), namespace: Some("n"), volume: Some("v") };
        assert_eq!(ClaimNames::from_parameters(&parameters), due);

        let pod = [("pod.name", "p"), ("pod.namespace", "n"), ("pod.uid", "u"), ("serviceAccount.name", "s")];
        let mut context: BTreeMap<_, _> = pod.map(|(k, v)| (prefixed(k), v.to_owned())).into();
        let read = |context: &_| VolumeContext::read("volume_context", context).unwrap();
        let due = PodInfo { name: "p", namespace: "n", uid: "u", service_account: "s" };
        assert_eq!(PodInfo::from_context(&read(&context)).unwrap(), due);
        context.remove("csi.storage.k8s.io/pod.uid");
        let error = PodInfo::from_context(&read(&context)).unwrap_err().to_string();
        assert!(
            error.starts_with("volume_context[csi.storage.k8s.io/pod.uid]: is missing: set podInfo"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_or_is_quoted(text in "[\\[{\"]{0,3}canary\\PC{0,20}") {
            if let Err(error) = tokens(&[], &[(TOKENS, &text)]) {
                prop_assert!(!error.to_string().contains("canary"));
            }
        }
    }
}
