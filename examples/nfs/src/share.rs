//! A share, the options of the connection to its server, and ids that name a share.

use std::fmt;
use std::path::Path;

use csi_core::mount::MountOptions;
use csi_core::mount::flow::shared::SharedSource;
use csi_core::types::{IdCodec, SnapshotId};
use csi_core::{Error, Result, VolumeId};

use crate::parameters::{OnDelete, sub_dir_of};
use crate::records::is_key;

/// The options that are needed to reach a server. They are part of a volume's id, so that DeleteVolume, which
/// gets only the id, can mount the share.
const CONNECTION: [&str; 9] =
    ["nfsvers", "vers", "minorversion", "proto", "port", "mountproto", "mountport", "mountvers", "sec"];

/// The options added for the driver's own work on a share: no call waits forever, no lock is taken, and
/// changes by other clients are seen at once.
const AT_WORK: [&str; 7] =
    ["softerr", "timeo=100", "retrans=2", "nolock", "lookupcache=positive", "acdirmin=0", "acdirmax=0"];

/// An id's fields: server, share, the key of the volume or snapshot, and the connection options.
const VOLUMES: IdCodec<(String, String, String, String)> = IdCodec::new("v1");
const SNAPSHOTS: IdCodec<(String, String, String, String)> = IdCodec::new("s1");

/// An exported directory of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) server: String,
    /// An absolute path.
    pub(crate) path: String,
    /// The connection options, for example `nfsvers=4.1,port=2050`.
    connection: String,
}

impl Share {
    pub(crate) fn new(server: &str, path: &str) -> Result<Self> {
        let share = Self { server: server.to_owned(), path: path.to_owned(), connection: String::new() };
        drop(share.source(None)?);
        Ok(share)
    }

