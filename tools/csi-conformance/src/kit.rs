//! The settings of a run.

use std::path::PathBuf;
use std::time::Duration;

use csi_proto::v1::volume_capability::MountVolume;
use csi_proto::{Endpoint, Pairs};

use crate::settings::{MountAccess, Settings};
use crate::test::Test;

/// A time without an end: 100 years. No clock counts to the end of `Duration::MAX`.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A conformance run against a driver; the crate's documentation has an example.
#[derive(Debug, Clone)]
pub struct Kit(pub(crate) Settings);

impl Kit {
    /// Creates a kit for the driver on this endpoint.
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
            unhealthy_volume: None,
            ephemeral: None,
            mount: MountVolume::default(),
            size: 128 << 20,
            enforces_size: false,
            deadline: Duration::from_secs(60),
            journal: None,
            strict: false,
            only: vec![],
            skip: vec![],
        })
    }

    /// Sets the endpoint of the controller, if it is not the node's.
    #[must_use]
    pub fn controller(mut self, endpoint: Endpoint) -> Self {
        self.0.controller_endpoint = Some(endpoint);
        self
    }

    /// Sets the endpoint of the same driver on another node, for tests that need two. Only its node id is
    /// read, and nothing is mounted there.
    #[must_use]
    pub fn second_node(mut self, endpoint: Endpoint) -> Self {
        self.0.second_node = Some(endpoint);
        self
    }

    /// Sets an existing directory in which volumes are staged. Volumes are put on the node only with a
    /// [`target`](Self::target), and with this if the driver has STAGE_UNSTAGE_VOLUME.
    #[must_use]
    pub fn staging(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.staging = Some(directory.into());
        self
    }

    /// Sets an existing directory in which volumes are published.
    #[must_use]
    pub fn target(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.target = Some(directory.into());
        self
    }

    /// Sets whether the kit sees the driver's mounts.
    #[must_use]
    pub fn mount_access(mut self, access: MountAccess) -> Self {
        self.0.mount_access = access;
        self
    }

    /// Sets the secrets for the requests that have a field for them.
    #[must_use]
    pub fn secrets(mut self, secrets: Pairs) -> Self {
        self.0.secrets = secrets;
        self
    }

    /// Sets the parameters of the volumes and snapshots that the kit creates.
    #[must_use]
    pub fn parameters(mut self, parameters: Pairs) -> Self {
        self.0.parameters = parameters;
        self
    }

    /// Names an existing volume, with its volume context, for a driver without CREATE_DELETE_VOLUME. The
    /// volume is staged, published and written to, and never deleted.
    #[must_use]
    pub fn volume(mut self, id: impl Into<String>, context: Pairs) -> Self {
        self.0.volume = Some((id.into(), context));
        self
    }

    /// Names a volume that the driver reports as unhealthy. Without one, health is tested on healthy volumes
    /// only. The volume is never changed.
    #[must_use]
    pub fn unhealthy_volume(mut self, id: impl Into<String>) -> Self {
        self.0.unhealthy_volume = Some(id.into());
        self
    }

    /// Enables tests of inline ephemeral volumes, with these attributes.
    #[must_use]
    pub fn ephemeral(mut self, attributes: Pairs) -> Self {
        self.0.ephemeral = Some(attributes);
        self
    }

    /// Sets mutable parameters that the driver accepts. Without them, ControllerModifyVolume is called with
    /// bad input only.
    #[must_use]
    pub fn mutable_parameters(mut self, parameters: Pairs) -> Self {
        self.0.mutable_parameters = parameters;
        self
    }

    /// Sets the filesystem of the volumes. By default the driver chooses it.
    #[must_use]
    pub fn fs_type(mut self, name: impl Into<String>) -> Self {
        self.0.mount.fs_type = name.into();
        self
    }

    /// Adds mount options for the volumes, each one a flag as in a StorageClass's `mountOptions`, for example
    /// `noexec`. They can contain secrets, and no report shows them. Not `ro`: the volumes are written to.
    #[must_use]
    pub fn mount_flags(mut self, flags: impl IntoIterator<Item: Into<String>>) -> Self {
        self.0.mount.mount_flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// Sets the size of volumes in bytes; the default is 128 MiB. A driver is allowed to make them larger.
    #[must_use]
    pub fn size(mut self, bytes: i64) -> Self {
        self.0.size = bytes;
        self
    }

    /// Says that the driver limits each volume to its size. The run then writes more than the size to volumes
    /// with a filesystem, which must fail with ENOSPC or EDQUOT: new, expanded, cloned and restored ones. No
    /// capability tells it, because the spec does not require it.
    #[must_use]
    pub fn enforces_size(mut self) -> Self {
        self.0.enforces_size = true;
        self
    }

    /// Sets the deadline of a call; the default is 60 s. A plugin can take 60 s to get ready, also with a shorter one.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.0.deadline = deadline.min(LONGEST);
        self
    }

    /// Lets failures of every [`Level`](crate::Level) fail the run, not of MUST alone.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.0.strict = true;
        self
    }

    /// Sets the file that lists what the run has created. The run removes it when everything is undone.
    /// [`clean_up`](Self::clean_up) reads it.
    #[must_use]
    pub fn journal(mut self, file: impl Into<PathBuf>) -> Self {
        self.0.journal = Some(file.into());
        self
    }

    /// Runs only the tests whose id, rule or section contains this text. Several calls add up.
    #[must_use]
    pub fn only(mut self, text: impl Into<String>) -> Self {
        self.0.only.push(text.into());
        self
    }

    /// Leaves out the tests whose id, rule or section contains this text.
    #[must_use]
    pub fn skip(mut self, text: impl Into<String>) -> Self {
        self.0.skip.push(text.into());
        self
    }

    /// The tests that the filters select, in the order in which they run.
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
