//! The sources of health: the calls that the driver offers, in the form of v1.13.0, or else of v1.12.0.

use std::collections::BTreeMap;
use std::fmt;

use csi_proto::{ControllerCapability as ControllerRpc, NodeCapability as NodeRpc, Pairs, Rpc, v1};
use tonic::{Code, Status};

use crate::lifecycle::{Sockets, of_controller, of_node};
use crate::program::output::{Stop, print_error, refused};
use crate::program::pages::Pages;
use crate::secrets::hidden;

/// One problem. The message for people is not part of it, because it can change while the problem lasts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// Who reports it: the plugin, its controller or its node.
    pub(crate) seen_by: &'static str,
    /// The volume's id, or another name of what is unhealthy.
    pub(crate) subject: String,
    pub(crate) status: String,
    pub(crate) reason: String,
}

/// All problems that one source reports, with their messages for people.
pub(crate) type Problems = BTreeMap<Problem, String>;

pub(crate) struct Watched {
    pub(crate) volumes: Vec<String>,
    /// The path at which the only volume is published.
    pub(crate) path: Option<String>,
    pub(crate) secrets: Pairs,
}

/// A call that reports health, of all volumes or of one. The forms of v1.12.0 are the list of volumes, one volume, and
/// its stats.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    rpc: Rpc,
    /// Empty for all.
    volume: String,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.volume.as_str() {
            "" => write!(f, "{}", self.rpc),
            volume => write!(f, "{} {volume}", self.rpc),
        }
    }
}

impl Watched {
    /// The calls to make, by the driver's capabilities.
    ///
    /// # Errors
    /// When the driver does not report its capabilities, or can't report the health of the given volumes.
    pub(crate) async fn sources(&self, sockets: &Sockets) -> Result<Vec<Source>, Stop> {
        let offered = Offered::ask(sockets, &self.secrets).await?;
        let mut sources = vec![Source::of_all(Rpc::Probe)];
        if offered.node(NodeRpc::GetStorageHealth) {
            sources.push(Source::of_all(Rpc::NodeGetStorageHealth));
        }
        if offered.controller(ControllerRpc::ListVolumeHealth) {
            sources.push(Source::of_all(Rpc::ControllerListVolumeHealth));
        } else if offered.condition() && offered.controller(ControllerRpc::ListVolumes) {
            sources.push(Source::of_all(Rpc::ListVolumes));
        }
        for volume in &self.volumes {
            let of_it = |rpc| Source { rpc, volume: volume.clone() };
            let before = sources.len();
            if offered.controller(ControllerRpc::GetVolumeHealth) {
                sources.push(of_it(Rpc::ControllerGetVolumeHealth));
            } else if offered.condition() && offered.controller(ControllerRpc::GetVolume) {
                sources.push(of_it(Rpc::ControllerGetVolume));
            }
            if offered.node(NodeRpc::GetVolumeHealth) {
                sources.push(of_it(Rpc::NodeGetVolumeHealth));
            } else if offered.node_condition() && self.path.is_some() {
                sources.push(of_it(Rpc::NodeGetVolumeStats));
            }
            if sources.len() == before {
                return Err(Stop::Usage(offered.no_health_reason(self.path.is_some())));
            }
        }
        if self.volumes.is_empty() && offered.is_only_by_name() {
            print_error("the driver reports health only for named volumes: use --volume-id");
        }
        Ok(sources)
    }
}

struct Offered {
    controller: Vec<ControllerRpc>,
    node: Vec<NodeRpc>,
}

impl Offered {
    async fn ask(sockets: &Sockets, secrets: &Pairs) -> Result<Self, Stop> {
        let reported = sockets.call(v1::ControllerGetCapabilitiesRequest {}).await;
        let controller = of_controller(&served(Rpc::ControllerGetCapabilities, reported, secrets)?);
        let reported = sockets.call(v1::NodeGetCapabilitiesRequest {}).await;
        let node = of_node(&served(Rpc::NodeGetCapabilities, reported, secrets)?);
        Ok(Self { controller, node })
    }

    fn controller(&self, rpc: ControllerRpc) -> bool {
        self.controller.contains(&rpc)
    }

