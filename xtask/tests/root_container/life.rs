//! A volume's life in containers that are killed.

use std::time::Duration;

use tonic::Code;

use crate::container::Spec;
use crate::node::Node;
use crate::volume::{Step, Volume};

/// When a container is killed, besides at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    Never,
    /// Between any two steps.
    Between,
    /// During each step, this long after its call; then the next container repeats the step.
    During(Duration),
}

/// Takes a volume through these steps. Calls `check` after each, with the container of this step still running.
pub(crate) async fn live(
    node: &Node,
    spec: &Spec,
    volume: &Volume,
    steps: &[Step],
    kill: Kill,
    mut check: impl FnMut(Step),
) {
    Volume::make_directories();
    let (mut container, mut client) = spec.start(node).await;
    for &step in steps {
        match kill {
            Kill::Never => {}
            Kill::Between => {
                container.kill();
                (container, client) = spec.start(node).await;
            }
            Kill::During(after) => {
                drop(tokio::time::timeout(after, volume.step(&client, step)).await);
                container.kill();
                (container, client) = spec.start(node).await;
            }
        }
        let result = volume.step(&client, step).await;
        assert!(accepted(step, &result), "{step:?}, {kill:?}: {result:?}\n{}", container.log());
        check(step);
    }
    container.kill();
    Volume::remove_directories();
    node.assert_empty();
}

/// A mounted ext4 grows only with CAP_SYS_RESOURCE, which not every machine gives.
fn accepted(step: Step, result: &Result<(), tonic::Status>) -> bool {
    match result {
        Ok(()) => true,
        Err(status) => {
            step == Step::NodeExpand
                && status.code() == Code::FailedPrecondition
                && status.message().contains("CAP_SYS_RESOURCE")
        }
    }
}
