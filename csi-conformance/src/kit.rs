//! A run: what it is told, what it finds out about the driver, and the tests one after the other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use csi_core::{ControllerCapability, Endpoint, NodeCapability};
use csi_proto::v1;
use v1::plugin_capability::service::Type as PluginService;

use crate::clean_up::clean_up;
use crate::cx::Cx;
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::offers::numbers;
use crate::report::{Entry, Report, Verdict};
use crate::settings::{MountAccess, Pairs, Settings};
use crate::test::{Kind, Need, Test};

/// A conformance run against a driver; see the crate for an example.
#[derive(Debug, Clone)]
pub struct Kit(Settings);

/// The run could not take place; nothing is said about the driver.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct CouldNotRun(String);

/// How a run goes on, for whoever watches it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The test with this number of so many begins.
    Begins(&'a Test, usize, usize),
    /// It is over.
    Ended(&'a Entry),
}

impl Kit {
    /// Tests the driver that serves here.
    pub fn new(endpoint: Endpoint) -> Self {
        Self(Settings {
            endpoint,
            controller_endpoint: None,
            staging: None,
            target: None,
            mount_access: MountAccess::Here,
            secrets: Pairs::default(),
            parameters: Pairs::default(),
            mutable_parameters: Pairs::default(),
            fs_type: String::new(),
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

    /// Mutable parameters that the driver takes; without, ControllerModifyVolume is called with bad input only.
    #[must_use]
    pub fn mutable_parameters(mut self, parameters: Pairs) -> Self {
        self.0.mutable_parameters = parameters;
        self
    }

    /// The filesystem of the volumes; the driver's choice without.
    #[must_use]
    pub fn fs_type(mut self, name: impl Into<String>) -> Self {
        self.0.fs_type = name.into();
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

    /// Runs the tests and undoes what they made.
    ///
    /// # Errors
    /// When the driver does not become ready, or does not say what it can do.
    pub async fn run(self) -> Result<Report, CouldNotRun> {
        self.run_watched(|_| {}).await
    }

    /// The same, watched.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_watched(self, mut watch: impl FnMut(Progress<'_>)) -> Result<Report, CouldNotRun> {
        let tests = self.tests();
        if tests.is_empty() {
            return Err(CouldNotRun("no test fits the filters".to_owned()));
        }
        let cx = self.meet().await?;
        let (mut entries, start) = (Vec::new(), Instant::now());
        for (at, test) in tests.iter().enumerate() {
            watch(Progress::Begins(test, at + 1, tests.len()));
            let entry = run_one(&cx, test).await;
            watch(Progress::Ended(&entry));
            entries.push(entry);
        }
        let Self(settings) = self;
        Ok(Report {
            driver: cx.offers.driver.clone(),
            version: cx.offers.version.clone(),
            endpoint: settings.endpoint.to_string(),
            entries,
            took: start.elapsed(),
        })
    }

    /// Finishes a run that died: undoes what its journal names. Answers with what could not be undone.
    ///
    /// # Errors
    /// When there is no journal to read, or the driver does not become ready.
    pub async fn clean_up(self) -> Result<Vec<String>, CouldNotRun> {
        let cx = self.connected().await?;
        let left = clean_up(&cx).await;
        crate::clean_up::remove_staging(&cx, crate::cx::NAMES);
        Ok(left)
    }

    async fn connected(&self) -> Result<Cx, CouldNotRun> {
        for directory in [&self.0.staging, &self.0.target].into_iter().flatten() {
            if self.0.mount_access == MountAccess::Here && !directory.is_dir() {
                return Err(CouldNotRun(format!("{} is no directory: make it first", directory.display())));
            }
            if !directory.is_absolute() || directory.to_str().is_none() {
                return Err(CouldNotRun(format!(
                    "{}: an absolute path in UTF-8 is needed",
                    directory.display()
                )));
            }
        }
        let ledger = Ledger::open(self.0.journal.clone())
            .map_err(|error| CouldNotRun(format!("the journal can't be read: {error}")))?;
        let cx = Cx::new(self.0.clone(), ledger);
        let ready = cx.client().ready(self.0.deadline).await;
        ready.map_err(|error| CouldNotRun(format!("{}: {error}", self.0.endpoint)))?;
        Ok(cx)
    }

    /// Finds out what the driver can do.
    async fn meet(&self) -> Result<Cx, CouldNotRun> {
        let mut cx = self.connected().await?;
        if let Some(journal) = cx.ledger.journal().filter(|_| !cx.ledger.all().is_empty()) {
            let path = journal.display();
            return Err(CouldNotRun(format!(
                "{path} is from a run that died: clean up after it first, or remove it"
            )));
        }
        let told =
            |what: &str, cx: &Cx, refusal| CouldNotRun(format!("{what} failed: {}", cx.told(&refusal)));
        let info = cx.call(v1::GetPluginInfoRequest {}).await.map_err(|r| told("GetPluginInfo", &cx, r))?;
        let plugin = cx.call(v1::GetPluginCapabilitiesRequest {}).await;
        let plugin = plugin.map_err(|r| told("GetPluginCapabilities", &cx, r))?;
        let mut offers =
            crate::offers::Offers { driver: info.name, version: info.vendor_version, ..Default::default() };
        offers.take_plugin(plugin);
        if offers.plugin(PluginService::ControllerService) {
            let answer = cx.call(v1::ControllerGetCapabilitiesRequest {}).await;
            let answer = answer.map_err(|r| told("ControllerGetCapabilities", &cx, r))?;
            offers.controller = numbers!(answer, v1::controller_service_capability::Type::Rpc);
        }
        if offers.plugin(PluginService::GroupControllerService) {
            let answer = cx.call(v1::GroupControllerGetCapabilitiesRequest {}).await;
            let answer = answer.map_err(|r| told("GroupControllerGetCapabilities", &cx, r))?;
            offers.group = numbers!(answer, v1::group_controller_service_capability::Type::Rpc);
        }
        if let Ok(answer) = cx.call(v1::NodeGetCapabilitiesRequest {}).await {
            offers.has_node = true;
            offers.node = numbers!(answer, v1::node_service_capability::Type::Rpc);
            offers.node_id =
                cx.call(v1::NodeGetInfoRequest {}).await.map(|info| info.node_id).unwrap_or_default();
        }
        *cx.facts().0 = offers;
        survey(&mut cx).await;
        Ok(cx)
    }
}

/// Which ways of use the driver supports: a volume of each kind is made, and asked about in each mode.
async fn survey(cx: &mut Cx) {
    if !cx.offers.controller(ControllerCapability::CreateDeleteVolume) {
        return;
    }
    let several = cx.offers.controller(ControllerCapability::SingleNodeMultiWriter);
    for kind in [Kind::Files, Kind::Device] {
        for first in [1, 5, 3, 2] {
            let volume_capabilities = vec![cx.capability_in(kind, first)];
            let request = v1::CreateVolumeRequest { volume_capabilities, ..cx.create(&cx.name()) };
            let Ok(v1::CreateVolumeResponse { volume: Some(volume) }) = cx.call(request).await else {
                continue;
            };
            let mut found = vec![first];
            for mode in (1..=7).filter(|mode| *mode <= 5 || several) {
                let request = v1::ValidateVolumeCapabilitiesRequest {
                    volume_id: volume.volume_id.clone(),
                    volume_context: volume.volume_context.clone(),
                    volume_capabilities: vec![cx.capability_in(kind, mode)],
                    ..Default::default()
                };
                if cx.call(request).await.is_ok_and(|answer| answer.confirmed.is_some()) {
                    found.push(mode);
                }
            }
            clean_up(cx).await;
            cx.facts().1.extend(found.into_iter().map(|mode| (kind, mode)));
            break;
        }
    }
}

async fn run_one(cx: &Cx, test: &Test) -> Entry {
    let start = Instant::now();
    let verdict = match test.needs.iter().find_map(|need| lacking(cx, *need)) {
        Some(reason) => Verdict::DoesNotApply(reason),
        None => {
            let outcome = (test.run)(cx).await;
            let left = clean_up(cx).await;
            match (outcome, left.is_empty()) {
                (Err(failure), _) => Verdict::Failed(*failure),
                (Ok(()), true) => Verdict::Passed,
                (Ok(()), false) => {
                    Verdict::Failed(Failure::new("all that the test made can be undone", left.join("; ")))
                }
            }
        }
    };
    Entry { test: test.clone(), verdict, took: start.elapsed() }
}

/// Why a need is not met.
fn lacking(cx: &Cx, need: Need) -> Option<String> {
    let offers = &cx.offers;
    let unless = |holds: bool, reason: &str| (!holds).then(|| reason.to_owned());
    let offered = |holds: bool, name: &str| (!holds).then(|| format!("the driver does not offer {name}"));
    match need {
        Need::Plugin(one) => offered(offers.plugin(one), one.as_str_name()),
        Need::Controller(one) => offered(offers.controller(one), one.as_str_name()),
        Need::Node(one) => offered(offers.node(one), one.as_str_name()),
        Need::Groups => offered(offers.group.contains(&1), "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
        Need::NodeService => unless(offers.has_node, "the node service does not answer on this socket"),
        Need::Mounts => unless(
            cfg!(target_os = "linux") && cx.settings.mount_access == MountAccess::Here,
            "the kit does not see the node's mounts",
        ),
        Need::Volume(kind) => {
            let paths = cx.settings.target.is_some()
                && (cx.settings.staging.is_some() || !offers.node(NodeCapability::StageUnstageVolume));
            offered(offers.controller(ControllerCapability::CreateDeleteVolume), "CREATE_DELETE_VOLUME")
                .or_else(|| unless(offers.has_node, "the node service does not answer on this socket"))
                .or_else(|| unless(paths, "no directories for staging and target were given"))
                .or_else(|| {
                    let what = if kind == Kind::Files { "filesystems" } else { "raw devices" };
                    let has = cx.modes.iter().any(|(one, _)| *one == kind);
                    (!has).then(|| format!("the driver makes no volumes for {what}"))
                })
        }
    }
}