    fn node(&self, rpc: NodeRpc) -> bool {
        self.node.contains(&rpc)
    }

    #[expect(deprecated, reason = "drivers that speak 1.12.0 have it")]
    fn condition(&self) -> bool {
        self.controller(ControllerRpc::VolumeCondition)
    }

    #[expect(deprecated, reason = "drivers that speak 1.12.0 have it")]
    fn node_condition(&self) -> bool {
        self.node(NodeRpc::VolumeCondition)
    }

    /// Whether the driver reports the health of single volumes, but has no list.
    fn is_only_by_name(&self) -> bool {
        let lists = self.controller(ControllerRpc::ListVolumeHealth)
            || self.condition() && self.controller(ControllerRpc::ListVolumes);
        let reports = self.controller(ControllerRpc::GetVolumeHealth)
            || self.condition() && self.controller(ControllerRpc::GetVolume)
            || self.node(NodeRpc::GetVolumeHealth)
            || self.node_condition();
        reports && !lists
    }

    fn no_health_reason(&self, has_path: bool) -> String {
        let hint = if self.node_condition() && !has_path {
            "this driver reports a volume's condition with its usage: give --volume-path, the path at \
                 which it is published"
        } else {
            "this driver does not report the health of volumes; `csi capabilities` lists what it offers"
        };
        format!("--volume-id: {hint}")
    }
}

/// The answer; an empty one if the service is not on this socket.
fn served<A: Default>(rpc: Rpc, reported: Result<A, Status>, secrets: &Pairs) -> Result<A, Stop> {
    match reported {
        Ok(answer) => Ok(answer),
        Err(status) if status.code() == Code::Unimplemented => Ok(A::default()),
        Err(status) => Err(refused(rpc, &status, &hidden(secrets))),
    }
}

impl Source {
    pub(super) fn of_all(rpc: Rpc) -> Self {
        Self { rpc, volume: String::new() }
    }

    /// All current problems that this source reports.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) async fn ask(&self, sockets: &Sockets, watched: &Watched) -> Result<Problems, Status> {
        let secrets = watched.secrets.of(self.rpc);
        let volume_id = self.volume.clone();
        match self.rpc {
            Rpc::Probe => match sockets.call(v1::ProbeRequest {}).await {
                Ok(answer) if answer.ready == Some(false) => Ok(of_plugin("NOT_READY", "Starting", "")),
                Ok(_) => Ok(Problems::new()),
                Err(status) if status.code() == Code::FailedPrecondition => {
                    Ok(of_plugin("NOT_HEALTHY", "Probe", status.message()))
                }
                Err(status) => Err(status),
            },
            Rpc::NodeGetStorageHealth => {
                let answer = sockets.call(v1::NodeGetStorageHealthRequest { secrets }).await?;
                Ok(answer.backend_health.into_iter().map(of_storage).collect())
            }
            Rpc::ControllerListVolumeHealth => unhealthy_volumes(sockets, &watched.secrets).await,
            Rpc::ControllerGetVolumeHealth => {
                let request = v1::ControllerGetVolumeHealthRequest { volume_id, secrets };
                let answer = sockets.call(request).await?;
                Ok(answer.volume_health.map(|health| of_volume("controller", health)).unwrap_or_default())
            }
            Rpc::NodeGetVolumeHealth => {
                let request = v1::NodeGetVolumeHealthRequest {
                    volume_id,
                    volume_publish_path: watched.path.clone().unwrap_or_default(),
                    ..Default::default()
                };
                let answer = sockets.call(request).await?;
                Ok(answer.volume_health.map(|health| of_volume("node", health)).unwrap_or_default())
            }
            _ => self.ask_for_condition(sockets, watched).await,
        }
    }

    #[expect(deprecated, reason = "drivers that speak 1.12.0 have it")]
    async fn ask_for_condition(&self, sockets: &Sockets, watched: &Watched) -> Result<Problems, Status> {
        let volume_id = self.volume.clone();
        match self.rpc {
            Rpc::ControllerGetVolume => {
                let request = v1::ControllerGetVolumeRequest { volume_id };
                let answer = sockets.call(request).await?;
                let condition = answer.status.and_then(|status| status.volume_condition);
                Ok(of_condition("controller", &self.volume, condition).into_iter().collect())
            }
            Rpc::NodeGetVolumeStats => {
                let request = v1::NodeGetVolumeStatsRequest {
                    volume_id,
                    volume_path: watched.path.clone().unwrap_or_default(),
                    ..Default::default()
                };
                let answer = sockets.call(request).await?;
                Ok(of_condition("node", &self.volume, answer.volume_condition).into_iter().collect())
            }
            _ => conditions(sockets).await,
        }
    }
}

