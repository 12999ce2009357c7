//! How a test is declared: a row with its title, the rules that it checks, what it needs, and a function.

use std::future::Future;
use std::pin::Pin;

use csi_core::{ControllerCapability, NodeCapability};
use csi_proto::v1::plugin_capability::service::Type as PluginService;

use crate::cx::Cx;
use crate::failure::Outcome;

/// What a test needs of the driver or of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Plugin(PluginService),
    Controller(ControllerCapability),
    Node(NodeCapability),
    /// The group controller's one capability.
    Groups,
    /// A node service that answers.
    NodeService,
    /// A volume that can be made, and put on this node at paths of ours.
    Volume(Kind),
    /// The node's mount namespace.
    Mounts,
    /// A node that says where it is.
    Place,
    /// A node that says how many volumes it takes, and few enough.
    AttachLimit,
    /// Volumes grow while nobody uses them, and then alone.
    Offline,
    /// Some way of use that the driver does not support.
    Unsupported,
    MutableParameters,
    /// Flags that are attributes of a mount.
    MountFlags,
    /// Health in the form of 1.12.0, of the controller and of the node.
    Condition,
    NodeCondition,
    UnwellVolume,
    /// Inline volumes.
    Ephemeral,
    SecondNode,
}

/// The two ways in which a volume is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Files,
    Device,
}

pub(crate) type Run = for<'a> fn(&'a Cx) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A test, as the list of tests shows it.
#[derive(Clone)]
pub struct Test {
    /// By which filters and reports name it.
    pub id: String,
    /// What it checks, in a sentence.
    pub title: &'static str,
    /// The part of the spec that has the rule.
    pub section: &'static str,
    /// The ids of the rules, as `docs/spec-coverage` has them.
    pub rules: &'static [&'static str],
    pub(crate) needs: &'static [Need],
    pub(crate) run: Run,
}

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Test").field("id", &self.id).field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Rows of a group of tests, each: title, function, rules, needs. The id is the group's name and the function's.
macro_rules! tests {
    ($group:literal, $section:literal; $($title:literal, $run:ident, [$($rule:literal),+], [$($need:expr),*];)+) => {
        pub(crate) fn tests() -> Vec<$crate::test::Test> {
            #[allow(unused_imports, reason = "not every group needs each")]
            use $crate::test::{Kind::*, Need::*};
            vec![$($crate::test::Test {
                id: format!("{}.{}", $group, stringify!($run).replace('_', "-")),
                title: $title,
                section: $section,
                rules: &[$($rule),+],
                needs: &[$($need),*],
                run: |cx| Box::pin($run(cx)),
            }),+]
        }
    };
}
pub(crate) use tests;
