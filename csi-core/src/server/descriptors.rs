//! How many connections the process has file descriptors for, so that enough are left for operations.

/// No deployment needs more connections: each sidecar has one, and the kubelet has one per running call.
const MAX_CONNECTIONS: usize = 1024;
/// The assumed limit if it can't be read: the default soft limit of Linux and systemd.
const DESCRIPTORS: usize = 1024;
/// The share of the descriptors for connections is one in `PART`. Closing connections can use the same
/// number again.
const PART: usize = 4;

/// The maximum number of connections to the CSI socket: as requested, but operations keep half of the
/// descriptors.
pub(super) fn connection_limit(asked: Option<usize>) -> usize {
    let share = (limit() / PART).max(1);
    match asked {
        Some(asked) if asked > share => {
            tracing::warn!(
                asked,
                given = share,
                "fewer connections than requested: the limit of open files is too low"
            );
            share
        }
        Some(asked) => asked.max(1),
        None => share.min(MAX_CONNECTIONS),
    }
}

/// How many descriptors this process is allowed to have (RLIMIT_NOFILE, the soft limit).
///
/// The limit is not raised: child processes would inherit it, and some close every descriptor that they
/// could have.
pub(super) fn limit() -> usize {
    let Ok(limits) = std::fs::read_to_string("/proc/self/limits") else { return DESCRIPTORS };
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => usize::MAX,
        number => number.and_then(|number| number.parse().ok()).unwrap_or(DESCRIPTORS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_keep_half_of_the_descriptors() {
        let limit = limit();
        assert!(limit > 0);
        assert_eq!(connection_limit(Some(usize::MAX)), limit / 4);
        assert_eq!(connection_limit(Some(0)), 1);
        assert!(connection_limit(None) <= MAX_CONNECTIONS.min(limit / 4));
    }
}