fn of_plugin(status: &str, reason: &str, message: &str) -> Problems {
    let status = status.to_owned();
    let reason = reason.to_owned();
    let problem = Problem { seen_by: "plugin", subject: "readiness".to_owned(), status, reason };
    Problems::from([(problem, message.to_owned())])
}

fn of_storage(health: v1::node_get_storage_health_response::StorageBackendHealth) -> (Problem, String) {
    use v1::volume_capability::AccessType;
    let status = v1::StorageHealthErrorType::try_from(health.status);
    let access = health.volume_capability.and_then(|capability| capability.access_type);
    let subject = match access {
        None => "storage",
        Some(AccessType::Block(_)) => "storage of block volumes",
        Some(AccessType::Mount(_)) => "storage of filesystems",
    };
    let problem = Problem {
        seen_by: "node",
        subject: subject.to_owned(),
        status: status.map_or_else(|other| other.to_string(), |status| status.as_str_name().to_owned()),
        reason: health.reason,
    };
    (problem, health.message)
}

fn of_volume(seen_by: &'static str, health: v1::VolumeHealth) -> Problems {
    let subject = health.volume_id;
    let one = |entry: v1::volume_health::VolumeHealthEntry| {
        let status = v1::VolumeHealthErrorType::try_from(entry.status);
        let status = status.map_or_else(|other| other.to_string(), |status| status.as_str_name().to_owned());
        (Problem { seen_by, subject: subject.clone(), status, reason: entry.reason }, entry.message)
    };
    health.health_statuses.into_iter().map(one).collect()
}

fn of_condition(
    seen_by: &'static str,
    volume_id: &str,
    condition: Option<v1::VolumeCondition>,
) -> Option<(Problem, String)> {
    let condition = condition.filter(|condition| condition.abnormal)?;
    let subject = volume_id.to_owned();
    let status = "ABNORMAL".to_owned();
    let reason = "VolumeCondition".to_owned();
    Some((Problem { seen_by, subject, status, reason }, condition.message))
}

async fn unhealthy_volumes(sockets: &Sockets, secrets: &Pairs) -> Result<Problems, Status> {
    let mut all = Problems::new();
    let mut token = String::new();
    let mut pages = Pages::default();
    loop {
        let request = v1::ControllerListVolumeHealthRequest {
            starting_token: token.clone(),
            secrets: secrets.of(Rpc::ControllerListVolumeHealth),
            ..Default::default()
        };
        let page = sockets.call(request).await?;
        let has_entries = !page.entries.is_empty();
        all.extend(page.entries.into_iter().flat_map(|health| of_volume("controller", health)));
        match pages.next(page.next_token, has_entries).map_err(Status::internal)? {
            Some(next) => token = next,
            None => return Ok(all),
        }
    }
}

/// All pages of ListVolumes, with the volumes' conditions.
#[expect(deprecated, reason = "drivers that speak 1.12.0 have it")]
async fn conditions(sockets: &Sockets) -> Result<Problems, Status> {
    let mut all = Problems::new();
    let mut token = String::new();
    let mut pages = Pages::default();
    loop {
        let request = v1::ListVolumesRequest { starting_token: token.clone(), ..Default::default() };
        let page = sockets.call(request).await?;
        let has_entries = !page.entries.is_empty();
        all.extend(page.entries.into_iter().filter_map(|entry| {
            let condition = entry.status.and_then(|status| status.volume_condition);
            of_condition("controller", &entry.volume?.volume_id, condition)
        }));
        match pages.next(page.next_token, has_entries).map_err(Status::internal)? {
            Some(next) => token = next,
            None => return Ok(all),
        }
    }
}
