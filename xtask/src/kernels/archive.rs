//! Debian's kernels: found by an apt with its own state, and unpacked, never installed.
//!
//! The machine's own apt sources, lists and packages are not changed. Its settings (proxies) are used.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::fcntl::{Flock, FlockArg};

use crate::apt::Archives;
use crate::package::remove_folder;
use crate::{Failure, step};

/// The suites to search for kernels, and whether each is in the archive of security updates.
const SUITES: &[(&str, bool)] = &[
    ("bullseye-security", true),
    ("bookworm", false),
    ("bookworm-security", true),
    ("trixie", false),
    ("sid", false),
];

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Which drivers a kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flavour {
    /// Few drivers: it is small, and boots fast.
    Cloud,
    /// All drivers.
    Generic,
}

impl Flavour {
    /// The end of a package's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Cloud => "-cloud-amd64",
            Self::Generic => "-amd64",
        }
    }
}

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    pub(crate) version: Version,
    /// The package and its version, for the report.
    pub(crate) name: String,
    pub(crate) root: PathBuf,
}

/// An apt with its own state, in the kernels' cache folder. One process at a time uses it.
pub(crate) struct Archive {
    cache: PathBuf,
    _alone: Flock<File>,
}

impl Archive {
    /// Reads the package indices. An index that can't be read is reported, and its packages are missing.
    pub(crate) fn open() -> Result<Self, Failure> {
        let cache = cache()?;
        fs::create_dir_all(&cache)?;
        let alone = Flock::lock(File::create(cache.join("lock"))?, FlockArg::LockExclusive);
        let alone = alone.map_err(|(_, error)| Failure::new(format!("lock {}: {error}", cache.display())))?;
        let archive = Self { cache, _alone: alone };
        for directory in ["apt/lists/partial", "apt/archives/partial", "kernels"] {
            fs::create_dir_all(archive.cache.join(directory))?;
        }
        fs::write(archive.cache.join("apt/sources.list"), sources(&Archives::of_this_machine())?)?;
        let update = archive.apt("apt-get", &["update"])?;
        for line in String::from_utf8_lossy(&update.stderr).lines().filter(|line| line.starts_with("E:")) {
            println!("    apt: {line}");
        }
        Ok(archive)
    }

    fn apt(&self, program: &str, args: &[&str]) -> Result<Output, Failure> {
        let apt = self.cache.join("apt");
        let mut command = Command::new(program);
        let set = |name: &str, path: &str| format!("{name}={}", apt.join(path).display());
        for option in [
            set("Dir::State", ""),
            set("Dir::State::Lists", "lists"),
            set("Dir::Cache", ""),
            set("Dir::Etc::SourceList", "sources.list"),
            "Dir::Etc::SourceParts=/dev/null".into(),
            "Dir::State::status=/var/lib/dpkg/status".into(),
            "Acquire::Languages=none".into(),
            // Signatures are checked, but not their age: these kernels run only in emulation, and an outdated
            // mirror is better than none.
            "Acquire::Check-Valid-Until=false".into(),
            // Its files are in a home directory that apt's own user can be unable to enter.
            "APT::Sandbox::User=root".into(),
        ] {
            command.arg("-o").arg(option);
        }
        Ok(command.args(args).current_dir(self.cache.join("kernels")).output()?)
    }

    /// All available kernels of a flavour with their package names, the newest last, one for each version.
    pub(crate) fn kernels(&self, flavour: Flavour) -> Result<Vec<(Version, String)>, Failure> {
        let output = self.apt("apt-cache", &["search", "--names-only", "^linux-(image|binary)-[0-9].*"])?;
        Ok(newest_of_each(&String::from_utf8_lossy(&output.stdout), flavour))
    }

    /// Fetches and unpacks a kernel, unless this was done before. The inner error is the archive's: it does not have the
    /// kernel, or can't be reached.
    ///
    /// # Errors
    /// When it can't be unpacked, which is a problem of this machine and not of the archive.
    pub(crate) fn fetch(&self, version: Version, package: &str) -> Result<Result<Kernel, String>, Failure> {
        // The newest releases have the modules in a separate package.
        let modules = package.strip_prefix("linux-binary-").map(|rest| format!("linux-modules-{rest}"));
        let packages: Vec<&str> = [package].into_iter().chain(modules.as_deref()).collect();
        let unpacked = self.unpacked(&packages, "")?;
        Ok(unpacked.map(|(exact, root)| Kernel { version, name: format!("{package} {exact}"), root }))
    }

    /// The newest version of a program's package, unpacked together with those of its libraries.
    ///
    /// # Errors
    /// When the archive does not have one.
    pub(crate) fn newest(&self, packages: &[&str]) -> Result<PathBuf, Failure> {
        // Another list of libraries is another folder.
        let unpacked = self.unpacked(packages, &format!("-with-{}", packages.len() - 1))?;
        unpacked.map(|(_, root)| root).map_err(Failure::new)
    }