    /// Takes the connection options from these mount flags. A flag with a comma in its value is refused.
    pub(crate) fn spoken_to<'a>(mut self, flags: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let named = |flag: &&str| flag.split_once('=').is_some_and(|(key, _)| CONNECTION.contains(&key));
        let mut flags: Vec<&str> = flags.into_iter().filter(named).collect();
        // The id separates the flags by commas, and no value of these options has one.
        if let Some((key, _)) =
            flags.iter().filter(|flag| flag.contains(',')).find_map(|flag| flag.split_once('='))
        {
            let why = format!("{key}: its value has a comma: write each option as a flag of its own");
            return Err(Error::invalid("volume_capabilities.mount.mount_flags", why));
        }
        flags.sort_unstable();
        flags.dedup();
        self.connection = flags.join(",");
        self.options()?;
        Ok(self)
    }

    fn options(&self) -> Result<MountOptions> {
        let flags = self.connection.split(',').filter(|flag| !flag.is_empty());
        MountOptions::parse(flags)
            .map_err(|error| Error::invalid("volume_capabilities.mount.mount_flags", error.to_string()))
    }

    /// The source of a directory below the share, as workloads mount it.
    pub(crate) fn source(&self, sub_dir: Option<&str>) -> Result<SharedSource> {
        let path = Path::new(&self.path).join(sub_dir.unwrap_or_default());
        let path = path.to_str().unwrap_or(&self.path);
        SharedSource::nfs(&self.server, path)
            .map_err(|error| Error::invalid("parameters", format!("server and share: {error}")))
    }

    /// The source of the share, as the driver mounts it for its own work.
    pub(crate) fn at_work(&self) -> Result<SharedSource> {
        let options = MountOptions::parse(AT_WORK)?;
        Ok(self.source(None)?.options(options).requested_options(self.options()?)?)
    }

    pub(crate) fn volume_id(&self, key: &str) -> Result<VolumeId> {
        VOLUMES.encode(&self.fields(key))
    }

    pub(crate) fn snapshot_id(&self, key: &str) -> Result<SnapshotId> {
        SnapshotId::new(SNAPSHOTS.encode(&self.fields(key))?.as_str())
    }

    fn fields(&self, key: &str) -> (String, String, String, String) {
        (self.server.clone(), self.path.clone(), key.to_owned(), self.connection.clone())
    }

    /// Returns the share of a volume, and the volume's key.
    pub(crate) fn of_volume(id: &VolumeId) -> Result<(Self, String)> {
        Self::from_fields(VOLUMES.decode(id)?).ok_or_else(|| Error::VolumeNotFound(id.clone()))
    }

    /// Reads a volume id of csi-driver-nfs, `server#share#subdir#uuid#onDelete`: the share, the directory, and what
    /// becomes of it, if the id says so. The last two fields can be missing.
    pub(crate) fn of_csi_driver_nfs(id: &VolumeId) -> Option<(Self, String, Option<OnDelete>)> {
        let fields: Vec<&str> = id.as_str().split('#').collect();
        let [server, share, sub_dir, rest @ ..] = fields.as_slice() else { return None };
        let on_delete = match rest {
            [] | [_] | [_, ""] => None,
            [_, text] => Some(text.to_lowercase().parse().ok()?),
            _ => return None,
        };
        let share = Self::new(server, &format!("/{}", share.trim_start_matches('/'))).ok()?;
        Some((share, sub_dir_of("volume_id", sub_dir).ok()?, on_delete))
    }

    /// Returns the share of a snapshot, and the snapshot's key.
    pub(crate) fn of_snapshot(id: &SnapshotId) -> Result<(Self, String)> {
        let none = || Error::SnapshotNotFound(id.clone());
        let fields = VolumeId::new(id.as_str()).and_then(|id| SNAPSHOTS.decode(&id)).map_err(|_| none())?;
        Self::from_fields(fields).ok_or_else(none)
    }

    /// `None` for an id that this driver did not make: a request can hold any id.
    fn from_fields(
        (server, path, key, connection): (String, String, String, String),
    ) -> Option<(Self, String)> {
        let share = Self::new(&server, &path).ok()?.spoken_to(connection.split(',')).ok()?;
        let is_ours = share.connection == connection && is_key(&key);
        is_ours.then_some((share, key))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::key;
    use proptest::prelude::*;

    #[test]
    fn ids_come_back_as_the_share_that_they_were_made_of() {
        let share = Share::new("nfs.example.org", "/export/a").unwrap();
        let share =
            share.spoken_to(["nfsvers=4.1", "hard", "port=2050", "nconnect=4", "nfsvers=4.1"]).unwrap();
        let id = share.volume_id("pvc-1").unwrap();
        assert_eq!(id.as_str(), "v1:nfs.example.org:%2Fexport%2Fa:pvc-1:nfsvers=4.1,port=2050");
        assert_eq!(Share::of_volume(&id).unwrap(), (share.clone(), "pvc-1".to_owned()));
        let id = share.snapshot_id("snap-1").unwrap();
        assert_eq!(Share::of_snapshot(&id).unwrap(), (share, "snap-1".to_owned()));
        let six = Share::new("2001:db8::7", "/e").unwrap();
        assert_eq!(Share::of_volume(&six.volume_id("a").unwrap()).unwrap().0, six);
    }

    #[test]
    fn work_is_done_on_a_mount_that_does_not_wait_for_ever() {
        let share = Share::new("192.0.2.7", "/e").unwrap().spoken_to(["nfsvers=3", "hard"]).unwrap();
        let options = format!("{:?}", share.at_work().unwrap());
        for option in ["softerr", "nolock", "nfsvers"] {
            assert!(options.contains(option), "{options}");
        }
        assert!(!options.contains("hard"), "{options}");
    }

    #[test]
    fn an_id_of_csi_driver_nfs_names_a_directory() {
        let read = |id: &str| Share::of_csi_driver_nfs(&VolumeId::new(id).unwrap());
        let share = Share::new("nfs.example.org", "/export/a").unwrap();
        for (id, on_delete) in [
            ("nfs.example.org#export/a#pvc-1", None),
            ("nfs.example.org#export/a#pvc-1#", None),
            ("nfs.example.org#export/a#pvc-1#uuid#", None),
            ("nfs.example.org#export/a#pvc-1##Archive", Some(OnDelete::Archive)),
        ] {
            assert_eq!(read(id), Some((share.clone(), "pvc-1".to_owned(), on_delete)), "{id}");
        }
        for id in ["s#e", "s#e##", "s#e#../up", "s#e#.csi-nfs/volumes", "s#e#a#u#burn", "s#e#a#u#delete#x"] {
            assert_eq!(read(id), None, "{id}");
        }
    }

    #[test]
    fn a_flag_with_a_comma_is_refused_by_name() {
        let share = || Share::new("192.0.2.7", "/e").unwrap();
        for flags in [&["vers=4.1,proto=tcp"][..], &["hard", "sec=krb5,"], &["port=,"]] {
            let error = share().spoken_to(flags.iter().copied()).unwrap_err().to_string();
            assert!(
                error.starts_with("volume_capabilities.mount.mount_flags: ")
                    && error.contains("a flag of its own"),
                "{error}"
            );
            assert!(!error.contains("tcp"), "no value: {error}");
        }
        // The driver does not need the others.
        share().spoken_to(["context=\"a:s0:c1,c2\"", "x,port"]).unwrap();
    }

    proptest! {
        /// Whatever a class and a name contain: an id that is made leads back to the same share and key.
        #[test]
        fn every_id_is_read_back(
            server in "[a-z0-9:.\\[\\]%/,=-]{1,20}|192.0.2.7|\\PC{1,8}",
            path in "/[a-z/%:,=. ]{0,16}|/\\PC{0,8}",
            flags in prop::collection::vec(
                "(nfsvers|vers|port|sec|proto|hard|x)(=[a-z0-9:,=%\" .]{0,8}|)|\\PC{0,6}|vers=\\PC{0,4}", 0..5),
            name in "\\PC{1,60}",
        ) {
            let share = Share::new(&server, &path).and_then(|share| share.spoken_to(flags.iter().map(String::as_str)));
            let Ok(share) = share else { return Ok(()) };
            let key = key(&name);
            if let Ok(id) = share.volume_id(&key) {
                prop_assert_eq!(Share::of_volume(&id).unwrap(), (share.clone(), key.clone()));
            }
            if let Ok(id) = share.snapshot_id(&key) {
                prop_assert_eq!(Share::of_snapshot(&id).unwrap(), (share, key));
            }
        }
    }
}
