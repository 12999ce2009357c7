//! The Secrets of calls: their names, from a class's parameters, and their content.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use crate::api::Requests;
use crate::error::{Result, ensure, invalid};
use crate::keys::RESERVED;
use crate::objects::{Key, Metadata, SecretReference};

/// The prefixes of a class's secrets in its parameters: for CreateVolume and DeleteVolume, and for ControllerModifyVolume.
pub(crate) const PROVISIONER: &str = "provisioner-";
pub(crate) const CONTROLLER_MODIFY: &str = "controller-modify-";
/// Those of the other calls, with the field of the volume's object that names the secret.
pub(crate) const OF_VOLUME: [(&str, &str); 5] = [
    ("controller-publish-", "controllerPublishSecretRef"),
    ("node-stage-", "nodeStageSecretRef"),
    ("node-publish-", "nodePublishSecretRef"),
    ("controller-expand-", "controllerExpandSecretRef"),
    ("node-expand-", "nodeExpandSecretRef"),
];

fn prefixes() -> impl Iterator<Item = &'static str> {
    let of_volume = OF_VOLUME.into_iter().map(|(prefix, _)| prefix);
    [PROVISIONER].into_iter().chain(of_volume).chain([CONTROLLER_MODIFY])
}

/// The parameters with name and namespace of a secret.
pub(crate) fn keys(prefix: &str) -> [String; 2] {
    ["name", "namespace"].map(|half| format!("{RESERVED}{prefix}secret-{half}"))
}

/// Whether this key of a class's parameters names a secret.
pub(crate) fn is_secret_key(key: &String) -> bool {
    prefixes().chain([""]).any(|prefix| keys(prefix).contains(key))
}

/// The parameters that are the driver's.
///
/// # Errors
/// A key with the reserved beginning that is not known, as of a misspelt secret.
pub(crate) fn without_reserved(
    class: &BTreeMap<String, String>,
    is_known: impl Fn(&String) -> bool,
) -> Result<BTreeMap<String, String>> {
    let is_reserved = |key: &String| key.starts_with(RESERVED);
    let unknown = class.keys().find(|key| is_reserved(key) && !is_known(key));
    ensure!(unknown.is_none(), "the class has the unknown parameter {}", unknown.map_or("", String::as_str));
    let own = class.iter().filter(|(key, _)| !is_reserved(key));
    Ok(own.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The secrets of a class, by their prefix.
///
/// # Errors
/// As of [`reference`].
pub(crate) fn references(
    class: &BTreeMap<String, String>,
    volume: &str,
    claim: &Metadata,
) -> Result<BTreeMap<&'static str, SecretReference>> {
    let mut references = BTreeMap::new();
    for prefix in prefixes() {
        references.extend(reference(class, prefix, volume, claim)?.map(|one| (prefix, one)));
    }
    Ok(references)
}

/// The secret of a class with this prefix, or its default. Its namespace can't come from the claim's user, who could
/// otherwise read secrets of others.
///
/// # Errors
/// One half without the other, or a template that can't be filled in.
pub(crate) fn reference(
    class: &BTreeMap<String, String>,
    prefix: &str,
    volume: &str,
    claim: &Metadata,
) -> Result<Option<SecretReference>> {
    let by_volume = |token: &str| match token {
        "pv.name" => Some(volume.to_owned()),
        "pvc.namespace" => Some(claim.namespace.to_string()),
        _ => None,
    };
    let by_claim = |token: &str| match token {
        "pvc.name" => Some(claim.name.to_string()),
        _ => {
            let key = token.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
            claim.annotations.get(key).map(str::to_owned)
        }
    };
    let is_set = keys(prefix).iter().any(|key| class.contains_key(key));
    let keys = keys(if is_set { prefix } else { "" });
    filled(class, &keys, |token| by_volume(token).or_else(|| by_claim(token)), by_volume)
}

/// The secret whose name and namespace are in these parameters, as templates.
pub(crate) fn filled(
    class: &BTreeMap<String, String>,
    [name_key, namespace_key]: &[String; 2],
    in_name: impl Fn(&str) -> Option<String>,
    in_namespace: impl Fn(&str) -> Option<String>,
) -> Result<Option<SecretReference>> {
    match (class.get(name_key), class.get(namespace_key)) {
        (None, None) => Ok(None),
        (Some(name), Some(namespace)) => Ok(Some(SecretReference {
            name: fill(name_key, name, in_name)?,
            namespace: fill(namespace_key, namespace, in_namespace)?,
        })),
        _ => Err(invalid!("the class has only one of {name_key} and {namespace_key}: set both, or neither")),
    }
}

/// Replaces each `${token}` in a parameter.
fn fill(key: &str, template: &str, value: impl Fn(&str) -> Option<String>) -> Result<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start..].find('}') else { break };
        let token = &rest[start + 2..start + length];
        let value = value(token);
        text += &rest[..start];
        text += &value
            .ok_or_else(|| invalid!("the class's parameter {key} has ${{{token}}}, which has no value"))?;
        rest = &rest[start + length + 1..];
    }
    text += rest;
    ensure!(!text.is_empty(), "the class's parameter {key} is empty");
    Ok(text)
}

/// The content of a secret, for a request; nothing without a reference.
///
/// # Errors
/// The secret does not exist, or has bytes that are not text.
pub(crate) async fn read(
    requests: &Requests,
    reference: Option<&SecretReference>,
) -> Result<BTreeMap<String, String>> {
    let Some(reference) = reference else { return Ok(BTreeMap::new()) };
    let key = Key::new(&reference.namespace, &reference.name);
    let secret: Option<Secret> = requests.read(&key).await?;
    let secret = secret.ok_or_else(|| invalid!("the secret {key} does not exist"))?;
    let mut content = BTreeMap::new();
    for (field, ByteString(bytes)) in secret.data.unwrap_or_default() {
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| invalid!("{field} of the secret {key} is not UTF-8"))?;
        content.insert(field, text);
    }
    Ok(content)
}
