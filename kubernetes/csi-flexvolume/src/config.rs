//! The file beside the executable: `DRIVER.conf` for the executable `DRIVER`. The callers pass no flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::Endpoint;
use csi_proto::v1::volume_capability::access_mode::Mode;

pub(crate) struct Config {
    pub(crate) file: PathBuf,
    pub(crate) socket: Endpoint,
    pub(crate) records: PathBuf,
    pub(crate) staging: PathBuf,
    /// The option that has the volume's id.
    pub(crate) volume_handle: String,
    /// The access mode of all volumes; `None` for the one that Kubernetes chooses for ReadWriteOnce.
    pub(crate) access_mode: Option<Mode>,
    /// The time limit of a call to the driver, and of the wait for another command on the same volume.
    pub(crate) timeout: Duration,
    /// The capabilities in the answer to `init`. Asking the driver for them would fail while the kubelet starts
    /// before the driver, and the kubelet would then ignore the executable.
    pub(crate) capabilities: BTreeMap<&'static str, bool>,
}

/// The capabilities of `DriverCapabilities` in driver-call.go, with the callers' defaults. Only `attach` differs:
/// most drivers don't attach, and a volume that waits for an attach that nobody does never starts.
const CAPABILITIES: [(&str, bool); 5] = [
    ("attach", false),
    ("fsGroup", true),
    ("requiresFSResize", true),
    ("selinuxRelabel", true),
    ("supportsMetrics", false),
];

impl Config {
    pub(crate) fn beside(program: &Path) -> Result<Self, String> {
        let mut file = program.as_os_str().to_owned();
        file.push(".conf");
        let file = PathBuf::from(file);
        let text = std::fs::read_to_string(&file).map_err(|error| {
            format!("{}: {error}; create it with a line socket=/path/of/the/driver/csi.sock", file.display())
        })?;
        let folder = program.parent().and_then(|folder| folder.canonicalize().ok());
        let name = folder.as_ref().and_then(|folder| folder.file_name()?.to_str());
        Self::parse(&text, &file, name.unwrap_or("csi-flexvolume"))
            .map_err(|why| format!("{}: {why}", file.display()))
    }

    /// Parses the file's text; `name` is that of its directory, `VENDOR~DRIVER`.
    fn parse(text: &str, file: &Path, name: &str) -> Result<Self, String> {
        let mut socket = None;
        let mut config = Self {
            file: file.to_owned(),
            socket: "/-".parse().expect("a path"),
            records: Path::new("/var/lib/csi-flexvolume").join(name),
            staging: Path::new("/var/lib/kubelet/plugins/kubernetes.io/flexvolume/staging").join(name),
            volume_handle: "volumeHandle".to_owned(),
            access_mode: None,
            timeout: Duration::from_secs(120),
            capabilities: CAPABILITIES.into(),
        };
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| format!("line {}: {why}", at + 1);
            let (key, value) = line.split_once('=').ok_or_else(|| wrong("write key=value"))?;
            let key = key.trim();
            let value = value.trim();
            let path = || match Path::new(value) {
                path if path.is_absolute() => Ok(path.to_owned()),
                _ => Err(wrong(&format!("{key}: write an absolute path"))),
            };
            match key {
                "socket" => socket = Some(value.parse().map_err(|error| wrong(&format!("socket: {error}")))?),
                "records" => config.records = path()?,
                "staging" => config.staging = path()?,
                "volumeHandle" if !value.is_empty() => config.volume_handle = value.to_owned(),
                "accessMode" => match Mode::from_str_name(value) {
                    Some(mode) if mode != Mode::Unknown => config.access_mode = Some(mode),
                    _ => return Err(wrong("accessMode: write one of CSI, such as MULTI_NODE_MULTI_WRITER")),
                },
                "timeout" => match value.parse() {
                    Ok(seconds @ 1..=3600) => config.timeout = Duration::from_secs(seconds),
                    _ => return Err(wrong("timeout: write seconds, from 1 to 3600")),
                },
                _ => {
                    let Some(capability) = config.capabilities.get_mut(key) else {
                        let known = CAPABILITIES.map(|(name, _)| name).join(", ");
                        return Err(wrong(&format!(
                            "{key:?} is unknown; known are socket, records, staging, volumeHandle, accessMode, \
                             timeout, {known}"
                        )));
                    };
                    *capability = value.parse().map_err(|_| wrong(&format!("{key}: write true or false")))?;
                }
            }
        }
        let socket = socket.ok_or("socket is missing: write socket=/path/of/the/driver/csi.sock")?;
        Ok(Self { socket, ..config })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/x/d.conf"), "v~d")
    }

    #[test]
    fn one_line_is_enough() {
        let config = parse("# of the node\nsocket = /run/csi.sock\n").unwrap();
        assert_eq!(config.socket.path(), Path::new("/run/csi.sock"));
        assert_eq!(config.records, Path::new("/var/lib/csi-flexvolume/v~d"));
        assert!(config.staging.ends_with("flexvolume/staging/v~d"));
        assert!(!config.capabilities["attach"] && config.capabilities["fsGroup"]);
    }

    #[test]
    fn each_mistake_names_its_line_and_what_to_write() {
        for (text, due) in [
            ("", "socket is missing: write socket="),
            ("socket=/s\nattach", "line 2: write key=value"),
            ("socket=tcp://x", "line 1: socket: "),
            ("socket=/s\nstaging=x", "line 2: staging: write an absolute path"),
            ("socket=/s\naccessMode=RWO", "line 2: accessMode: write one of CSI"),
            ("socket=/s\ntimeout=0", "line 2: timeout: write seconds"),
            ("socket=/s\nfsGroup=yes", "line 2: fsGroup: write true or false"),
            ("socket=/s\nfsgroup=true", "line 2: \"fsgroup\" is unknown; known are socket"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.starts_with(due), "{text}: {error}");
        }
    }
}
