//! Checks, once when a driver starts, whether the node has what this crate needs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::thread::CapabilitySet;

use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;
use crate::path::{lookup, paths};
use crate::sys::features::{self, Feature};
use crate::table::facts;
use crate::table::mountinfo::{self, MountEntry};

/// The severity of a [`PreflightFinding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No problem.
    Fine,
    /// Volumes work, but something is slower, gives less precise errors, or is refused on request.
    Degraded,
    /// Volumes cannot be served.
    Broken,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreflightFinding {
    /// What was checked: `propagation of /var/lib/kubelet`, `CAP_SYS_ADMIN`.
    pub subject: String,
    /// The severity.
    pub verdict: Verdict,
    /// What was found and how to fix it. Empty for [`Verdict::Fine`].
    pub detail: String,
}

/// The report of [`Mounts::preflight`](crate::Mounts::preflight). `Display` prints one line for each problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preflight {
    findings: Vec<PreflightFinding>,
}

impl Preflight {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn from_findings(findings: Vec<PreflightFinding>) -> Self {
        Self { findings }
    }

    /// The results of all checks.
    pub fn findings(&self) -> &[PreflightFinding] {
        &self.findings
    }

    /// The worst verdict of all findings.
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Fine)
    }
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.findings.len();
        let mut bad = self.findings.iter().filter(|finding| finding.verdict != Verdict::Fine).peekable();
        if bad.peek().is_none() {
            return write!(f, "self-check: {count} of {count} fine");
        }
        write!(f, "self-check:")?;
        bad.try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}

impl fmt::Display for PreflightFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, verdict, detail } = self;
        let word = match verdict {
            Verdict::Fine => return write!(f, "{subject}: fine"),
            Verdict::Degraded => "degraded",
            Verdict::Broken => "broken",
        };
        write!(f, "{subject}: {word}: {detail}")
    }
}

/// What a driver uses on its node, besides mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeNeed {
    /// Block devices: `/sys`.
    BlockDevices,
    /// Creating, checking and growing this filesystem: its programs, and for ext4 a capability.
    Filesystem(Filesystem),
    /// FUSE: `/dev/fuse`.
    Fuse,
}

/// See [`Mounts::preflight`](crate::Mounts::preflight).
pub(crate) fn preflight(roots: &[PathBuf], needs: &[NodeNeed]) -> Preflight {
    let mut findings: Vec<_> = roots.iter().map(|root| propagation(root)).collect();
    findings.extend(capabilities(needs));
    findings.extend(kernel());
    findings.extend(["/proc", "/dev"].map(pseudo_filesystem));
    for need in needs {
        match need {
            NodeNeed::BlockDevices => findings.push(pseudo_filesystem("/sys")),
            NodeNeed::Filesystem(filesystem) => findings.extend(tools(*filesystem)),
            NodeNeed::Fuse => findings.push(pseudo_filesystem("/dev/fuse")),
        }
    }
    Preflight { findings }
}

fn finding(subject: impl Into<String>, verdict: Verdict, detail: impl Into<String>) -> PreflightFinding {
    PreflightFinding { subject: subject.into(), verdict, detail: detail.into() }
}

/// The host and the pods see a mount below a directory only if the mount that the directory is on is shared.
fn propagation(root: &Path) -> PreflightFinding {
    let subject = format!("propagation of {}", root.display());
    let mount = match mount_of(root) {
        Ok(mount) => mount,
        Err(error) => return finding(subject, Verdict::Broken, error.to_string()),
    };
    let at = |mount_point: &PathBuf| mount_point.display().to_string();
    match (mount.peer_group, mount.master) {
        (Some(_), _) => finding(subject, Verdict::Fine, ""),
        (None, Some(_)) => {
            let detail = format!(
                "the mount at {} only receives mounts, so pods would see empty directories; set \
                 mountPropagation: Bidirectional on the volume mount of the container",
                at(&mount.mount_point)
            );
            finding(subject, Verdict::Broken, detail)
        }
        (None, None) => {
            let detail = format!(
                "the mount at {} is private, so pods would see empty directories; set mountPropagation: \
                 Bidirectional on the volume mount of the container, and make sure that the host shares \
                 its mounts \
                 (mount --make-rshared /)",
                at(&mount.mount_point)
            );
            finding(subject, Verdict::Broken, detail)
        }
    }
}

