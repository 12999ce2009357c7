//! When a time limit ends.

use std::time::{Duration, Instant};

/// No clock counts to the end of `Duration::MAX`, by which a caller means that there is no limit.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The end of a limit that begins now. A limit of more than 100 years ends after 100 years.
pub(crate) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}
