//! `csi lifecycle`: a volume's whole life against any driver.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use csi_proto::v1;
use v1::volume_capability::AccessType;

use super::common::{self, Common};
use super::output::{Format, Stop};
use super::{exit, secrets, values};
use crate::lifecycle::internal::{Keep, Report, Signal, Signals, UndoLog, run_recorded};
use crate::lifecycle::{Content, Failure, Options, Places, TargetChecks, UndoResult, VolumeSpec, quoted};
use crate::secrets::hidden;

pub(crate) const NAME: &str = "lifecycle";

const HELP: &str = "\
Runs the whole life cycle of a volume, each call twice: create, validate, attach, stage, publish to one or two
targets, write and read, stats, snapshot, expand, unpublish, unstage, detach, restore the snapshot and clone the
volume, read the data of each copy, and delete. Steps that the driver does not offer are left out and reported as
such. When a step fails, and after Ctrl-C, all steps are undone. Those that can't be undone are listed, with the
commands that undo them.";

const SAME_NAME: &str = "\
The name for CreateVolume [default: csi-lifecycle- and numbers]
A driver returns the volume that has this name already, and it is then written to and deleted";

const IN_USE: &str = "\
Use this existing volume: it is not written to, expanded or deleted
It is detached from this node at the end, also if a pod uses it";

const EXAMPLES: &str = "\
Examples:
  csi lifecycle
  csi lifecycle --capability rwo,mount,xfs --size 512Mi --grown 1Gi --parameters pool=fast
  csi lifecycle --capability rwo,block --secrets-file secrets
  csi lifecycle --volume-id pvc-1 --no-mount-access --staging /var/lib/kubelet/x --target /var/lib/kubelet/y
  csi lifecycle --no-node";

pub(crate) fn command() -> Command {
    Command::new(NAME)
        .about("Run the whole life cycle of a volume, and leave nothing behind")
        .long_about(HELP)
        .args(volume_arguments())
        .args(place_arguments())
        .arg(common::controller_argument())
        .args(secrets::arguments())
        .after_help(EXAMPLES)
}

fn flag(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn volume_arguments() -> [Arg; 7] {
    let pairs = ValueParser::from(values::pair);
    [
        flag("name", "NAME", "The name for CreateVolume [default: csi-lifecycle- and numbers]")
            .long_help(SAME_NAME),
        flag("capability", "MODE,TYPE[,FS]", "The capability: rwo,mount,ext4 or rwx,block")
            .default_value("rwo,mount")
            .long_help(format!("The capability: rwo,mount,ext4 or rwx,block\n{}", values::CAPABILITY_HELP))
            .value_parser(ValueParser::from(values::capability)),
        flag("size", "SIZE", "The initial size")
            .visible_alias("required-bytes")
            .default_value("512Mi")
            .value_parser(ValueParser::from(values::size)),
        flag("grown", "SIZE", "The size after the expansion [default: twice the initial size]")
            .value_parser(ValueParser::from(values::size)),
        flag("parameters", "KEY=VALUE", "One of the parameters (repeatable)")
            .action(ArgAction::Append)
            .value_parser(pairs.clone()),
        flag("volume-id", "ID", "Use this existing volume: it is not written to, expanded or deleted")
            .long_help(IN_USE),
        flag("volume-context", "KEY=VALUE", "Its volume context, as returned by CreateVolume (repeatable)")
            .action(ArgAction::Append)
            .requires("volume-id")
            .value_parser(pairs),
    ]
}

fn place_arguments() -> [Arg; 5] {
    let path = clap::value_parser!(PathBuf);
    let switch = |name: &'static str, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    [
        flag("staging", "DIR", "An existing directory for staging [default: a temporary one]")
            .value_parser(path.clone())
            .value_hint(ValueHint::DirPath),
        flag("target", "DIR", "An existing directory for the targets [default: a temporary one]")
            .value_parser(path)
            .value_hint(ValueHint::DirPath),
        switch("no-node", "Do not stage or publish the volume").conflicts_with_all(["staging", "target"]),
        switch(
            "no-mount-access",
            "The driver's mounts are not visible to this program: make the calls, and do not check the \
             mounts",
        ),
        switch("keep", "Stop before the volume is unpublished, and print the commands that undo all steps"),
    ]
}

pub(crate) async fn run(matches: &ArgMatches, common: &Common) -> Result<(), Stop> {
    let spec = spec(matches)?;
    let checks = spec.checks;
    let keep = spec.keep;
    let secrets = secrets::read(matches)?;
    // Signals are caught before anything exists that a signal would leave behind.
    let mut signals = Signals::install()?;
    let sockets = common.sockets().await?;
    let place = if matches.get_flag("no-node") { None } else { Some(Place::make(matches)?) };
    let mut report = match common.format {
        Format::Table => Report::new(),
        Format::Json => Report::new().json(),
    };
    report.hide(&hidden(&secrets));
    report.heading(&common.endpoint());
    let options = Options {
        timeout: common.timeout,
        places: place.as_ref().map(|place| place.places.clone()),
        secrets,
        volumes: vec![spec],
        ..Options::at(sockets.clone())
    };
    let mut undo_log = UndoLog::default();
    let end = tokio::select! {
        biased;
        caught = signals.next() => End::Signal(caught),
        outcome = run_recorded(&options, &mut report, &mut undo_log) => match outcome {
            Ok(()) => End::Well,
            Err(failure) => End::Failed(failure),
        },
    };
    match &end {
        End::Well => {}
        End::Failed(failure) => report_failure(&mut report, failure, checks),
        End::Signal(caught) => report.left_out(caught.name, "stopped by this signal"),
    }
    let mut undone = match keep {
        Keep::Everything if matches!(end, End::Well) => undo_log.kept(),
        _ => tokio::select! {
            undone = undo_log.undo(&sockets) => undone,
            // A second signal ends the clean-up.
            caught = signals.next() => {
                UndoResult { failed: vec![format!("{} again", caught.name)], ..undo_log.kept() }
            }
        },
    };
    undone.left.extend(place.and_then(Place::remove));
    match conclude(&report, &end, &undone, keep) {
        exit::DONE => Ok(()),
        status => Err(Stop::Exit(status)),
    }
}

