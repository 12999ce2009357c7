//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use csi_cli::lifecycle::Keep;
use csi_mount::Filesystem;

pub(crate) const USAGE: &str = "\
usage: quickstart [--fs ext4|xfs|btrfs] [--only block|dirs] [--keep]
       quickstart --help";

pub(crate) const HELP: &str = "\
Runs the example drivers and plays the orchestrator against them.

usage: quickstart [--fs ext4|xfs|btrfs] [--only block|dirs] [--keep]

Each driver runs in a process of its own and listens on a unix socket in a temporary
directory. Over gRPC the quickstart asks it who it is and what it can do, creates a
volume, stages it, publishes it to two targets, one of them read-only, writes and reads
a file, sees a write refused, expands the volume, and takes it all back. Every call is
made twice, for a driver has to stand that. One line a step: what was done, how long it
took, and how long it took again.

  --fs NAME     the filesystem of the block driver's volume; ext4 unless given
  --only NAME   this driver alone:
                  block   image files on loop devices: a filesystem, and a raw device
                          (needs root)
                  dirs    directories (root or not)
  --keep        stop before the volumes are unpublished, keep mounts, loop devices and
                files, and print the commands that take them away
  -h, --help    this text

As root, both drivers run in a private mount namespace (with --keep in this one). As an
ordinary user, `dirs` runs in a user and mount namespace of its own.

Whatever happens, nothing is left: no mount, loop device, file or process. Ctrl-C stops
it at any time, and it cleans up.

TMPDIR says where the temporary directory is made. NO_COLOR turns the colours off, and
so does output that is no terminal.

exit status: 0  all is well
             1  a step failed
             2  it could not start; what is missing is named
           130  Ctrl-C (129 after SIGHUP, 143 after SIGTERM)
";

/// One of the example drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Example {
    /// Image files on loop devices.
    Block,
    /// Directories.
    Dirs,
}

impl Example {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Dirs => "dirs",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Block, Self::Dirs].into_iter().find(|example| example.name() == name)
    }
}

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) filesystem: Option<Filesystem>,
    pub(crate) only: Option<Example>,
    pub(crate) keep: Keep,
}

/// What the quickstart passes to the driver's process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) example: Example,
    /// The process that starts the driver.
    pub(crate) parent: i32,
    /// The temporary directory of the whole run.
    pub(crate) place: PathBuf,
    /// What happens to the temporary directory when the parent is killed.
    pub(crate) keep: Keep,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Run(Run),
    Help,
    /// Internal: run as the driver's process.
    Driver(Role),
}

/// The hidden first argument of the driver's process.
const DRIVER: &str = "driver";

impl Role {
    /// The arguments from which [`parse`] reads this role.
    pub(crate) fn arguments(&self) -> [OsString; 5] {
        let keep = if self.keep == Keep::Everything { "keep" } else { "sweep" };
        let place = self.place.clone().into();
        [DRIVER.into(), self.example.name().into(), self.parent.to_string().into(), place, keep.into()]
    }

    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut next = || arguments.next();
        Some(Self {
            example: Example::named(next()?.to_str()?)?,
            parent: next()?.to_str()?.parse().ok()?,
            place: next()?.into(),
            keep: if next()? == "keep" { Keep::Everything } else { Keep::Nothing },
        })
    }
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// Says what is wrong with the arguments.
pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut arguments = arguments.peekable();
    if arguments.next_if(|first| first == DRIVER).is_some() {
        return Role::parse(arguments).map(Command::Driver).ok_or("driver: not for people".to_owned());
    }
    let mut run = Run { filesystem: None, only: None, keep: Keep::Nothing };
    while let Some(argument) = arguments.next() {
        let argument = argument.into_string().map_err(|other| format!("unknown argument {other:?}"))?;
        let (name, mut value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let mut value_of = |choices: &str| {
            let next = || arguments.next().and_then(|next| next.into_string().ok());
            value.take().or_else(next).ok_or_else(|| format!("{name} wants one of {choices}"))
        };
        match name {
            "--fs" => {
                let value = value_of("ext4, xfs, btrfs")?;
                let filesystem = value.parse();
                run.filesystem =
                    Some(filesystem.map_err(|_| format!("--fs {value}: it is one of ext4, xfs, btrfs"))?);
            }
            "--only" => {
                let value = value_of("block, dirs")?;
                let example = Example::named(&value);
                run.only = Some(example.ok_or_else(|| format!("--only {value}: it is one of block, dirs"))?);
            }
            "--keep" => run.keep = Keep::Everything,
            "--help" | "-h" => return Ok(Command::Help),
            _ => return Err(format!("unknown argument {argument:?}")),
        }
        if value.is_some() {
            return Err(format!("{name} takes no value"));
        }
    }
    if run.filesystem.is_some() && run.only == Some(Example::Dirs) {
        return Err("--fs is for the block driver, and --only leaves it out".to_owned());
    }
    Ok(Command::Run(run))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn good_lines() {
        let run = |filesystem, only, keep| Ok(Command::Run(Run { filesystem, only, keep }));
        assert_eq!(parsed(""), run(None, None, Keep::Nothing));
        assert_eq!(parsed("--fs xfs"), run(Some(Filesystem::Xfs), None, Keep::Nothing));
        let both = run(Some(Filesystem::Btrfs), Some(Example::Block), Keep::Everything);
        assert_eq!(parsed("--fs=btrfs --keep --only=block"), both);
        assert_eq!(parsed("--keep --help"), Ok(Command::Help));
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (line, says) in [
            ("--fs", "wants one of ext4"),
            ("--fs zfs", "--fs zfs"),
            ("--fs=", "one of ext4"),
            ("--only nfs", "block, dirs"),
            ("--keep=yes", "takes no value"),
            ("--only dirs --fs xfs", "leaves it out"),
            ("block", "unknown argument"),
            ("driver", "not for people"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn a_role_survives_the_command_line() {
        for keep in [Keep::Nothing, Keep::Everything] {
            let role = Role { example: Example::Block, parent: 17, place: "/tmp/a b".into(), keep };
            assert_eq!(parse(role.arguments().into_iter()), Ok(Command::Driver(role)));
        }
    }
}
