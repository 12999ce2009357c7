//! What tests need, and why a need is not met.

use csi_proto::{ControllerCapability, NodeCapability, Rpc};

use csi_proto::v1::plugin_capability::{service::Type as PluginService, volume_expansion::Type as Expansion};

use crate::content::Kind;
use crate::context::TestContext;
use crate::settings::MountAccess;
use crate::test::Need;

/// Says why a need is not met; `None` if it is met.
pub(crate) fn lacking(ctx: &TestContext, need: Need) -> Option<String> {
    let offers = &ctx.offers;
    let unless = |holds: bool, reason: &str| (!holds).then(|| reason.to_owned());
    let offered = |holds: bool, name: &str| (!holds).then(|| format!("the driver does not offer {name}"));
    match need {
        Need::Plugin(one) => offered(offers.plugin(one), one.as_str_name()),
        Need::Controller(one) => offered(offers.controller(one), one.as_str_name()),
        Need::Node(one) => offered(offers.node(one), one.as_str_name()),
        Need::Groups => {
            offered(offers.serves(Rpc::CreateVolumeGroupSnapshot), "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")
        }
        Need::NodeService => no_node(ctx),
        Need::Mounts => unless(ctx.sees_mounts(), "the node's mounts are not visible to the kit"),
        Need::AnyVolume => lacking(ctx, Need::Volume(ctx.any_kind())),
        Need::Volume(kind) => {
            let made = offers.controller(ControllerCapability::CreateDeleteVolume);
            let paths = ctx.settings.target.is_some()
                && (ctx.settings.staging.is_some() || !offers.node(NodeCapability::StageUnstageVolume));
            unless(
                made || ctx.settings.volume.is_some(),
                "the driver does not offer CREATE_DELETE_VOLUME, and no existing volume was given",
            )
            .or_else(|| no_node(ctx))
            .or_else(|| unless(paths, "no directories for staging and target were given"))
            .or_else(|| {
                let what = if kind == Kind::Files { "filesystems" } else { "raw devices" };
                if let Some(why) = &offers.no_volume {
                    let words = "--size, --parameters and --secrets set what is sent";
                    return Some(format!("no volume could be created ({words}): {why}"));
                }
                let has = ctx.modes.iter().any(|(one, _)| *one == kind);
                let unclear = if offers.uses_unclear.is_some() {
                    ", or did not report this correctly: see identity.ways-of-use"
                } else {
                    ""
                };
                (!has).then(|| format!("the driver does not support {what}{unclear}"))
            })
        }
        Need::Place => {
            let constraints = PluginService::VolumeAccessibilityConstraints;
            offered(offers.plugin(constraints), constraints.as_str_name())
                .or_else(|| unless(offers.place.is_some(), "the node does not report its topology"))
        }
        Need::AttachLimit => unless(
            (1..=MAX_ATTACHED).contains(&offers.max_volumes),
            "the node reports no limit that the kit can reach",
        ),
        Need::Offline => unless(
            offers.expands(Expansion::Offline) && !offers.expands(Expansion::Online),
            "the driver also expands volumes that are in use",
        ),
        Need::Unsupported => {
            unless(ctx.unsupported().is_some(), "the driver supports all capabilities of volumes")
        }
        Need::MutableParameters => {
            unless(!ctx.settings.mutable_parameters.is_empty(), "no mutable parameters were given")
        }
        Need::EnforcesSize => unless(ctx.settings.enforces_size, "--enforces-size was not given"),
        // A node alone can offer EXPAND_VOLUME to expand the filesystem of a larger copy.
        Need::Expands => offered(
            offers.controller(ControllerCapability::ExpandVolume)
                || (offers.node(NodeCapability::ExpandVolume) && offers.expands(Expansion::Online)),
            "EXPAND_VOLUME",
        ),
        Need::Copies => offered(
            offers.controller(ControllerCapability::CloneVolume)
                || offers.controller(ControllerCapability::CreateDeleteSnapshot),
            "CLONE_VOLUME or CREATE_DELETE_SNAPSHOT",
        ),
        Need::MountFlags => mount_flags(ctx),
        #[allow(deprecated, reason = "drivers of 1.12.0 use it")]
        Need::Condition => {
            offered(offers.controller(ControllerCapability::VolumeCondition), "VOLUME_CONDITION")
        }
        #[allow(deprecated, reason = "drivers of 1.12.0 use it")]
        Need::NodeCondition => offered(offers.node(NodeCapability::VolumeCondition), "VOLUME_CONDITION"),
        Need::HealthMonitor => {
            let lists = offers.controller(ControllerCapability::ListVolumes);
            lacking(ctx, Need::Condition).or_else(|| {
                let reads = lists || offers.controller(ControllerCapability::GetVolume);
                offered(reads, "LIST_VOLUMES or GET_VOLUME")
            })
        }
        Need::UnhealthyVolume => {
            unless(ctx.settings.unhealthy_volume.is_some(), "no unhealthy volume was given")
        }
        Need::Ephemeral => unless(
            ctx.settings.ephemeral.is_some() && ctx.settings.target.is_some() && offers.has_node,
            "--ephemeral or the directory for targets was not given",
        ),
        Need::SecondNode => unless(offers.second_node_id.is_some(), "no second node was given"),
    }
}

impl TestContext {
    /// Whether the kit runs in the node's mount namespace.
    pub(crate) fn sees_mounts(&self) -> bool {
        cfg!(target_os = "linux") && self.settings.mount_access == MountAccess::Here
    }
}

fn mount_flags(ctx: &TestContext) -> Option<String> {
    let reason = if ctx.settings.mount.mount_flags.is_empty() {
        "no mount flags were given"
    } else {
        "none of the given mount flags is an attribute of a mount"
    };
    crate::suite::mount_flags::due(ctx).is_empty().then(|| reason.to_owned())
}

fn no_node(ctx: &TestContext) -> Option<String> {
    let reason = if ctx.offers.node_unclear.is_some() {
        "the node does not report its capabilities: see identity.node-capabilities"
    } else {
        "there is no node service on this socket"
    };
    (!ctx.offers.has_node).then(|| reason.to_owned())
}

/// The largest number of volumes that the kit creates to reach a node's limit.
const MAX_ATTACHED: i64 = 128;
