//! The options of a volume, as the callers make them (`NewOptionsForDriver` in driver-call.go): those of the
//! PersistentVolume, and the callers' own, which begin with `kubernetes.io/`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use csi_proto::v1::VolumeCapability;
use csi_proto::v1::volume_capability::{AccessType, access_mode::Mode};

const CALLERS: &str = "kubernetes.io/";
const SECRET: &str = "kubernetes.io/secret/";
const NAME: &str = "kubernetes.io/pvOrVolumeName";
const READ_WRITE: &str = "kubernetes.io/readwrite";
/// What a driver receives about the pod, by the callers' names (`csi_attacher`'s podInfo in Kubernetes).
const POD: [(&str, &str); 4] = [
    ("kubernetes.io/pod.name", "csi.storage.k8s.io/pod.name"),
    ("kubernetes.io/pod.namespace", "csi.storage.k8s.io/pod.namespace"),
    ("kubernetes.io/pod.uid", "csi.storage.k8s.io/pod.uid"),
    ("kubernetes.io/serviceAccount.name", "csi.storage.k8s.io/serviceAccount.name"),
];

/// The options of one volume. It has no `Debug`: there are secrets in it.
pub(crate) struct Options {
    /// The name of the PersistentVolume, or of the volume in its pod.
    pub(crate) name: String,
    pub(crate) volume_id: String,
    pub(crate) volume_context: BTreeMap<String, String>,
    pub(crate) pod: BTreeMap<String, String>,
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) fs_type: String,
    pub(crate) is_read_only: bool,
    /// The group that must be able to use the files.
    pub(crate) group: String,
}

impl Options {
    /// Reads the options; `handle` is the one that has the volume's id. No error shows a value.
    pub(crate) fn read(text: &str, handle: &str) -> Result<Self, String> {
        // The parser's own message can quote a value.
        let mut all: BTreeMap<String, String> = serde_json::from_str(text).map_err(|error| {
            format!("the options are not a JSON object of texts (column {})", error.column())
        })?;
        let name = all.remove(NAME).unwrap_or_default();
        let volume_id = all.remove(handle).unwrap_or_else(|| name.clone());
        if volume_id.is_empty() {
            return Err(format!(
                "the options have neither {handle} nor {NAME}: add {handle}, the volume's id"
            ));
        }
        let is_read_only = match all.remove(READ_WRITE).as_deref() {
            Some("ro") => true,
            Some("rw") | None => false,
            Some(_) => return Err(format!("the option {READ_WRITE} is neither ro nor rw")),
        };
        let mut secrets = BTreeMap::new();
        for (key, value) in all.iter().filter_map(|(key, value)| Some((key.strip_prefix(SECRET)?, value))) {
            let value = STANDARD.decode(value).ok().and_then(|value| String::from_utf8(value).ok());
            let value = value.ok_or_else(|| format!("the secret {key} is not base64 of a text in UTF-8"))?;
            secrets.insert(key.to_owned(), value);
        }
        let pod = POD.iter().filter_map(|(key, csi)| Some(((*csi).to_owned(), all.get(*key)?.clone())));
        Ok(Self {
            pod: pod.collect(),
            fs_type: all.remove("kubernetes.io/fsType").unwrap_or_default(),
            group: all.remove("kubernetes.io/mounterArgs.FsGroup").unwrap_or_default(),
            volume_context: all.into_iter().filter(|(key, _)| !key.starts_with(CALLERS)).collect(),
            name,
            volume_id,
            secrets,
            is_read_only,
        })
    }

    /// How the volume is used. `group` says whether the driver gives the files to a group.
    pub(crate) fn capability(&self, mode: Mode, group: bool) -> VolumeCapability {
        let mut capability = VolumeCapability::mount(mode);
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.fs_type.clone_from(&self.fs_type);
            if group {
                mount.volume_mount_group.clone_from(&self.group);
            }
        }
        capability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_the_context_without_the_callers_own() {
        let text = r#"{"kubernetes.io/fsType":"xfs","kubernetes.io/pvOrVolumeName":"pv-1","share":"a",
            "kubernetes.io/readwrite":"ro","kubernetes.io/secret/password":"aHVudGVyMg==","id":"vol/1",
            "kubernetes.io/pod.uid":"u","kubernetes.io/mounterArgs.FsGroup":"2000","kubernetes.io/new":"x"}"#;
        let options = Options::read(text, "id").unwrap();
        assert_eq!((&*options.name, &*options.volume_id), ("pv-1", "vol/1"));
        assert_eq!(options.volume_context, [("share".to_owned(), "a".to_owned())].into());
        assert_eq!(options.pod, [("csi.storage.k8s.io/pod.uid".to_owned(), "u".to_owned())].into());
        assert_eq!(options.secrets["password"], "hunter2");
        assert!(options.is_read_only);
        assert_eq!(Options::read(text, "handle").unwrap().volume_id, "pv-1");
        let group = |driver| match options.capability(Mode::SingleNodeWriter, driver).access_type {
            Some(AccessType::Mount(mount)) => (mount.fs_type, mount.volume_mount_group),
            _ => panic!(),
        };
        assert_eq!(group(true), ("xfs".to_owned(), "2000".to_owned()));
        assert_eq!(group(false), ("xfs".to_owned(), String::new()));
    }

    #[test]
    fn errors_name_the_field_and_show_no_value() {
        for (text, due) in [
            ("hunter2", "the options are not a JSON object"),
            (r#"{"a":["hunter2"]}"#, "the options are not a JSON object"),
            (r#"{"kubernetes.io/secret/password":"hunter2"}"#, "neither id nor"),
            (r#"{"id":"v","kubernetes.io/secret/password":"hunter2"}"#, "the secret password is not base64"),
            (r#"{"id":"v","kubernetes.io/readwrite":"hunter2"}"#, "the option kubernetes.io/readwrite"),
        ] {
            let error = Options::read(text, "id").err().unwrap();
            assert!(error.contains(due) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
