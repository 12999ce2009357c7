//! The program's flags, and the kit that they configure.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use csi_conformance::{Endpoint, Kit, MountAccess, Pairs};

/// Tests a CSI driver on a socket against the rules of CSI v1.13.0 and v1.12.0.
///
/// The driver creates, uses and deletes volumes during the tests: give it a storage pool for tests.
#[derive(Parser)]
#[command(name = "csi-conformance", version, after_long_help = AFTER)]
pub(crate) struct Args {
    /// The driver's socket, such as unix:///run/csi/csi.sock.
    #[arg(long, env = "CSI_ENDPOINT", required_unless_present = "list")]
    pub(crate) endpoint: Option<Endpoint>,
    /// The controller's socket, if it has its own.
    #[arg(long, value_name = "ENDPOINT")]
    controller_endpoint: Option<Endpoint>,
    /// The socket of the same driver on another node, for tests with two nodes. Nothing is mounted there.
    #[arg(long, value_name = "ENDPOINT")]
    second_node: Option<Endpoint>,
    /// An existing directory in which volumes are staged.
    #[arg(long, value_name = "DIR")]
    staging: Option<PathBuf>,
    /// An existing directory in which volumes are published. Without it no volume is staged or published.
    #[arg(long, value_name = "DIR")]
    target: Option<PathBuf>,
    /// The driver's mounts are not visible to this program: make the calls, and do not check the mounts.
    #[arg(long)]
    no_mount_access: bool,

    /// Run only the tests whose id, rule or section contains this text (repeatable: any of the texts).
    #[arg(long, value_name = "TEXT", help_heading = "Which tests")]
    only: Vec<String>,
    /// Leave out the tests whose id, rule or section contains this text (repeatable).
    #[arg(long, value_name = "TEXT", help_heading = "Which tests")]
    skip: Vec<String>,
    /// Also fail for rules that are not a MUST of the spec: its SHOULDs, and good practice.
    #[arg(long, help_heading = "Which tests")]
    strict: bool,
    /// List the tests with their levels and rules, and run none.
    #[arg(long, help_heading = "Which tests")]
    pub(crate) list: bool,

    /// Secrets: a file of lines key=value; a heading such as [CreateVolume] begins the lines of one RPC.
    #[arg(long, value_name = "FILE", help_heading = "What to send")]
    secrets: Option<PathBuf>,
    /// Parameters of volumes and snapshots, in the same format.
    #[arg(long, value_name = "FILE", help_heading = "What to send")]
    parameters: Option<PathBuf>,
    /// Mutable parameters that the driver accepts, in the same format; two keys test more than one.
    #[arg(long, value_name = "FILE", help_heading = "What to send")]
    mutable_parameters: Option<PathBuf>,
    /// The driver supports inline ephemeral volumes; the optional file has their attributes.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "/dev/null", help_heading = "What to send")]
    ephemeral: Option<PathBuf>,
    /// An existing volume, for a driver that creates none. It is written to, and not deleted.
    #[arg(long, value_name = "ID", help_heading = "What to send")]
    volume: Option<String>,
    /// The context of that volume, in the same format as secrets.
    #[arg(long, value_name = "FILE", requires = "volume", help_heading = "What to send")]
    volume_context: Option<PathBuf>,
    /// A volume that the driver reports as unhealthy. Only its health is read.
    #[arg(long, value_name = "ID", help_heading = "What to send")]
    unhealthy_volume: Option<String>,
    /// The filesystem of volumes.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        help_heading = "What to send"
    )]
    fs_type: String,
    /// A mount option for volumes, such as noexec (repeatable: all of them). No report shows it, but other
    /// users of the machine can read a program's arguments.
    #[arg(long = "mount-flag", value_name = "FLAG", help_heading = "What to send")]
    mount_flags: Vec<String>,
    /// The size of volumes in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(i64).range(1..1 << 30), help_heading = "What to send")]
    size: i64,
    /// The driver limits volumes to their size: a write of more than the size must fail.
    #[arg(long, help_heading = "What to send")]
    enforces_size: bool,
    /// The time limit of a call in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..), help_heading = "What to send")]
    deadline: u64,

    /// The format of standard output.
    #[arg(long, value_enum, default_value_t = Format::Text, help_heading = "Reports")]
    pub(crate) format: Format,
    /// Also write the report as TAP to this file.
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub(crate) tap: Option<PathBuf>,
    /// Also write the report as JUnit XML to this file.
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub(crate) junit: Option<PathBuf>,

    /// The file that records what the run creates. The default is a file in the state directory,
    /// $XDG_STATE_HOME/csi-conformance or ~/.local/state/csi-conformance.
    #[arg(long, value_name = "FILE", help_heading = "After a run")]
    journal: Option<PathBuf>,
    /// Clean up after a run that was killed: undo everything in its journal.
    #[arg(long, help_heading = "After a run")]
    pub(crate) clean_up: bool,
}

