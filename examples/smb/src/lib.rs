//! A CSI driver for SMB: whole shares, and volumes that are directories in a share. docs/smb.md says how to use
//! it.
//!
//! The user name and the password come with each call, from a Secret. They go to the kernel only.
use std::sync::Arc;

use csi_core::mount::flow::shared::{self, SharedSource};
use csi_core::mount::{MountOptions, Target};
use csi_core::types::{IdCodec, Secrets};
use csi_core::{Result, prelude::*};
use serde::Deserialize;

/// The driver's name.
pub const NAME: &str = "smb.csi.example.org";

/// The mount flags that are needed to reach a server. They are part of a volume's id, because DeleteVolume gets
/// only the id.
const CONNECTION: [&str; 5] = ["vers", "port", "sec", "seal", "sign"];

/// An id's fields: the share, the name of the volume's directory, and the connection flags.
const IDS: IdCodec<(String, String, String)> = IdCodec::new("v1");

/// The parameters of a StorageClass.
#[derive(Deserialize)]
struct Class {
    /// `//server/share`, or a directory in it.
    source: String,
}

/// The volume context: from CreateVolume, or from the PersistentVolume of a static share, without `subDir`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Context {
    source: String,
    #[serde(default)]
    sub_dir: Option<String>,
}

/// A volume that the controller made: a directory in a share.
struct Place {
    source: String,
    name: String,
    connection: String,
}

impl Place {
    fn new(source: &str, name: &str, flags: &[&str]) -> Result<Self> {
        let is_named = |flag: &&str| CONNECTION.contains(&flag.split('=').next().unwrap_or(flag));
        let mut connection: Vec<&str> = flags.iter().copied().filter(is_named).collect();
        if connection.iter().any(|flag| flag.contains(',')) {
            return Err(Error::invalid(
                "volume_capabilities.mount.mount_flags",
                "a comma is not possible in these flags",
            ));
        }
        connection.sort_unstable();
        connection.dedup();
        let source = source.trim_end_matches('/').to_owned();
        let name = name.to_owned();
        let place = Self { source, name, connection: connection.join(",") };
        place.share(MountOptions::new()).map(|_| place)
    }

    fn fields(&self) -> (String, String, String) {
        (self.source.clone(), self.name.clone(), self.connection.clone())
    }

    /// `None` for an id that this driver did not make.
    fn of(id: &VolumeId) -> Option<Self> {
        let (source, name, connection) = IDS.decode(id).ok()?;
        let flags: Vec<&str> = connection.split(',').filter(|flag| !flag.is_empty()).collect();
        let place = Self::new(&source, &name, &flags).ok()?;
        let is_hash = name.strip_prefix('~').is_some_and(|hash| u128::from_str_radix(hash, 16).is_ok());
        ((is_hash || key(&name) == name) && IDS.encode(&place.fields()).ok()? == *id).then_some(place)
    }

    fn volume(&self) -> Result<Volume> {
        let volume = Volume::new(IDS.encode(&self.fields())?, 0);
        Ok(volume.context("source", &self.source).context("subDir", &self.name))
    }

    /// The share, with these options and those of the connection.
    fn share(&self, options: MountOptions) -> Result<SharedSource> {
        let share = smb("parameters[source]", &self.source)?.options(options);
        let flags = self.connection.split(',').filter(|flag| !flag.is_empty());
        let flags = MountOptions::parse(flags)
            .map_err(|e| Error::invalid("volume_capabilities.mount.mount_flags", e.to_string()))?;
        Ok(share.requested_options(flags)?)
    }

    /// Runs `work` on the volume's directory, which does not necessarily exist, on a mount of its share.
    async fn work<T: Send + 'static>(
        &self,
        secrets: &Secrets,
        work: impl FnOnce(&Target) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let share = self.share(credentials(secrets)?)?;
        let name = self.name.clone();
        blocking(move || {
            let root = shared::open(&share)?;
            work(&root.target(&name)?)
        })
        .await
    }
}