fn mount_of(path: &Path) -> Result<MountEntry> {
    let operation = "look at";
    let path = paths::absolute(operation, path)?;
    let look = || facts::from_fd(lookup::open_path(&path, OFlags::DIRECTORY)?);
    let hint = "mount the host's directory of volumes at this path, or name the path at which it is";
    let facts = look().map_err(|error| Error::os(operation, &path, error).hint(hint))?;
    mountinfo::mount_by_id(facts.mount)?
        .ok_or_else(|| Error::new(ErrorKind::NotFound, operation, "its mount is not in the table").at(path))
}

/// Each capability, its name, and what fails without it.
const CAPABILITIES: [(CapabilitySet, &str, Verdict, &str); 4] = [
    (
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        Verdict::Broken,
        "nothing can be mounted; run the container privileged",
    ),
    (
        CapabilitySet::DAC_OVERRIDE,
        "CAP_DAC_OVERRIDE",
        Verdict::Degraded,
        "directories of other users cannot be opened",
    ),
    (
        CapabilitySet::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        Verdict::Degraded,
        "ext4 cannot grow while it is mounted",
    ),
    (
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        Verdict::Degraded,
        "the processes that keep a mount busy are not always found",
    ),
];

fn capabilities(needs: &[NodeNeed]) -> Vec<PreflightFinding> {
    let grows_ext4 = needs.contains(&NodeNeed::Filesystem(Filesystem::Ext4));
    let effective = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    // Only a driver that grows ext4 needs this capability.
    let is_needed = |capability| capability != CapabilitySet::SYS_RESOURCE || grows_ext4;
    let needed = CAPABILITIES.iter().filter(|(capability, ..)| is_needed(*capability));
    let judged = needed.map(|(capability, name, verdict, without)| {
        if effective.contains(*capability) {
            finding(*name, Verdict::Fine, "")
        } else {
            finding(*name, *verdict, *without)
        }
    });
    judged.collect()
}

/// Each system call that has a fallback, and what the fallback costs.
const KERNEL: [(Feature, &str, &str); 6] = [
    (Feature::FsContext, "fsopen and move_mount (Linux 5.2)", "mount errors contain fewer details"),
    (Feature::Openat2, "openat2 (Linux 5.6)", "paths below a root are walked step by step"),
    (Feature::StatxMount, "statx of mounts (Linux 5.8)", "to find a mount, /proc is read"),
    (Feature::CachedLookup, "openat2 with RESOLVE_CACHED (Linux 5.12)", "each bind starts a helper process"),
    (Feature::MountSetattr, "mount_setattr (Linux 5.12)", "a read-only bind of a tree of mounts is refused"),
    (Feature::Statmount, "statmount (Linux 6.8)", "details of a mount are read from the table of all mounts"),
];

fn kernel() -> Vec<PreflightFinding> {
    let judged = KERNEL.iter().map(|(feature, name, without)| {
        if features::has(*feature) && features::probe(*feature) {
            finding(*name, Verdict::Fine, "")
        } else {
            finding(*name, Verdict::Degraded, format!("this kernel does not have it: {without}"))
        }
    });
    judged.collect()
}

/// Checks a pseudo filesystem that every look at mounts and devices needs.
fn pseudo_filesystem(path: &'static str) -> PreflightFinding {
    let probe = match path {
        "/proc" => "/proc/thread-self/mountinfo",
        "/sys" => "/sys/dev/block",
        "/dev/fuse" => "/dev/fuse",
        _ => "/dev/null",
    };
    match fs::metadata(probe) {
        Ok(_) => finding(path, Verdict::Fine, ""),
        Err(error) => {
            finding(path, Verdict::Broken, format!("{probe}: {error}; mount it into the container"))
        }
    }
}

fn tools(filesystem: Filesystem) -> Vec<PreflightFinding> {
    let found = filesystem.tools().iter().map(|program| {
        let subject = format!("{program} for {filesystem}");
        match filesystem.tool(program).find() {
            Ok(_) => finding(subject, Verdict::Fine, ""),
            Err(error) => finding(subject, Verdict::Broken, error.to_string()),
        }
    });
    found.collect()
}

#[cfg(test)]
mod needs_root {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

    use super::*;
    use crate::testing::{private_mount_namespace, share};

