//! Which system calls this kernel has, checked once. A test can hide one from its own thread.

use std::cell::Cell;
use std::ffi::c_long;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::libc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};

/// A kernel feature that has a fallback.
#[cfg_attr(not(any(test, feature = "testing")), expect(unreachable_pub, reason = "public for tests"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// `openat2(2)`, Linux 5.6. Fallback: one component at a time.
    Openat2,
    /// `openat2(2)` that answers only from the cache (`RESOLVE_CACHED`), Linux 5.12. Fallback: a child
    /// process resolves every path that can lead into a filesystem that does not answer.
    CachedLookup,
    /// `statx(2)` that reports mount roots and ids, Linux 5.8. Fallback: fdinfo.
    StatxMount,
    /// `fsopen(2)`, `fsmount(2)`, `move_mount(2)`, Linux 5.2. Fallback: `mount(2)`, whose errors say less.
    FsContext,
    /// `mount_setattr(2)`, Linux 5.12. Fallback: a bind that is remounted in a private place first.
    MountSetattr,
    /// `statmount(2)`, Linux 6.8. Fallback: mountinfo, which grows with the number of mounts.
    Statmount,
    /// `LOOP_CONFIGURE`, Linux 5.8. Fallback: `LOOP_SET_FD` and then the settings.
    LoopConfigure,
    /// Reads of a block device past the page cache (`O_DIRECT`), which few drivers lack. Fallback: the cache
    /// is emptied before reading.
    DirectRead,
    /// Many reads at once (`io_submit(2)`). A kernel can be built without it, and a seccomp filter can refuse
    /// it. Fallback: one read after the other.
    ManyReads,
    /// A disk sequence number that is never reused (`BLKGETDISKSEQ`), Linux 5.15. Fallback: the device
    /// number, which is reused.
    DiskSequence,
    /// `pidfd_open(2)`, Linux 5.3. Fallback: the pid, which can be reused in that moment.
    ProcessDescriptor,
    /// `close_range(2)`, Linux 5.9. Fallback: `close(2)` of the first 1024, or a copy of the whole table.
    CloseRange,
    /// `noswap` of tmpfs, Linux 6.4. Fallback: mounts without it.
    NoSwap,
    /// `quotactl_fd(2)`, Linux 5.14. Fallback: `quotactl(2)`, which needs the node of the filesystem's device.
    QuotaDescriptor,
}

// Numbers of the generic table, which are the same on all of Rust's architectures except Alpha and x32.
pub(super) const MOUNT_SETATTR: c_long = 442;
pub(super) const STATMOUNT: c_long = 457;
pub(super) const QUOTACTL_FD: c_long = 443;
const MOVE_MOUNT: c_long = 429;
const OPENAT2: c_long = 437;

thread_local! {
    /// A bit for each feature that is hidden from this thread.
    static HIDDEN: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn has(feature: Feature) -> bool {
    if HIDDEN.get() & bit(feature) != 0 {
        return false;
    }
    static CALLS: [OnceLock<bool>; 5] = [const { OnceLock::new() }; 5];
    let (slot, number) = match feature {
        Feature::Openat2 => (0, OPENAT2),
        Feature::FsContext => (1, MOVE_MOUNT),
        Feature::MountSetattr => (2, MOUNT_SETATTR),
        Feature::Statmount => (3, STATMOUNT),
        Feature::QuotaDescriptor => (4, QUOTACTL_FD),
        // The answer of each call shows it.
        Feature::StatxMount
        | Feature::CachedLookup
        | Feature::LoopConfigure
        | Feature::DirectRead
        | Feature::ManyReads
        | Feature::DiskSequence
        | Feature::ProcessDescriptor
        | Feature::CloseRange
        | Feature::NoSwap => return true,
    };
    *CALLS[slot].get_or_init(|| exists(number))
}

/// As [`has`], but for features that only a call can prove it makes that call.
pub(crate) fn probe(feature: Feature) -> bool {
    let root = c"/";
    match feature {
        Feature::CachedLookup => {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = rustix::fs::openat2(CWD, root, flags, Mode::empty(), ResolveFlags::CACHED);
            !matches!(opened, Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS))
        }
        Feature::StatxMount => {
            let found = rustix::fs::statx(CWD, root, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID);
            found.is_ok_and(|found| found.stx_mask & StatxFlags::MNT_ID.bits() != 0)
        }
        _ => has(feature),
    }
}

/// Runs the closure as if the kernel did not have these features, on this thread only.
#[cfg(any(test, feature = "testing"))]
pub fn without_features<T>(features: &[Feature], run: impl FnOnce() -> T) -> T {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            HIDDEN.set(self.0);
        }
    }
    let _restore = Restore(HIDDEN.get());
    HIDDEN.set(features.iter().fold(HIDDEN.get(), |hidden, feature| hidden | bit(*feature)));
    run()
}

fn bit(feature: Feature) -> u32 {
    1 << feature as u32
}

/// A call with invalid arguments fails; with ENOSYS only if the call does not exist.
fn exists(number: c_long) -> bool {
    // SAFETY: every probed call takes integers and pointers to read from; the pointers here are null and the
    // descriptors -1, so each returns an error before it reads or changes anything.
    let result = unsafe { libc::syscall(number, -1_i64, 0_i64, -1_i64, 0_i64, 0_i64, 0_i64) };
    result >= 0 || Errno::last() != Errno::ENOSYS
}