/// The directory of a volume with this name. SMB does not distinguish upper and lower case, and an id is short:
/// a name that is not plain, lower case and short is replaced by a hash (FNV-1a of 128 bits).
fn key(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=48).contains(&name.len()) && name.chars().all(is_plain) {
        return name.to_owned();
    }
    let basis = 0x6c62272e07bb014262b821756295c58d_u128;
    let prime = 0x0000000001000000000000000000013b_u128;
    let hash = name.bytes().fold(basis, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(prime));
    format!("~{hash:032x}")
}

fn smb(field: &str, source: &str) -> Result<SharedSource> {
    SharedSource::smb(source).map_err(|error| Error::invalid(field, error.to_string()))
}

fn credentials(secrets: &Secrets) -> Result<MountOptions> {
    let mut options = MountOptions::new();
    const KEYS: [&str; 3] = ["username", "password", "domain"];
    secrets.check_keys(&KEYS)?;
    for key in KEYS {
        match secrets.get(key) {
            Some(value) => options = options.with_option(key, value)?,
            None if key == "domain" => {}
            None => {
                let text =
                    format!("the secrets have no {key}: the StorageClass must name a Secret that has it");
                return Err(Error::Unauthenticated(text.into()));
            }
        }
    }
    Ok(options)
}

struct Smb(DriverArgs);

#[async_trait]
impl Controller for Smb {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        self.lookup_with_secrets(id, &Secrets::default()).await
    }

    async fn lookup_with_secrets(&self, id: &VolumeId, secrets: &Secrets) -> Result<Option<Volume>> {
        let Some(place) = Place::of(id) else { return Ok(None) };
        let is_there = place.work(secrets, |directory| Ok(directory.is_directory()?)).await?;
        is_there.then(|| place.volume()).transpose()
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && capability.fs_type().is_none_or(|name| matches!(name, "cifs" | "smb3"))
    }
}

#[async_trait]
impl CreateDeleteVolume for Smb {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let Class { source } = request.parameters.parse()?;
        let flags: Vec<&str> =
            request.volume_capabilities.iter().flat_map(VolumeCapability::mount_flags).collect();
        let place = Place::new(&source, &key(request.name.as_str()), &flags)?;
        let volume = place.volume()?;
        place.work(&request.secrets, |directory| Ok(directory.create_dir()?)).await?;
        Ok(volume)
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let Some(place) = Place::of(&request.volume_id) else { return Ok(()) };
        place
            .work(&request.secrets, |directory| directory.remove_tree().map(|_| ()).map_err(Error::from))
            .await
    }
}

#[async_trait]
impl SharedFilesystems for Smb {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.node_info()
    }

    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        if volume.volume_context.get("source").is_none() {
            return Err(Error::VolumeNotFound(volume.volume_id.clone()));
        }
        let Context { source, sub_dir } = volume.volume_context.parse()?;
        let source = match (Place::of(&volume.volume_id), sub_dir) {
            (None, None) => smb("volume_context[source]", &source)?,
            // Not the directory of another volume.
            (Some(place), Some(name)) if place.name == name && place.source == source => {
                smb("volume_context[source]", &format!("{source}/{name}"))?
            }
            _ => return Err(Error::VolumeNotFound(volume.volume_id.clone())),
        };
        let mut options = credentials(&volume.secrets)?;
        if let Some(group) = volume.mount_group()? {
            options = options.with_option("gid", &group.to_string())?;
            options = options.with_option("file_mode", "0770")?.with_option("dir_mode", "0770")?;
        }
        Ok(source.options(options))
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &DriverArgs) -> Plugin {
    let smb = Arc::new(Smb(args.clone()));
    let controller = ControllerService::new(smb.clone()).create_delete_volume().single_node_multi_writer();
    let node = SharedNode::service(smb).volume_mount_group().single_node_multi_writer();
    Plugin::new(NAME, env!("CARGO_PKG_VERSION")).controller(controller).node(node)
}