    /// Packages that are unpacked together, in a folder with the name and version of the first, and this end: the
    /// version, and the folder. The inner error is the archive's.
    fn unpacked(&self, packages: &[&str], end: &str) -> Result<Result<(String, PathBuf), String>, Failure> {
        let package = packages[0];
        let shown = self.apt("apt-cache", &["show", "--no-all-versions", package])?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let exact = shown.lines().find_map(|line| line.strip_prefix("Version: "));
        let Some(exact) = exact.map(str::to_owned) else {
            return Ok(Err(format!("no package index contains {package}")));
        };
        let kernels = self.cache.join("kernels");
        let root = kernels.join(format!("{package}_{exact}{end}"));
        if root.is_dir() {
            return Ok(Ok((exact, root)));
        }
        println!("    fetching {}", packages.join(" "));
        let downloaded = self.apt("apt-get", &[&["download"], packages].concat())?;
        if !downloaded.status.success() {
            return Ok(Err(String::from_utf8_lossy(&downloaded.stderr).trim().to_owned()));
        }
        // A killed run can have left one.
        let part = kernels.join(format!("{package}.part"));
        remove_folder(&part)?;
        for file in debs(&kernels, packages)? {
            step::output(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&part))?;
            fs::remove_file(file)?;
        }
        fs::rename(part, &root)?;
        Ok(Ok((exact, root)))
    }
}

fn debs(directory: &Path, packages: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".deb") && packages.iter().any(|p| name.starts_with(&format!("{p}_"))) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The user's cache folder.
fn cache() -> Result<PathBuf, Failure> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache
        .map(|cache| cache.join("csi-kernels"))
        .ok_or_else(|| Failure::usage("no directory for kernels: HOME and XDG_CACHE_HOME are not set"))
}

/// The list of sources for apt: every suite of the archives that this machine is configured for.
fn sources(archives: &Archives) -> Result<String, Failure> {
    let lines: Vec<String> = SUITES
        .iter()
        .filter_map(|(suite, is_security)| {
            let base = if *is_security { &archives.security } else { &archives.main };
            Some(format!("deb [signed-by={KEYS}] {} {suite} main\n", base.as_ref()?))
        })
        .collect();
    if lines.is_empty() {
        return Err(Failure::usage(
            "the kernels come from Debian's archive, and this machine's apt has no such source; \
             `apt-get update --print-uris` lists its sources",
        ));
    }
    Ok(lines.concat())
}

/// The newest package of each version in lines such as `linux-image-6.1.0-56-cloud-amd64 - Linux 6.1 …`.
fn newest_of_each(listed: &str, flavour: Flavour) -> Vec<(Version, String)> {
    let mut all: Vec<(Vec<u32>, bool, &str)> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(|name| {
            let rest = name.strip_prefix("linux-")?;
            let (kind, rest) = rest.split_once('-')?;
            let release = rest.strip_suffix(flavour.suffix())?;
            // What is left of another flavour's name.
            if ["-cloud", "-rt"].iter().any(|other| release.ends_with(other)) {
                return None;
            }
            // The names of release candidates, and of partial releases, have letters in front.
            Some((numbers(release), kind == "binary", name)).filter(|(numbers, ..)| numbers.len() > 2)
        })
        .collect();
    all.sort();
    let mut newest: Vec<(Version, String)> = Vec::new();
    for (numbers, _, name) in all {
        let version = Version::new(numbers[0], numbers[1]);
        match newest.last_mut().filter(|(last, _)| *last == version) {
            Some((_, last)) => *last = name.to_owned(),
            None => newest.push((version, name.to_owned())),
        }
    }
    newest
}

/// A kernel's version, from its package's name. Ordered by major and then minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    pub(crate) const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Parses a text that starts with two numbers and a dot between them.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match numbers(text).as_slice() {
            [major, minor, ..] => Some(Self::new(*major, *minor)),
            _ => None,
        }
    }
}

/// All numbers in a text, for comparing: `6.1.0-56` is before `6.12.117+deb12`.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{}", self.major, self.minor);
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("6.1.0-56-cloud") < numbers("6.12.117+deb12-cloud"));
        assert!(numbers("6.1.0-0.deb11.52") < numbers("6.1.0-47"));
        assert!(Version::parse("6.1.0-56") < Version::parse("6.12.1"));
        assert_eq!(Version::parse("5.10.0-46-cloud-amd64"), Some(Version::new(5, 10)));
        assert_eq!(Version::parse("cloud"), None);
        assert_eq!(format!("{:>6}|", Version::new(6, 1)), "   6.1|");
    }

    #[test]
    fn suites_are_asked_of_the_archives_that_the_machine_has() {
        let main = Archives { main: Some("http://example.org/d".into()), security: None };
        let listed = sources(&main).expect("an archive");
        assert!(
            listed.contains(&format!("deb [signed-by={KEYS}] http://example.org/d sid main\n")),
            "{listed}"
        );
        assert!(!listed.contains("security"), "{listed}");
        assert!(sources(&Archives::default()).is_err());
    }

    #[test]
    fn the_newest_package_of_each_version() {
        let listed = "linux-image-6.1.0-56-cloud-amd64 - Linux\nlinux-image-6.1.0-9-cloud-amd64 - Linux\n\
                      linux-image-6.1-cloud-amd64 - meta\nlinux-image-6.1.0-57-cloud-amd64-dbg - symbols\n\
                      linux-image-7.2.13+deb14-cloud-amd64 - Linux\n\
                      linux-binary-7.2.13+deb14-cloud-amd64 - kernel image\nlinux-image-7.2.13+deb14-amd64 - \
                      x\nlinux-image-7.2.13+deb14-rt-amd64 - x";
        assert_eq!(
            newest_of_each(listed, Flavour::Cloud),
            [
                (Version::new(6, 1), "linux-image-6.1.0-56-cloud-amd64".to_owned()),
                (Version::new(7, 2), "linux-binary-7.2.13+deb14-cloud-amd64".to_owned()),
            ]
        );
        assert_eq!(
            newest_of_each(listed, Flavour::Generic),
            [(Version::new(7, 2), "linux-image-7.2.13+deb14-amd64".to_owned())]
        );
    }
}
