//! What is run, and against which driver.

use std::path::PathBuf;
use std::time::Duration;

use csi_proto::Pairs;
use csi_proto::client::Client;

use super::driver::Sockets;
use super::volume_spec::{Places, VolumeSpec};

/// The volumes of a run, and the driver that serves them.
#[derive(Debug)]
pub struct Options {
    pub(crate) sockets: Sockets,
    pub(crate) timeout: Duration,
    pub(crate) places: Option<Places>,
    pub(crate) secrets: Pairs,
    pub(crate) volumes: Vec<VolumeSpec>,
}

impl Options {
    /// The driver at one socket. No volume is put on a node.
    pub fn new(client: Client) -> Self {
        Self::at(Sockets::new(client))
    }

    pub(crate) fn at(sockets: Sockets) -> Self {
        Self {
            sockets,
            timeout: Duration::from_secs(60),
            places: None,
            secrets: Pairs::default(),
            volumes: Vec::new(),
        }
    }

    /// Calls the controller on a socket of its own.
    #[must_use]
    pub fn controller(self, client: Client) -> Self {
        Self { sockets: Sockets { controller: client, ..self.sockets }, ..self }
    }

    /// Sets the limit of each call, which is 60 seconds otherwise. If a driver hangs, the step fails.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Puts the volumes on this node, if the driver has a node service: stages them below one existing
    /// directory, and publishes them below the other. The run creates a directory with the volume's name in
    /// each.
    #[must_use]
    pub fn places(self, staging: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self { places: Some(Places { staging: staging.into(), target: target.into() }), ..self }
    }

    /// Sends these secrets with every call that takes some. Neither the report nor an error shows them, even if
    /// the driver repeats them.
    #[must_use]
    pub fn secrets(self, secrets: Pairs) -> Self {
        Self { secrets, ..self }
    }

    /// Runs the life of this volume, after those of the volumes before it.
    #[must_use]
    pub fn volume(mut self, volume: VolumeSpec) -> Self {
        self.volumes.push(volume);
        self
    }
}
