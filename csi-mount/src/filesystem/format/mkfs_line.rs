//! The command line of `mkfs`: this crate's choices first, then the caller's, and nothing that names
//! another device.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kernel_features::{self, KernelVersion, MkfsProfile, first_version};
use crate::filesystem::kind::Filesystem;
use crate::filesystem::tool::Tool;

const FORMAT: &str = "format";
/// How long a program can take to print its version.
const VERSION_TIME_LIMIT: Duration = Duration::from_secs(30);

/// What the caller chose.
#[derive(Debug, Clone)]
pub(crate) struct MkfsLine {
    pub(crate) filesystem: Filesystem,
    pub(crate) label: Option<String>,
    pub(crate) arguments: Vec<String>,
    pub(crate) profile: MkfsProfile,
}

impl MkfsLine {
    pub(crate) fn tool(&self) -> Tool {
        let program = match self.filesystem {
            Filesystem::Ext4 => "mkfs.ext4",
            Filesystem::Xfs => "mkfs.xfs",
            Filesystem::Btrfs => "mkfs.btrfs",
        };
        Tool { program, package: self.filesystem.package() }
    }

    /// The arguments without the device, including `more`. The caller's arguments take precedence over
    /// `more`.
    pub(crate) fn options(&self, more: &[String]) -> Result<Vec<String>> {
        let defaults: &[&str] = match self.filesystem {
            // -F: a file needs no confirmation, and nobody could answer a question.
            Filesystem::Ext4 => &["-q", "-F", "-m0"],
            Filesystem::Xfs => &["-q", "-K"],
            Filesystem::Btrfs => &["-q", "-K"],
        };
        let mut line: Vec<String> = defaults.iter().map(ToString::to_string).collect();
        if let Some(label) = &self.label {
            self.check_label(label)?;
            line.extend(["-L".to_owned(), label.clone()]);
        }
        let mut arguments = joined(&self.arguments)?;
        let disabling_arguments = self.disabling_arguments()?;
        match self.filesystem {
            Filesystem::Ext4 => {
                // mke2fs uses only the last -E and the last -O, so all go into one; the caller's come last and
                // take precedence. The kernel makes the inode tables zero after the mount, which is normally
                // mke2fs's choice too.
                let ours = ["nodiscard", "lazy_itable_init=1"].into_iter();
                let ours = ours.chain(more.iter().map(String::as_str)).collect();
                let extended = merged("-E", ours, &mut arguments);
                let features = merged("-O", disabling_arguments, &mut arguments);
                line.extend([extended, features].into_iter().flatten());
            }
            Filesystem::Xfs | Filesystem::Btrfs => {
                // mkfs.xfs fails if an option is given twice.
                let name = |argument: &str| {
                    argument[2..].trim_start_matches('^').split('=').next().map(str::to_owned)
                };
                let said = |off: &str| {
                    name(off).is_some_and(|name| arguments.iter().any(|argument| argument.contains(&name)))
                };
                line.extend(disabling_arguments.into_iter().filter(|off| !said(off)).map(str::to_owned));
                line.extend_from_slice(more);
            }
        }
        line.extend(arguments);
        Ok(line)
    }

    fn disabling_arguments(&self) -> Result<Vec<&'static str>> {
        let target = match self.profile {
            MkfsProfile::Mkfs => return Ok(Vec::new()),
            MkfsProfile::Kernel(version) => version,
            MkfsProfile::Running => KernelVersion::running()?,
        };
        kernel_features::disabling_arguments(self.filesystem, target, || {
            let output = self.tool().run(&["-V"], VERSION_TIME_LIMIT)?;
            first_version(&output.text).ok_or_else(|| {
                let reason = format!("{} -V does not print its version", self.tool().program);
                Error::new(ErrorKind::ToolFailed, FORMAT, reason)
            })
        })
    }

    fn check_label(&self, label: &str) -> Result<()> {
        let longest = match self.filesystem {
            Filesystem::Ext4 => 16,
            Filesystem::Xfs => 12,
            Filesystem::Btrfs => 255,
        };
        if label.is_empty() || label.len() > longest || label.contains(char::is_control) {
            let reason = format!(
                "the label {label:?} is not 1 to {longest} bytes without control characters, as {} requires",
                self.filesystem
            );
            return Err(Error::new(ErrorKind::InvalidInput, FORMAT, reason));
        }
        Ok(())
    }
}

