//! What a run is told.

use std::path::PathBuf;
use std::time::Duration;

use csi_core::Endpoint;
use csi_proto::v1::volume_capability::MountVolume;

use crate::settings::{MountAccess, Pairs, Settings};
use crate::test::Test;

/// A conformance run against a driver; see the crate for an example.
#[derive(Debug, Clone)]
pub struct Kit(pub(crate) Settings);

impl Kit {
    /// Tests the driver that serves here.
    pub fn new(endpoint: Endpoint) -> Self {
        Self(Settings {
            endpoint,
            controller_endpoint: None,
            second_node: None,
            staging: None,
            target: None,
            mount_access: MountAccess::Here,
            secrets: Pairs::default(),
            parameters: Pairs::default(),
            mutable_parameters: Pairs::default(),
            volume: None,
            unwell_volume: None,
            ephemeral: None,
            mount: MountVolume::default(),
            size: 128 << 20,
            deadline: Duration::from_secs(60),
            journal: None,
            only: vec![],
            skip: vec![],
        })
    }

    /// Where the controller serves, if not on the same socket as the node.
    #[must_use]
    pub fn controller(mut self, endpoint: Endpoint) -> Self {
        self.0.controller_endpoint = Some(endpoint);
        self
    }

    /// Another node of the same driver, for what takes two. It is asked who it is, and nothing is mounted there.
    #[must_use]
    pub fn second_node(mut self, endpoint: Endpoint) -> Self {
        self.0.second_node = Some(endpoint);
        self
    }

    /// An existing directory in which volumes are staged. Without this or [`target`](Self::target), no volume is put
    /// on the node.
    #[must_use]
    pub fn staging(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.staging = Some(directory.into());
        self
    }

    /// An existing directory in which volumes are published.
    #[must_use]
    pub fn target(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.target = Some(directory.into());
        self
    }

    /// Whether the kit sees the driver's mounts.
    #[must_use]
    pub fn mount_access(mut self, access: MountAccess) -> Self {
        self.0.mount_access = access;
        self
    }

    /// Secrets for the requests that have a field for them.
    #[must_use]
    pub fn secrets(mut self, secrets: Pairs) -> Self {
        self.0.secrets = secrets;
        self
    }

    /// Parameters of the volumes and snapshots that the kit makes.
    #[must_use]
    pub fn parameters(mut self, parameters: Pairs) -> Self {
        self.0.parameters = parameters;
        self
    }

    /// A volume that is there already, with its volume context, for a driver without CREATE_DELETE_VOLUME. It is staged,
    /// published and written to, and never deleted.
    #[must_use]
    pub fn volume(mut self, id: impl Into<String>, context: Pairs) -> Self {
        self.0.volume = Some((id.into(), context));
        self
    }

    /// A volume that something is wrong with, by the driver's own knowledge: without one, health is checked on volumes
    /// that are well. Nothing is done to it.
    #[must_use]
    pub fn unwell_volume(mut self, id: impl Into<String>) -> Self {
        self.0.unwell_volume = Some(id.into());
        self
    }

    /// The driver takes inline ephemeral volumes, with these attributes.
    #[must_use]
    pub fn ephemeral(mut self, attributes: Pairs) -> Self {
        self.0.ephemeral = Some(attributes);
        self
    }

    /// Mutable parameters that the driver takes; without, ControllerModifyVolume is called with bad input only.
    #[must_use]
    pub fn mutable_parameters(mut self, parameters: Pairs) -> Self {
        self.0.mutable_parameters = parameters;
        self
    }

    /// The filesystem of the volumes; the driver's choice without.
    #[must_use]
    pub fn fs_type(mut self, name: impl Into<String>) -> Self {
        self.0.mount.fs_type = name.into();
        self
    }

    /// Options for the mounts of the volumes, each a flag as a StorageClass has them in `mountOptions`: `noexec`, say. They may
    /// hold secrets, and no report shows them. Not `ro`: the volumes are written to.
    #[must_use]
    pub fn mount_flags(mut self, flags: impl IntoIterator<Item: Into<String>>) -> Self {
        self.0.mount.mount_flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// The size of volumes in bytes, 128 MiB without; a driver may make them larger.
    #[must_use]
    pub fn size(mut self, bytes: i64) -> Self {
        self.0.size = bytes;
        self
    }

    /// How long a call may take, 60 s without.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.0.deadline = deadline;
        self
    }

    /// A file in which the run notes what it has made, and that it removes when all is undone.
    /// [`clean_up`](Self::clean_up) reads it.
    #[must_use]
    pub fn journal(mut self, file: impl Into<PathBuf>) -> Self {
        self.0.journal = Some(file.into());
        self
    }

    /// Runs the tests alone whose id, rule or section holds this text; several times: any of them.
    #[must_use]
    pub fn only(mut self, text: impl Into<String>) -> Self {
        self.0.only.push(text.into());
        self
    }

    /// Leaves out the tests whose id, rule or section holds this text.
    #[must_use]
    pub fn skip(mut self, text: impl Into<String>) -> Self {
        self.0.skip.push(text.into());
        self
    }

    /// The tests that the filters choose, in their order.
    pub fn tests(&self) -> Vec<Test> {
        let fits = |test: &Test, text: &String| {
            test.id.contains(text)
                || test.section.contains(text.as_str())
                || test.rules.iter().any(|rule| rule.contains(text.as_str()))
        };
        let mut tests = crate::suite::all();
        tests.retain(|test| {
            (self.0.only.is_empty() || self.0.only.iter().any(|text| fits(test, text)))
                && !self.0.skip.iter().any(|text| fits(test, text))
        });
        tests
    }
}