const AFTER: &str = "\
Exit status:
  0  all tests of the level MUST that apply passed; with --strict, all tests
  1  a MUST failed, or something could not be undone
  2  the run could not start, was stopped, or its report can't be written
  3  with --strict: every MUST passed, and a SHOULD or good practice failed

Examples:
  A driver with controller and node service, on a node:
    mkdir -p /var/tmp/staging /var/tmp/target
    csi-conformance --endpoint unix:///run/csi/csi.sock --staging /var/tmp/staging --target /var/tmp/target
  Only a controller:
    csi-conformance --endpoint unix:///run/csi/csi.sock
  A failed test again:
    csi-conformance --endpoint unix:///run/csi/csi.sock --only create-volume.clone
  A driver for inline volumes:
    csi-conformance --endpoint unix:///run/csi/csi.sock --target /var/tmp/target --ephemeral";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Tap,
    Junit,
}

impl Args {
    /// Builds the kit.
    ///
    /// # Errors
    /// Says which file can't be read.
    pub(crate) fn kit(&self) -> Result<Kit, String> {
        // `--list` needs no driver.
        let nowhere = || "/nowhere.sock".parse::<Endpoint>().map_err(|error| error.to_string());
        let endpoint = self.endpoint.clone().map_or_else(nowhere, Ok)?;
        let mut kit = Kit::new(endpoint)
            .secrets(pairs(self.secrets.as_deref())?)
            .parameters(pairs(self.parameters.as_deref())?)
            .mutable_parameters(pairs(self.mutable_parameters.as_deref())?)
            .fs_type(&self.fs_type)
            .mount_flags(&self.mount_flags)
            .size(self.size << 20)
            .deadline(Duration::from_secs(self.deadline))
            .mount_access(if self.no_mount_access { MountAccess::Elsewhere } else { MountAccess::Here });
        if let Some(attributes) = &self.ephemeral {
            kit = kit.ephemeral(pairs(Some(attributes))?);
        }
        if let Some(id) = &self.volume {
            kit = kit.volume(id, pairs(self.volume_context.as_deref())?);
        }
        if self.strict {
            kit = kit.strict();
        }
        if self.enforces_size {
            kit = kit.enforces_size();
        }
        kit = given(kit, &self.controller_endpoint, Kit::controller);
        kit = given(kit, &self.second_node, Kit::second_node);
        kit = given(kit, &self.journal()?, Kit::journal);
        kit = given(kit, &self.staging, Kit::staging);
        kit = given(kit, &self.target, Kit::target);
        kit = given(kit, &self.unhealthy_volume, Kit::unhealthy_volume);
        kit = self.only.iter().fold(kit, Kit::only);
        Ok(self.skip.iter().fold(kit, Kit::skip))
    }
}

impl Args {
    /// The file that records what the run creates; none if it creates nothing.
    ///
    /// # Errors
    /// When there is no directory for it.
    pub(crate) fn journal(&self) -> Result<Option<PathBuf>, String> {
        match (&self.journal, &self.endpoint) {
            (Some(path), _) => Ok(Some(path.clone())),
            (None, Some(endpoint)) if !self.list => default_journal(endpoint).map(Some),
            _ => Ok(None),
        }
    }
}

fn given<T: Clone>(kit: Kit, value: &Option<T>, with: impl FnOnce(Kit, T) -> Kit) -> Kit {
    match value.clone() {
        Some(value) => with(kit, value),
        None => kit,
    }
}

/// One journal per driver, in the user's own state directory, so that a later run finds it.
fn default_journal(endpoint: &Endpoint) -> Result<PathBuf, String> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let words = "no directory for the run's journal, because XDG_STATE_HOME and HOME are not set: name a \
                 file with --journal";
    let directory = state.ok_or(words)?.join("csi-conformance");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| format!("{}: {error}; name a file with --journal", directory.display()))?;
    Ok(directory.join(format!("{}.journal", as_name(&endpoint.to_string()))))
}

/// Encodes text as a file name. Different texts have different names.
fn as_name(text: &str) -> String {
    let mut name = String::new();
    for byte in text.bytes() {
        match byte {
            b'.' | b'_' => name.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

fn pairs(path: Option<&Path>) -> Result<Pairs, String> {
    let Some(path) = path else { return Ok(Pairs::default()) };
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Pairs::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_has_a_journal_of_its_own() {
        assert_eq!(as_name("unix:///a-b.sock"), "unix%3a%2f%2f%2fa%2db.sock");
        assert_ne!(as_name("unix:///a/b.sock"), as_name("unix:///a-b.sock"));
        assert_ne!(as_name("unix:///a-b.sock"), as_name("unix:///a.b.sock"));
    }
}