    #[test]
    fn the_kubelets_directory_has_to_be_shared() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let path = directory.path();
            mount("kubelet", path, "tmpfs", MountFlags::empty(), c"").unwrap();
            let look = || propagation(path);
            assert_eq!(look().verdict, Verdict::Broken);
            assert!(look().detail.contains("is private"), "{}", look());
            share(path);
            assert_eq!(look(), finding(format!("propagation of {}", path.display()), Verdict::Fine, ""));
            let below = path.join("pods");
            std::fs::create_dir(&below).unwrap();
            assert_eq!(propagation(&below).verdict, Verdict::Fine, "what counts is the mount that it is on");
            // As in a container with `mountPropagation: HostToContainer`.
            private_mount_namespace(|| {
                assert!(look().detail.contains("only receives"), "{}", look());
            });
            mount_change(path, MountPropagationFlags::PRIVATE).unwrap();
            let report = preflight(&[path.to_owned()], &[NodeNeed::Filesystem(Filesystem::Xfs)]);
            assert_eq!(report.verdict(), Verdict::Broken);
            assert!(report.to_string().contains("Bidirectional"), "{report}");
        });
        let absent = propagation(Path::new("/no/such/root")).detail;
        assert!(absent.contains("No such file") && absent.contains("mount the host's directory"), "{absent}");
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{capabilities as of_thread, set_capabilities};

    use super::*;
    use crate::internal::without_features;

    #[test]
    fn a_missing_capability_is_reported_with_its_purpose() {
        let judged = |needs: &'static [NodeNeed]| {
            let limited = move || {
                let mut sets = of_thread(None).unwrap();
                sets.effective = CapabilitySet::DAC_OVERRIDE.intersection(sets.permitted);
                set_capabilities(None, sets).unwrap();
                capabilities(needs)
            };
            // Capabilities belong to a thread.
            std::thread::scope(|scope| scope.spawn(limited).join().unwrap())
        };
        let findings = judged(&[NodeNeed::Filesystem(Filesystem::Ext4)]);
        let said = |subject: &str| findings.iter().find(|found| found.subject == subject).unwrap();
        assert_eq!(said("CAP_SYS_ADMIN").verdict, Verdict::Broken);
        assert!(said("CAP_SYS_ADMIN").detail.contains("nothing can be mounted"), "{findings:?}");
        assert_eq!(said("CAP_SYS_RESOURCE").verdict, Verdict::Degraded);
        for needs in [&[NodeNeed::Fuse][..], &[NodeNeed::Filesystem(Filesystem::Xfs)], &[]] {
            let subjects: Vec<_> = judged(needs).into_iter().map(|found| found.subject).collect();
            assert_eq!(subjects, ["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE"], "{needs:?}");
        }
        let report = Preflight { findings: findings.clone() };
        assert_eq!(report.verdict(), Verdict::Broken);
        assert!(report.to_string().contains("CAP_SYS_ADMIN"), "{report}");
    }

    #[test]
    fn only_what_the_driver_uses_is_checked() {
        let subjects = |needs: &[NodeNeed]| {
            let report = preflight(&[PathBuf::from("/")], needs);
            report.findings().iter().map(|found| found.subject.clone()).collect::<Vec<_>>()
        };
        let plain = subjects(&[]);
        let fuse = subjects(&[NodeNeed::Fuse]);
        assert!(!plain.iter().any(|subject| subject == "/sys" || subject.contains("mkfs")), "{plain:?}");
        assert_eq!(fuse, [plain.clone(), vec!["/dev/fuse".to_owned()]].concat());
        let xfs = subjects(&[NodeNeed::BlockDevices, NodeNeed::Filesystem(Filesystem::Xfs)]);
        assert!(xfs.contains(&"/sys".to_owned()) && xfs.contains(&"mkfs.xfs for xfs".to_owned()), "{xfs:?}");
    }

    #[test]
    fn a_missing_kernel_feature_is_reported_with_its_consequence() {
        without_features(&[Feature::MountSetattr], || {
            let findings = kernel();
            let bad: Vec<_> = findings.iter().filter(|found| found.verdict != Verdict::Fine).collect();
            assert_eq!(bad.len(), 1, "{bad:?}");
            assert!(bad[0].to_string().contains("a read-only bind of a tree"), "{}", bad[0]);
        });
    }
}
