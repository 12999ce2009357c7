//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use csi_cli::lifecycle::internal::Keep;
use csi_mount::Filesystem;

pub(crate) const USAGE: &str = "\
usage: quickstart [--fs ext4|xfs|btrfs] [--only block|dirs] [--keep]
       quickstart --help";

pub(crate) const HELP: &str = "\
Runs the example drivers, with itself as the orchestrator.

usage: quickstart [--fs ext4|xfs|btrfs] [--only block|dirs] [--keep]

Each driver runs in its own process and listens on a unix socket in a temporary
directory. Over gRPC the quickstart reads the driver's name and capabilities, creates a
volume, stages it, publishes it to two targets (one read-only), writes and reads a file,
checks that a write to the read-only target is refused, expands the volume, and undoes
all steps. It makes every call twice, because a driver must accept repeated calls. It
prints one line per step, with the times of the first and the second call.

  --fs NAME     the filesystem of the block driver's volume [default: ext4]
  --only NAME   run only this driver:
                  block   image files on loop devices: a filesystem, and a raw device
                          (needs root)
                  dirs    directories (root or not)
  --keep        stop before the volumes are unpublished, keep mounts, loop devices and
                files, and print the commands that remove them
  -h, --help    print this text

As root, both drivers run in a private mount namespace; with --keep in the current one.
As an ordinary user, `dirs` runs in its own user and mount namespace.

At the end nothing is left: no mount, loop device, file or process. Ctrl-C stops the
quickstart at any time; it then cleans up.

TMPDIR is the parent of the temporary directory. There are no colours if NO_COLOR is set
or the output is not a terminal.

exit status: 0  success
             1  a step failed
             2  it could not start; the error names what is missing
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
        return Role::parse(arguments).map(Command::Driver).ok_or("driver: only for internal use".to_owned());
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
            value.take().or_else(next).ok_or_else(|| format!("{name} needs one of {choices}"))
        };
        match name {
            "--fs" => {
                let value = value_of("ext4, xfs, btrfs")?;
                let filesystem = value.parse();
                run.filesystem =
                    Some(filesystem.map_err(|_| format!("--fs {value}: must be one of ext4, xfs, btrfs"))?);
            }
            "--only" => {
                let value = value_of("block, dirs")?;
                let example = Example::named(&value);
                run.only =
                    Some(example.ok_or_else(|| format!("--only {value}: must be one of block, dirs"))?);
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
        return Err("--fs is for the block driver, which --only leaves out".to_owned());
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
            ("--fs", "needs one of ext4"),
            ("--fs zfs", "--fs zfs"),
            ("--fs=", "one of ext4"),
            ("--only nfs", "block, dirs"),
            ("--keep=yes", "takes no value"),
            ("--only dirs --fs xfs", "leaves out"),
            ("block", "unknown argument"),
            ("driver", "only for internal use"),
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
