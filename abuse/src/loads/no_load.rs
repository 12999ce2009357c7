//! No load, for comparison.

use super::Load;

pub(super) const LOAD: Load = Load {
    name: "none",
    what: "nothing, to compare with",
    full: 0,
    run: |_, _| Box::pin(std::future::pending()),
};
