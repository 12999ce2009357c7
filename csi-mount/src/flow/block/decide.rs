//! What a stage does with a device, decided from what the device holds, its size, and what the plan allows. Nothing
//! is read or written here.

use super::plan::{StageCheck, StagePlan};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind};
use crate::filesystem::probe::{BlankProof, InterruptedFormat, Probe, Signature, content_missing};

/// What a stage does with the content of a device.
#[derive(Debug)]
pub(super) enum Action<'d> {
    /// Make the filesystem.
    Format(BlankProof<'d>),
    /// Make the filesystem, of which an earlier call has made a part.
    FormatAgain(InterruptedFormat<'d>),
    /// Mount the filesystem, after this.
    Use(Upkeep),
    /// Fail, and change nothing.
    Refuse(Refusal<'d>),
}

/// Why a stage can't use a device.
#[derive(Debug)]
pub(super) enum Refusal<'d> {
    /// There is no content, but the volume must have some.
    ContentMissing(Probe<'d>),
    /// There is no content, and a read-only stage makes none.
    NothingToRead,
    /// There is other content, or it is not known.
    OtherContent(Probe<'d>),
    /// The device has this many bytes, and the filesystem on it needs more. The kernel would only say that an
    /// argument is invalid, and a repair would cut off what is behind the end.
    EndMissing(Signature, u64),
}

pub(super) fn decide<'d>(found: Probe<'d>, device_size: u64, plan: &StagePlan) -> Action<'d> {
    match found {
        Probe::Blank(_) | Probe::Interrupted(_) if plan.never_format => {
            Action::Refuse(Refusal::ContentMissing(found))
        }
        Probe::Blank(_) | Probe::Interrupted(_) if !plan.writes() => Action::Refuse(Refusal::NothingToRead),
        Probe::Blank(proof) => Action::Format(proof),
        Probe::Interrupted(format) => Action::FormatAgain(format),
        Probe::Filesystem(found) if found.filesystem() == Some(plan.filesystem) => {
            if found.size.is_some_and(|needed| needed > device_size) {
                return Action::Refuse(Refusal::EndMissing(found, device_size));
            }
            Action::Use(Upkeep::of(&found, device_size, plan))
        }
        other => Action::Refuse(Refusal::OtherContent(other)),
    }
}

impl Refusal<'_> {
    pub(super) fn into_error(self, operation: &'static str, device: &BlockDevice, plan: &StagePlan) -> Error {
        match self {
            Self::ContentMissing(found) => content_missing(operation, device, found),
            Self::NothingToRead => {
                let reason = "the device has no filesystem yet, and a read-only stage does not format it";
                Error::new(ErrorKind::ReadOnly, operation, reason).at(device.path()).hint(
                    "check whether this is the volume's device; only a stage for writing makes a filesystem",
                )
            }
            Self::OtherContent(found) => {
                let usable = found.filesystem();
                let error = found.refusal(operation, device);
                match usable {
                    Some(usable) => error.hint(format!(
                        "to use it, request {usable} instead of {}; the device was not changed",
                        plan.filesystem
                    )),
                    None => error,
                }
            }
            Self::EndMissing(found, size) => {
                let needed = found.size.unwrap_or_default();
                let name = found.name;
                let reason = format!(
                    "the device has {size} bytes, but the {name} on it has {needed}: its end is missing"
                );
                Error::new(ErrorKind::Damaged, operation, reason).at(device.path()).hint(
                    "give the device its size back, or restore the volume; do not repair the filesystem: that \
                     removes what is behind the end",
                )
            }
        }
    }
}

/// What is done with a filesystem before it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Upkeep {
    pub(super) check: bool,
    pub(super) grow: bool,
}