/// Merges all arguments with this letter, this crate's first. Returns `None` if there is none with it.
fn merged(letter: &str, ours: Vec<&str>, arguments: &mut Vec<String>) -> Option<String> {
    let theirs: Vec<String> = arguments.extract_if(.., |argument| argument.starts_with(letter)).collect();
    let values: Vec<&str> = ours.into_iter().chain(theirs.iter().map(|argument| &argument[2..])).collect();
    (!values.is_empty()).then(|| letter.to_owned() + &values.join(","))
}

/// Joins each option with its value (`-b 4096` to `-b4096`), so that no argument stands alone and is used
/// as a device to format.
fn joined(arguments: &[String]) -> Result<Vec<String>> {
    let refuse = |argument: &String, reason: &str| {
        let reason = format!("the mkfs argument {argument:?} {reason}");
        Err(Error::new(ErrorKind::InvalidInput, FORMAT, reason))
    };
    let mut line: Vec<String> = Vec::new();
    // Whether the last argument is one letter that can still get a value.
    let mut open = false;
    for argument in arguments {
        if argument.contains(['/', '\0']) || argument.contains("device=") || argument.contains("logdev=") {
            return refuse(argument, "names a file or another device");
        }
        let is_option = argument.starts_with('-') && argument.len() > 1;
        match line.last_mut() {
            _ if argument == "--" => return refuse(argument, "ends the options"),
            _ if is_option => {
                line.push(argument.clone());
                open = argument.len() == 2;
            }
            Some(option) if open => {
                option.push_str(argument);
                open = false;
            }
            _ => return refuse(argument, "is neither an option nor the value of one"),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(filesystem: Filesystem) -> MkfsLine {
        MkfsLine { filesystem, label: None, arguments: Vec::new(), profile: MkfsProfile::Mkfs }
    }

    fn options(line: &MkfsLine, more: &[&str]) -> String {
        let more: Vec<String> = more.iter().map(ToString::to_string).collect();
        line.options(&more).unwrap().join(" ")
    }

    #[test]
    fn our_choices_come_before_the_callers() {
        let mut ext4 = line(Filesystem::Ext4);
        ext4.arguments = ["-O", "^64bit", "-Estride=4", "-O", "quota"].map(str::to_owned).to_vec();
        assert_eq!(
            options(&ext4, &["stride=2"]),
            "-q -F -m0 -Enodiscard,lazy_itable_init=1,stride=2,stride=4 -O^64bit,quota"
        );
        assert_eq!(options(&line(Filesystem::Xfs), &["-ssize=512"]), "-q -K -ssize=512");
        assert_eq!(options(&line(Filesystem::Btrfs), &[]), "-q -K");
    }

    fn join(arguments: &[&str]) -> Result<Vec<String>> {
        joined(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_joined_to_their_options() {
        assert_eq!(
            join(&["-b", "4096", "-Elazy_itable_init=0"]).unwrap(),
            ["-b4096", "-Elazy_itable_init=0"]
        );
        assert_eq!(
            join(&["-m", "reflink=0", "--nodesize=4096"]).unwrap(),
            ["-mreflink=0", "--nodesize=4096"]
        );
    }

    #[test]
    fn arguments_that_could_be_a_device_are_refused() {
        for bad in [
            &["data"][..],
            &["/dev/sda"],
            &["-F", "/dev/sda"],
            &["-b", "4096", "100"],
            &["--", "x"],
            &["-"],
            &["-J", "device=LABEL=x"],
            &["-llogdev=x"],
            &["-b\0"],
            &[""],
        ] {
            assert_eq!(join(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    #[test]
    fn labels_have_the_length_that_the_filesystem_allows() {
        for (filesystem, longest) in [(Filesystem::Ext4, 16), (Filesystem::Xfs, 12), (Filesystem::Btrfs, 255)]
        {
            let format = line(filesystem);
            assert!(format.check_label(&"x".repeat(longest)).is_ok());
            for bad in [String::new(), "a\nb".to_owned(), "x".repeat(longest + 1)] {
                assert_eq!(format.check_label(&bad).unwrap_err().kind(), ErrorKind::InvalidInput);
            }
        }
    }
}
