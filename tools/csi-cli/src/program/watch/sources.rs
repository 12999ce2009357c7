//! The sources of health: the calls that the driver offers, in the form of v1.13.0, or else of v1.12.0.

use std::collections::BTreeMap;
use std::fmt;

use csi_proto::Rpc;
use csi_proto::v1;
use tonic::{Code, Status};
use v1::controller_service_capability::{Type as ControllerType, rpc::Type as ControllerRpc};
use v1::node_service_capability::{Type as NodeType, rpc::Type as NodeRpc};

use crate::lifecycle::Sockets;
use crate::program::output::{Stop, print_error, refused};
use crate::program::pages::Pages;
use crate::secrets::Secrets;

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
    pub(crate) secrets: Secrets,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Readiness,
    Storage,
    UnhealthyVolumes,
    ControllerHealth(String),
    NodeHealth(String),
    /// The forms of v1.12.0: the list of volumes, one volume, its stats.
    AllConditions,
    Condition(String),
    NodeCondition(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rpc, volume) = match self {
            Self::Readiness => (Rpc::Probe, None),
            Self::Storage => (Rpc::NodeGetStorageHealth, None),
            Self::UnhealthyVolumes => (Rpc::ControllerListVolumeHealth, None),
            Self::ControllerHealth(volume) => (Rpc::ControllerGetVolumeHealth, Some(volume)),
            Self::NodeHealth(volume) => (Rpc::NodeGetVolumeHealth, Some(volume)),
            Self::AllConditions => (Rpc::ListVolumes, None),
            Self::Condition(volume) => (Rpc::ControllerGetVolume, Some(volume)),
            Self::NodeCondition(volume) => (Rpc::NodeGetVolumeStats, Some(volume)),
        };
        match volume {
            None => write!(f, "{rpc}"),
            Some(volume) => write!(f, "{rpc} {volume}"),
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
        let mut sources = vec![Source::Readiness];
        if offered.node(NodeRpc::GetStorageHealth) {
            sources.push(Source::Storage);
        }
        if offered.controller(ControllerRpc::ListVolumeHealth) {
            sources.push(Source::UnhealthyVolumes);
        } else if offered.condition() && offered.controller(ControllerRpc::ListVolumes) {
            sources.push(Source::AllConditions);
        }
        for volume in &self.volumes {
            let before = sources.len();
            if offered.controller(ControllerRpc::GetVolumeHealth) {
                sources.push(Source::ControllerHealth(volume.clone()));
            } else if offered.condition() && offered.controller(ControllerRpc::GetVolume) {
                sources.push(Source::Condition(volume.clone()));
            }
            if offered.node(NodeRpc::GetVolumeHealth) {
                sources.push(Source::NodeHealth(volume.clone()));
            } else if offered.node_condition() && self.path.is_some() {
                sources.push(Source::NodeCondition(volume.clone()));
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
    async fn ask(sockets: &Sockets, secrets: &Secrets) -> Result<Self, Stop> {
        let reported = sockets.call(v1::ControllerGetCapabilitiesRequest {}).await;
        let controller =
            served(Rpc::ControllerGetCapabilities, reported, secrets)?.unwrap_or_default().capabilities;
        let reported = sockets.call(v1::NodeGetCapabilitiesRequest {}).await;
        let node = served(Rpc::NodeGetCapabilities, reported, secrets)?.unwrap_or_default().capabilities;
        let of_controller =
            |one: v1::ControllerServiceCapability| one.r#type.map(|ControllerType::Rpc(rpc)| rpc.r#type());
        let of_node = |one: v1::NodeServiceCapability| one.r#type.map(|NodeType::Rpc(rpc)| rpc.r#type());
        Ok(Self {
            controller: controller.into_iter().filter_map(of_controller).collect(),
            node: node.into_iter().filter_map(of_node).collect(),
        })
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

fn served<A>(rpc: Rpc, reported: Result<A, Status>, secrets: &Secrets) -> Result<Option<A>, Stop> {
    match reported {
        Ok(answer) => Ok(Some(answer)),
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        Err(status) => Err(refused(rpc, &status, &secrets.hidden())),
    }
}

impl Source {
    /// All current problems that this source reports.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) async fn ask(&self, sockets: &Sockets, watched: &Watched) -> Result<Problems, Status> {
        let secrets = |rpc| watched.secrets.of(rpc);
        match self {
            Self::Readiness => match sockets.call(v1::ProbeRequest {}).await {
                Ok(answer) if answer.ready == Some(false) => Ok(of_plugin("NOT_READY", "Starting", "")),
                Ok(_) => Ok(Problems::new()),
                Err(status) if status.code() == Code::FailedPrecondition => {
                    Ok(of_plugin("NOT_HEALTHY", "Probe", status.message()))
                }
                Err(status) => Err(status),
            },
            Self::Storage => {
                let request = v1::NodeGetStorageHealthRequest { secrets: secrets(Rpc::NodeGetStorageHealth) };
                let answer = sockets.call(request).await?;
                Ok(answer.backend_health.into_iter().map(of_storage).collect())
            }
            Self::UnhealthyVolumes => unhealthy_volumes(sockets, &watched.secrets).await,
            Self::ControllerHealth(volume_id) => {
                let secrets = secrets(Rpc::ControllerGetVolumeHealth);
                let request = v1::ControllerGetVolumeHealthRequest { volume_id: volume_id.clone(), secrets };
                let answer = sockets.call(request).await?;
                Ok(answer.volume_health.map(|health| of_volume("controller", health)).unwrap_or_default())
            }
            Self::NodeHealth(volume_id) => {
                let request = v1::NodeGetVolumeHealthRequest {
                    volume_id: volume_id.clone(),
                    volume_publish_path: watched.path.clone().unwrap_or_default(),
                    ..Default::default()
                };
                let answer = sockets.call(request).await?;
                Ok(answer.volume_health.map(|health| of_volume("node", health)).unwrap_or_default())
            }
            older => older.ask_for_condition(sockets, watched).await,
        }
    }

    #[expect(deprecated, reason = "drivers that speak 1.12.0 have it")]
    async fn ask_for_condition(&self, sockets: &Sockets, watched: &Watched) -> Result<Problems, Status> {
        match self {
            Self::Condition(volume_id) => {
                let request = v1::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
                let answer = sockets.call(request).await?;
                let condition = answer.status.and_then(|status| status.volume_condition);
                Ok(of_condition("controller", volume_id, condition).into_iter().collect())
            }
            Self::NodeCondition(volume_id) => {
                let request = v1::NodeGetVolumeStatsRequest {
                    volume_id: volume_id.clone(),
                    volume_path: watched.path.clone().unwrap_or_default(),
                    ..Default::default()
                };
                let answer = sockets.call(request).await?;
                Ok(of_condition("node", volume_id, answer.volume_condition).into_iter().collect())
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

async fn unhealthy_volumes(sockets: &Sockets, secrets: &Secrets) -> Result<Problems, Status> {
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
