//! How much memory a program that we start can use, and how much it uses; memory given back to the kernel.

use std::fs;
use std::path::Path;

/// Half of what this process can use. The other half is for the driver, its other programs and the node.
pub(crate) fn program_memory_limit() -> u64 {
    half(least(total(), limits_of_control_groups()))
}

/// What a program uses now, in bytes, swapped out or not. None if it has ended.
pub(crate) fn used_by_group(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(kibibytes(&status, "VmRSS:")? + kibibytes(&status, "VmSwap:").unwrap_or(0))
}

/// Makes the kernel kill this program first when memory runs out, and not the driver that waits for it.
pub(crate) fn prefer_for_oom_kill(process: u32) {
    if let Err(error) = fs::write(format!("/proc/{process}/oom_score_adj"), "1000") {
        tracing::debug!(%error, "the order in which the kernel ends programs stays as it is");
    }
}

/// Gives free memory of the heap back to the kernel, and lets the allocator keep less from now on.
///
/// glibc's allocator keeps what was freed for each thread that has run, and the more the larger the buffers were: a
/// driver that staged 50 volumes at once keeps 20 MB and more for ever. Only glibc needs this; with another C
/// library the function does nothing. It takes some hundred microseconds, in which other threads can wait for the
/// allocator.
///
/// Source: `malloc_trim(3)`, `mallopt(3)`.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        /// The size of a buffer from which it gets pages of its own, glibc's default. If it is set, freed buffers
        /// no longer raise it, nor the free memory that each arena keeps at its end.
        const OWN_PAGES: i32 = 128 << 10;
        /// Instead of eight for each processor.
        const ARENAS: i32 = 4;
        // SAFETY: the functions take numbers and no pointers, and can be called at any time by any thread.
        unsafe {
            nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, OWN_PAGES);
            nix::libc::mallopt(nix::libc::M_ARENA_MAX, ARENAS);
            nix::libc::malloc_trim(0);
        }
    }
}

fn total() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// The limits of the process's control group and its ancestors, in cgroup version 2 or 1.
fn limits_of_control_groups() -> Vec<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?.trim_start_matches('/');
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            v1 if v1.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // In a container the path can be the host's. The container's own group is the root there.
        let path = Path::new(root).join(path);
        let above: Vec<_> = path.ancestors().take_while(|above| above.starts_with(root)).collect();
        Some(above.into_iter().filter_map(|group| number_in(&group.join(file))).collect::<Vec<_>>())
    };
    groups.lines().filter_map(of_line).flatten().collect()
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn least(total: Option<u64>, limits: Vec<u64>) -> Option<u64> {
    limits.into_iter().chain(total).min()
}

/// 1 GiB if nothing is known, which every node has.
fn half(memory: Option<u64>) -> u64 {
    memory.map_or(1 << 30, |memory| memory / 2)
}

fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_half_of_the_smallest_memory_limit() {
        assert_eq!(half(least(Some(8 << 30), vec![1 << 30, 2 << 30])), 512 << 20);
        assert_eq!(half(least(Some(8 << 30), vec![u64::MAX])), 4 << 30);
        assert_eq!(half(least(None, vec![])), 1 << 30);
        let share = program_memory_limit();
        assert!(share > 32 << 20 && share <= total().unwrap() / 2, "{share}");
    }

    #[test]
    fn the_memory_of_this_process_is_measured() {
        let used = used_by_group(std::process::id()).unwrap();
        assert!((1 << 20..1 << 40).contains(&used), "{used}");
        assert_eq!(used_by_group(u32::MAX), None);
    }
}
