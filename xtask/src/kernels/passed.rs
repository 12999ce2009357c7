//! Machines that passed in an earlier gate. The gate does not boot such a machine again while its kernel, programs,
//! files and options are the same: it repeats the results, and says so. `cargo xtask test --kernels` always boots.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Kernel;
use super::machine::{self, Boot};
use super::outcome::{Outcome, Run};
use crate::{Failure, step};

/// The results of one machine, in a file of its own: what the machine is, then a line for each test.
pub(crate) struct Passed {
    file: PathBuf,
    machine: String,
}

impl Passed {
    pub(crate) fn of(kernel: &Kernel, boot: &Boot<'_>, folder: &Path) -> Result<Self, Failure> {
        let file = format!("passed-{}-{}-{}", kernel.version, boot.processors, boot.options);
        let digests = digests(&[&machine::image_of(&kernel.root)?, boot.initrd])?;
        Ok(Self { file: folder.join(file), machine: format!("{}\n{digests}\n", boot.settings()) })
    }

    /// The results of the earlier run, if this machine passed.
    pub(crate) fn repeat(&self, kernel: &Kernel) -> Result<Option<Run>, Failure> {
        let text = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let mut run = Run::new(kernel.clone());
        run.outcomes =
            text.strip_prefix(&self.machine).unwrap_or_default().lines().filter_map(read).collect();
        run.repeated = run.outcomes.len();
        Ok((!run.outcomes.is_empty()).then_some(run))
    }

    /// Keeps the results. A machine with a failure is forgotten.
    pub(crate) fn keep(&self, run: &Run) -> Result<(), Failure> {
        let mut text = String::new();
        if run.failed().next().is_none() {
            text.push_str(&self.machine);
            text.extend(run.outcomes.iter().map(|it| format!("{}\t{}\n", it.test, it.millis)));
        }
        Ok(fs::write(&self.file, text)?)
    }
}

fn read(line: &str) -> Option<Outcome> {
    let (test, millis) = line.split_once('\t')?;
    Some(Outcome { test: test.to_owned(), millis: millis.parse().ok()?, failure: None })
}

/// A digest of the content of each file, on one line.
fn digests(files: &[&Path]) -> Result<String, Failure> {
    let text = step::output(Command::new("sha256sum").arg("--").args(files))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::archive::Version;
    use super::*;

    #[test]
    fn only_the_same_machine_that_passed_is_repeated() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, content: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, content).expect("a file");
            path
        };
        let image = write("root/boot/vmlinuz-6.1", "kernel");
        let initrd = write("initrd", "programs");
        let kernel =
            Kernel { version: Version::new(6, 1), name: "k".into(), root: folder.path().join("root") };
        let boot = Boot { options: "", initrd: &initrd, processors: 1, ceph: None };
        let passed = || Passed::of(&kernel, &boot, folder.path()).expect("digests");
        let repeated = |passed: Passed| passed.repeat(&kernel).expect("a file").map(|run| run.outcomes);
        let ended = |line: &str| {
            let mut run = Run::new(kernel.clone());
            run.hear(line);
            run.finish(None, Duration::from_secs(1));
            run
        };
        let ok = || ended("@\tok\tp/t\ta\t20");
        assert_eq!(repeated(passed()), None, "nothing ran yet");
        passed().keep(&ok()).expect("written");
        assert_eq!(repeated(passed()), Some(ok().outcomes));

        let other = Boot { options: "nvme_core.multipath=N", ..boot };
        assert_eq!(repeated(Passed::of(&kernel, &other, folder.path()).expect("digests")), None);
        for (file, content) in [(&initrd, "programs"), (&image, "kernel")] {
            fs::write(file, "changed").expect("a file");
            assert_eq!(repeated(passed()), None, "{}", file.display());
            fs::write(file, content).expect("a file");
            assert_eq!(repeated(passed()), Some(ok().outcomes));
        }

        passed().keep(&ended("@\tfailed\tp/t\ta\t20\twhy")).expect("written");
        assert_eq!(repeated(passed()), None, "a failure");
    }
}