impl Upkeep {
    fn of(found: &Signature, device_size: u64, plan: &StagePlan) -> Self {
        let is_possible = plan.writes() && plan.filesystem.is_maintained_unmounted();
        let wants_check = match plan.check {
            StageCheck::Never => false,
            StageCheck::WhenNeeded => found.has_errors,
            StageCheck::Always => true,
        };
        Self { check: is_possible && wants_check, grow: is_possible && found.can_grow_to(device_size) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::filesystem::format::record::FormatKind;
    use crate::filesystem::kind::Filesystem;
    use crate::mounting::options::MountOptions;

    fn plans() -> [StagePlan; 4] {
        let plan = StagePlan::new(Filesystem::Ext4);
        let read_only = plan.clone().options(MountOptions::new().read_only());
        [plan.clone(), plan.never_format(), read_only.clone(), read_only.never_format()]
    }

    fn ext4() -> Signature {
        Signature { size: Some(1000), ..Signature::new("ext4", 0) }
    }

    fn name(action: &Action<'_>) -> &'static str {
        match action {
            Action::Format(_) => "format",
            Action::FormatAgain(_) => "format again",
            Action::Use(_) => "use",
            Action::Refuse(Refusal::ContentMissing(_)) => "content missing",
            Action::Refuse(Refusal::NothingToRead) => "nothing to read",
            Action::Refuse(Refusal::OtherContent(_)) => "other content",
            Action::Refuse(Refusal::EndMissing(..)) => "end missing",
        }
    }

    /// Only a blank device, or a format of this crate that was interrupted, is formatted.
    #[test]
    fn only_a_device_without_content_is_formatted() {
        type Found = for<'d> fn(&'d BlockDevice) -> Probe<'d>;
        let interrupted: Found = |device| {
            let made = FormatKind::Filesystem(Filesystem::Xfs);
            Probe::Interrupted(InterruptedFormat { device, made })
        };
        let missing = "content missing";
        let nothing = "nothing to read";
        let longer: Found = |_| Probe::Filesystem(Signature { size: Some(1001), ..ext4() });
        let cases: [(Found, [&str; 4]); 10] = [
            (|device| Probe::Blank(BlankProof::for_test(device)), ["format", missing, nothing, missing]),
            (interrupted, ["format again", missing, nothing, missing]),
            (|_| Probe::Filesystem(ext4()), ["use"; 4]),
            (longer, ["end missing"; 4]),
            (|_| Probe::Filesystem(Signature::new("xfs", 0)), ["other content"; 4]),
            (|_| Probe::PartitionTable(Signature::new("gpt", 0)), ["other content"; 4]),
            (|_| Probe::Container(Signature::new("crypto_LUKS", 0)), ["other content"; 4]),
            (|_| Probe::Ambiguous(vec![ext4(), Signature::new("dos", 0)]), ["other content"; 4]),
            (|_| Probe::UnknownData { offset: 7, looks_like: None }, ["other content"; 4]),
            (
                |_| Probe::Unreadable { offset: 0, error: std::io::ErrorKind::Other.into() },
                ["other content"; 4],
            ),
        ];
        let device = BlockDevice::for_test();
        for (found, expected) in cases {
            let actions = plans().map(|plan| name(&decide(found(&device), 1000, &plan)));
            assert_eq!(actions, expected, "{:?}", found(&device));
        }
    }

    #[test]
    fn an_unmounted_filesystem_is_only_changed_if_the_plan_writes() {
        let always = |plan: StagePlan| plan.check(StageCheck::Always, Duration::from_secs(60));
        let [plan, _, read_only, _] = plans();
        let xfs = StagePlan::new(Filesystem::Xfs);
        let damaged = Signature { has_errors: true, ..ext4() };
        let never = plan.clone().check(StageCheck::Never, Duration::from_secs(60));
        for (found, size, plan, check, grow) in [
            (&ext4(), 1000, &plan, false, false),
            (&ext4(), 1001, &plan, false, true),
            (&damaged, 1000, &plan, true, false),
            (&damaged, 1001, &never, false, true),
            (&ext4(), 1000, &always(plan.clone()), true, false),
            (&damaged, 1001, &always(read_only), false, false),
            (&damaged, 1001, &always(xfs), false, false),
        ] {
            assert_eq!(Upkeep::of(found, size, plan), Upkeep { check, grow }, "{found:?} {size} {plan:?}");
        }
    }
}
