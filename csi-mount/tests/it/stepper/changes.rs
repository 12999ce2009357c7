//! Which system calls can change something outside of the process that makes them.

use nix::libc::{self, c_long};
use nix::unistd::Pid;

/// What these do ends with the process: descriptors, locks, claims, mappings, a process that has done nothing yet. A
/// call that is missing here costs a test time, and no correctness.
const ONLY_LOOK: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_pidfd_open,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_prlimit64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_setpgid,
    libc::SYS_sigaltstack,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_wait4,
    libc::SYS_waitid,
    STATMOUNT,
    LISTMOUNT,
];
/// They have the same numbers on all architectures.
const STATMOUNT: c_long = 457;
const LISTMOUNT: c_long = 458;

/// On this architecture there are also older calls.
#[cfg(target_arch = "x86_64")]
const ALSO: &[c_long] =
    &[libc::SYS_access, libc::SYS_lstat, libc::SYS_poll, libc::SYS_readlink, libc::SYS_stat];
#[cfg(not(target_arch = "x86_64"))]
const ALSO: &[c_long] = &[];

/// Whether a thread is stopped in a call whose effect can outlive the process.
pub(super) fn is_in_change(pid: Pid) -> bool {
    let Some((call, words)) = super::call_with_words(pid) else { return true };
    let creates =
        |flags: Option<&u64>| flags.is_none_or(|flags| flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0);
    match call {
        libc::SYS_openat => creates(words.get(2)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => creates(words.get(1)),
        _ => !ONLY_LOOK.contains(&call) && !ALSO.contains(&call),
    }
}

/// Whether a thread is stopped in a change of a device of the device mapper (linux/dm-ioctl.h), or in a write by lvm, which
/// writes its metadata with io_submit(2).
pub(super) fn is_in_mapping(pid: Pid) -> bool {
    const MAPPER: u64 = 0xfd;
    /// Version, list of devices, status of a device, its events, dependencies, status of a table, list of targets.
    const QUERIES: [u64; 8] = [0, 2, 7, 8, 11, 12, 13, 16];
    match super::call_with_words(pid) {
        Some((libc::SYS_ioctl, words)) => {
            words[1] >> 8 & 0xff == MAPPER && !QUERIES.contains(&(words[1] & 0xff))
        }
        Some((call, _)) => [libc::SYS_io_submit, libc::SYS_pwrite64].contains(&call),
        None => false,
    }
}