enum End {
    Well,
    Failed(Failure),
    Signal(Signal),
}

fn spec(matches: &ArgMatches) -> Result<VolumeSpec, Stop> {
    let pairs = |name| -> BTreeMap<String, String> {
        matches.get_many::<(String, String)>(name).into_iter().flatten().cloned().collect()
    };
    let capability = matches.get_one::<v1::VolumeCapability>("capability").cloned().unwrap_or_default();
    let size = *matches.get_one::<i64>("size").unwrap_or_else(|| unreachable!("it has a default"));
    let grown = matches.get_one::<i64>("grown").copied().unwrap_or(size.saturating_mul(2));
    if grown < size {
        return Err(Stop::Usage("--grown is less than --size: a volume can't become smaller".to_owned()));
    }
    let name = matches.get_one::<String>("name").cloned().unwrap_or_else(own_name);
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(Stop::Usage(format!(
            "--name {name:?}: a directory gets this name too, so it can't contain / or begin with a dot"
        )));
    }
    let volume = matches.get_one::<String>("volume-id").cloned();
    let mut spec = VolumeSpec::new(name, Content::Files, size, grown);
    match capability.access_type {
        Some(AccessType::Mount(mount)) => spec.mount = mount,
        _ => spec.content = Content::Device,
    }
    // A given mode is used. The default depends on whether the driver supports two targets.
    let is_default = matches.value_source("capability") == Some(clap::parser::ValueSource::DefaultValue);
    spec.mode = capability.access_mode.filter(|_| !is_default).map(|mode| mode.mode());
    spec.title = volume.as_ref().map_or(spec.name.clone(), |volume| format!("{volume}, an existing volume"));
    spec.parameters = pairs("parameters").into_iter().collect();
    if let Some(id) = volume {
        spec = spec.existing(id, pairs("volume-context"));
    }
    if matches.get_flag("no-mount-access") {
        spec.checks = TargetChecks::Off;
    }
    if matches.get_flag("keep") {
        spec.keep = Keep::Everything;
    }
    Ok(spec)
}

fn own_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("csi-lifecycle-{}-{}", now.as_secs(), std::process::id())
}

/// The directories for volumes, and the one that was created for them.
struct Place {
    places: Places,
    made: Option<PathBuf>,
}

impl Place {
    fn make(matches: &ArgMatches) -> Result<Self, Stop> {
        let given = |name| matches.get_one::<PathBuf>(name).map(|path| existing(name, path)).transpose();
        let staging = given("staging")?;
        let target = given("target")?;
        let made = match (&staging, &target) {
            (Some(_), Some(_)) => None,
            _ => Some(temporary()?),
        };
        let place = |given: Option<PathBuf>| given.or_else(|| made.clone()).unwrap_or_default();
        Ok(Self { places: Places { staging: place(staging), target: place(target) }, made })
    }

    /// Removes the created directory. If it is not empty, returns the command that removes it.
    fn remove(self) -> Option<String> {
        let made = self.made?;
        std::fs::remove_dir(&made).err().map(|_| format!("rmdir {}", quoted(&made.display().to_string())))
    }
}

/// The absolute path of an existing directory; drivers need absolute paths.
fn existing(name: &str, path: &Path) -> Result<PathBuf, Stop> {
    let wrong = |reason: &str| Stop::Usage(format!("--{name} {}: {reason}", path.display()));
    let path = path.canonicalize().map_err(|error| wrong(&error.to_string()))?;
    if !path.is_dir() || path.to_str().is_none() {
        return Err(wrong("name an existing directory whose path is UTF-8"));
    }
    Ok(path)
}

fn temporary() -> Result<PathBuf, Stop> {
    let path = std::env::temp_dir().join(own_name());
    let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
    made.map_err(|error| Stop::Usage(format!("{}: {error}; use --staging and --target", path.display())))?;
    existing("target", &path)
}

fn report_failure(report: &mut Report, failure: &Failure, checks: TargetChecks) {
    report.failed(&failure.step, &failure.reason, &[]);
    if checks != TargetChecks::Off && failure.reason.starts_with("nothing is mounted at") {
        report.detail(
            "if the driver has its own mount namespace, its mounts are not visible here: use \
                       --no-mount-access",
        );
    }
}

fn conclude(report: &Report, end: &End, undone: &UndoResult, keep: Keep) -> u8 {
    report.undone(undone);
    let left = match undone.left.len() {
        0 => "nothing is left".to_owned(),
        _ if keep == Keep::Everything && matches!(end, End::Well) => "everything is kept".to_owned(),
        1 => "1 object is left".to_owned(),
        more => format!("{more} objects are left"),
    };
    match end {
        End::Well if undone.failed.is_empty() => {
            report.all_well(&left);
            exit::DONE
        }
        End::Well => {
            report.ended("the steps succeeded, but not all were undone", &left);
            exit::FAILED
        }
        End::Failed(failure) => {
            report.ended(&format!("{} failed", failure.step.trim()), &left);
            exit::FAILED
        }
        End::Signal(caught) => {
            report.ended(&format!("stopped by {}", caught.name), &left);
            if undone.left.is_empty() { caught.status() } else { exit::FAILED }
        }
    }
}
