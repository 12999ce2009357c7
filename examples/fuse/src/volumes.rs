//! Where the files of the volumes are.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use csi_core::{Host, Result, prelude::*};

use crate::flatfs::{self, Wish};

/// A directory of the node, or flat-store, which pods can reach.
#[derive(Debug, Clone)]
pub enum Volumes {
    /// The directory.
    Directory(PathBuf),
    /// `HOST:PORT` of flat-store.
    Server(String),
}

impl Volumes {
    /// The directory of the node, if it is one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Server(_) => None,
        }
    }

    /// The STORE of flatfs.
    pub(crate) fn store(&self, id: &VolumeId) -> Result<OsString> {
        let name = id.as_file_name()?;
        Ok(match self {
            Self::Directory(directory) => directory.join(name).into(),
            Self::Server(server) => format!("flat://{server}/{name}").into(),
        })
    }

    pub(crate) async fn has(&self, id: &VolumeId) -> Result<bool> {
        match self {
            Self::Directory(directory) => {
                let place = directory.join(id.as_file_name()?);
                tokio::fs::try_exists(&place).await.at("look for", &place)
            }
            Self::Server(server) => ask(server, Wish::Find, id).await,
        }
    }

    pub(crate) async fn make(&self, id: &VolumeId) -> Result<()> {
        match self {
            Self::Directory(directory) => {
                let place = directory.join(id.as_file_name()?);
                tokio::fs::create_dir_all(&place).await.at("create", &place)
            }
            Self::Server(server) => ask(server, Wish::Make, id).await.map(drop),
        }
    }

    pub(crate) async fn remove(&self, host: &Host, id: &VolumeId) -> Result<()> {
        match self {
            Self::Directory(directory) => remove_tree(host, directory.join(id.as_file_name()?)).await,
            Self::Server(server) => ask(server, Wish::Remove, id).await.map(drop),
        }
    }
}

/// Returns whether the server has the volume.
async fn ask(server: &str, wish: Wish, id: &VolumeId) -> Result<bool> {
    let server = server.to_owned();
    let name = id.as_file_name()?.to_owned();
    blocking(move || match flatfs::ask(&server, wish, &name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::Unavailable(error.to_string().into())),
    })
    .await
}
