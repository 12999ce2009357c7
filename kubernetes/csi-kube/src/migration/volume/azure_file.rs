use k8s_openapi::api::core::v1::{
    AzureFilePersistentVolumeSource, CSIPersistentVolumeSource, PersistentVolume, SecretReference, Volume,
};

use super::super::InTreePlugin;
use crate::error::{Error, Result};

const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
const DEFAULT_NAMESPACE: &str = "default";

pub(super) fn source(volume: &mut PersistentVolume) -> Result<CSIPersistentVolumeSource> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let group = volume.metadata.annotations.as_ref().and_then(|all| all.get(RESOURCE_GROUP).cloned());
    let spec = volume.spec.get_or_insert_default();
    let AzureFilePersistentVolumeSource { read_only, secret_name, secret_namespace, share_name } =
        super::take(&mut spec.azure_file);
    let of_claim = || spec.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
    let namespace = secret_namespace.or_else(of_claim).filter(|namespace| !namespace.is_empty());
    let namespace = namespace.ok_or_else(|| {
        let reason = "it is not set, and the volume has no claimRef with a namespace; set one of them";
        Error::invalid("azureFile.secretNamespace", reason)
    })?;
    Ok(share(group.as_deref().unwrap_or_default(), &secret_name, &share_name, &name, &namespace, read_only))
}

pub(super) fn inline(volume: &Volume, pod_namespace: &str) -> CSIPersistentVolumeSource {
    let source = super::of(&volume.azure_file);
    let namespace = if pod_namespace.is_empty() { DEFAULT_NAMESPACE } else { pod_namespace };
    share("", &source.secret_name, &source.share_name, &volume.name, namespace, source.read_only)
}

fn share(
    group: &str,
    secret: &str,
    share: &str,
    volume: &str,
    namespace: &str,
    read_only: Option<bool>,
) -> CSIPersistentVolumeSource {
    let handle = format!("{group}#{}#{share}#{volume}#{namespace}", account(secret));
    CSIPersistentVolumeSource {
        volume_attributes: super::attributes([("sharename", Some(share.to_owned()))]),
        node_stage_secret_ref: Some(SecretReference {
            name: Some(secret.to_owned()),
            namespace: Some(namespace.to_owned()),
        }),
        ..super::csi(InTreePlugin::AzureFile, handle, None, read_only)
    }
}

/// The storage account in the usual name of its secret, `azure-storage-account-ACCOUNT-secret`.
fn account(secret: &str) -> &str {
    let account = secret.split_once("azure-storage-account-");
    let account = account.and_then(|(_, rest)| Some(rest.rsplit_once("-secret")?.0));
    account.filter(|account| !account.is_empty()).unwrap_or(secret)
}

pub(super) fn in_tree(volume: &mut PersistentVolume, csi: CSIPersistentVolumeSource) -> Result<()> {
    let attribute = |wanted: &str| {
        let mut all = csi.volume_attributes.iter().flatten();
        all.find(|(key, _)| key.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.clone())
    };
    let mut source = AzureFilePersistentVolumeSource {
        read_only: csi.read_only,
        share_name: attribute("sharename").unwrap_or_default(),
        secret_name: attribute("secretname").unwrap_or_default(),
        secret_namespace: attribute("secretnamespace"),
    };
    if let Some(secret) = csi.node_stage_secret_ref.as_ref()
        && let Some(name) = secret.name.clone().filter(|name| !name.is_empty())
    {
        source.secret_name = name;
        source.secret_namespace = Some(secret.namespace.clone().unwrap_or_default());
    }
    if source.share_name.is_empty() || source.secret_name.is_empty() {
        let parts: Vec<&str> = csi.volume_handle.split('#').collect();
        let &[group, account, share, ..] = parts.as_slice() else {
            let reason = "it has to be GROUP#ACCOUNT#SHARE, because the share or the secret is not named";
            return Err(Error::invalid(format!("csi.volumeHandle: {}", csi.volume_handle), reason));
        };
        if source.share_name.is_empty() {
            share.clone_into(&mut source.share_name);
        }
        if source.secret_name.is_empty() {
            source.secret_name = format!("azure-storage-account-{account}-secret");
        }
        if !group.is_empty() {
            let annotations = volume.metadata.annotations.get_or_insert_default();
            annotations.insert(RESOURCE_GROUP.to_owned(), group.to_owned());
        }
    }
    source.secret_namespace.get_or_insert_with(|| DEFAULT_NAMESPACE.to_owned());
    volume.spec.get_or_insert_default().azure_file = Some(source);
    Ok(())
}
