//! All objects of a driver, in the order of their application.

use crate::files::Files;
use crate::plan::Plan;
use crate::{classes, csi_driver, extras, pods, rbac};

pub(crate) fn all(plan: &Plan<'_>) -> Files {
    let mut files = Files::default();
    extras::namespace(plan, &mut files);
    pods::fuse_namespace(plan, &mut files);
    csi_driver::add(plan, &mut files);
    rbac::add(plan, &mut files);
    pods::add(plan, &mut files);
    extras::network_policies(plan, &mut files);
    extras::disruption_budget(plan, &mut files);
    extras::snapshot_metadata(plan, &mut files);
    extras::monitoring(plan, &mut files);
    classes::add(plan, &mut files);
    files
}
