//! How a test is declared: a row with its level, its title, the rules that it checks, its needs, and its function.

use std::future::Future;
use std::pin::Pin;

use csi_proto::v1::plugin_capability::service::Type as PluginService;
use csi_proto::{ControllerCapability, NodeCapability};

use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::Outcome;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Plugin(PluginService),
    Controller(ControllerCapability),
    Node(NodeCapability),
    /// The only capability of the group controller.
    Groups,
    /// A node service that answers.
    NodeService,
    /// A volume that the kit can create, stage and publish on this node.
    Volume(Kind),
    /// The same, of any kind: a filesystem, if the driver has them.
    AnyVolume,
    /// The node's mount namespace.
    Mounts,
    Place,
    /// A node that reports a limit of volumes, small enough to be reached.
    AttachLimit,
    /// Volumes that can be expanded only while they are not in use.
    Offline,
    /// A capability that the driver does not support.
    Unsupported,
    MutableParameters,
    /// A driver whose volumes are limited to their size, as the user says.
    EnforcesSize,
    /// Volumes that can be expanded, by the controller or by the node.
    Expands,
    /// Volumes that can be created from a volume or from a snapshot.
    Copies,
    /// Mount flags that are attributes of a mount.
    MountFlags,
    /// Health in the form of v1.12.0, of the controller and of the node.
    Condition,
    NodeCondition,
    /// Health as external-health-monitor reads it: VOLUME_CONDITION, with LIST_VOLUMES or GET_VOLUME.
    HealthMonitor,
    UnhealthyVolume,
    Ephemeral,
    SecondNode,
}

/// Where a test's rule comes from, and so what its failure means. The spec's words are in [`Test::section`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// A MUST of the spec for plugins: a driver that breaks it does not conform.
    Must,
    /// A SHOULD of the spec for plugins.
    Should,
    /// Good practice: what real callers rely on, and rules of the spec for callers, for example the limits of
    /// fields, that a careful driver checks too.
    Practice,
}

impl Level {
    /// All levels, the strictest one first.
    pub const ALL: [Self; 3] = [Self::Must, Self::Should, Self::Practice];
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
            Self::Practice => "good practice",
        })
    }
}

pub(crate) type Run = for<'a> fn(&'a TestContext) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A test, as the list of tests shows it.
#[derive(Clone)]
pub struct Test {
    /// The id that filters and reports use.
    pub id: String,
    /// What it checks, in one sentence.
    pub title: &'static str,
    /// Whether the rule is a MUST of the spec.
    pub level: Level,
    /// The section of the spec that has the rule.
    pub section: &'static str,
    /// The ids of the rules, as in `docs/spec-coverage`.
    pub rules: &'static [&'static str],
    pub(crate) needs: &'static [Need],
    pub(crate) run: Run,
}

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Test")
            .field("id", &self.id)
            .field("level", &self.level)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// The rows of a group of tests, each with level, title, name, rules and needs. The id is made of the names of the
/// group and the test. The test is the function of its name, or the one after `=` with these arguments.
macro_rules! tests {
    ($group:literal, $section:literal; $($level:ident $title:literal, $name:ident $(= $run:ident($($argument:expr),+))?, [$($rule:literal),+], [$($need:expr),*];)+) => {
        pub(crate) fn tests() -> Vec<$crate::test::Test> {
            #[allow(unused_imports, reason = "not every group needs each")]
            use $crate::{content::Kind::*, test::Need::*};
            vec![$($crate::test::Test {
                id: format!("{}.{}", $group, stringify!($name).replace('_', "-")),
                title: $title,
                level: $crate::test::Level::$level,
                section: $section,
                rules: &[$($rule),+],
                needs: &[$($need),*],
                run: |ctx| Box::pin($crate::test::tests!(@call ctx, $name $(= $run($($argument),+))?)),
            }),+]
        }
    };
    (@call $ctx:ident, $name:ident) => { $name($ctx) };
    (@call $ctx:ident, $name:ident = $run:ident($($argument:expr),+)) => { $run($ctx, $($argument),+) };
}
pub(crate) use tests;
