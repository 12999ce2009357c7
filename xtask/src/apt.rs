//! Debian packages through this machine's own apt: its archives, and the installation of missing programs.
//!
//! No host name is in the code. A suite that the machine does not use, for example backports, is requested
//! from the archive that it does use.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Failure;

/// The pause before the archive is tried again.
const PAUSE: Duration = Duration::from_secs(30);

/// The base addresses of Debian's archives in the machine's apt configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Archives {
    /// The archive of the machine's own release.
    pub(crate) main: Option<String>,
    /// The archive of its security updates.
    pub(crate) security: Option<String>,
}

impl Archives {
    /// Asks apt, which needs neither root nor downloaded lists for this.
    pub(crate) fn of_this_machine() -> Self {
        let output = Command::new("apt-get").args(["update", "--print-uris"]).output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        codename().map(|release| Self::parse(&text, &release)).unwrap_or_default()
    }

    /// Parses lines such as `'BASE/dists/bookworm/InRelease' …`.
    fn parse(uris: &str, release: &str) -> Self {
        let base_of = |suite: &str| {
            let end = format!("/dists/{suite}/InRelease");
            let uris = uris.lines().filter_map(|line| line.strip_prefix('\'')?.split('\'').next());
            uris.filter_map(|uri| uri.strip_suffix(end.as_str())).map(str::to_owned).next()
        };
        Self { main: base_of(release), security: base_of(&format!("{release}-security")) }
    }
}

/// The name of the Debian release that this machine runs.
fn codename() -> Option<String> {
    let release = fs::read_to_string("/etc/os-release").ok()?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// Installs packages, and removes none. If parts of a package are already installed from backports, the
/// package is taken from there too. An archive that can't be reached is tried again within the limit.
///
/// # Errors
/// apt's last lines, if the packages can't be installed.
pub(crate) fn install(packages: &[&str], limit: Duration) -> Result<(), Failure> {
    println!("    installing {}", packages.join(" "));
    let archive = Archives::of_this_machine().main;
    update(archive.as_deref(), Instant::now() + limit)?;
    let own_release = apt_get(&[], &[INSTALL, packages].concat());
    let Err(failure) = own_release else { return Ok(()) };
    let (Some(release), Some(archive)) = (codename(), archive) else { return Err(failure) };
    println!("    {failure}");
    let backports = format!("{release}-backports");
    println!("    again, from {backports}");
    let parts = tempfile::tempdir()?;
    copy_sources(parts.path())?;
    fs::write(parts.path().join("backports.list"), format!("deb {archive} {backports} main\n"))?;
    let sources = format!("Dir::Etc::SourceParts={}", parts.path().display());
    apt_get(&["-o", &sources], &["update"])?;
    apt_get(&["-o", &sources, "--target-release", &backports], &[INSTALL, packages].concat())?;
    Ok(())
}

/// Fetches the lists of packages.
///
/// Without a network apt would try each package again and again: more than an hour for all of them.
fn update(archive: Option<&str>, end: Instant) -> Result<(), Failure> {
    loop {
        let warnings = apt_get(&[], &["update"])?;
        let Some(reason) = archive.and_then(|archive| not_fetched(&warnings, archive)) else { return Ok(()) };
        let failure = Failure::new(format!("apt-get update: {reason}"));
        if Instant::now() + PAUSE > end {
            return Err(failure);
        }
        println!("    {failure}; again in {PAUSE:?}");
        sleep(PAUSE);
    }
}

/// The first of apt's warnings that it has no list of this archive. For `apt-get update` that is no failure.
fn not_fetched<'a>(warnings: &'a str, archive: &str) -> Option<&'a str> {
    let start = format!("W: Failed to fetch {archive}/");
    warnings.lines().find(|line| line.starts_with(&start))
}

/// apt-get's arguments for installing without removing anything.
const INSTALL: &[&str] = &["install", "--yes", "--no-remove", "--no-install-recommends"];

/// The machine's list of sources is not changed; one source is added to a copy of it.
fn copy_sources(to: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten() {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Runs apt-get, and returns its warnings.
fn apt_get(options: &[&str], arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new("apt-get")
        .envs([("DEBIAN_FRONTEND", "noninteractive"), ("LC_ALL", "C")])
        .args(options)
        .args(arguments)
        .output()
        .map_err(|error| Failure::new(format!("apt-get: {error}")))?;
    if !output.status.success() {
        return Err(Failure::new(last_words(arguments, &output)));
    }
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The command, and its error messages.
fn last_words(arguments: &[&str], output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("E:")).collect();
    format!("apt-get {}: {}: {}", arguments.join(" "), output.status, errors.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_those_of_the_machines_own_release() {
        let uris = "'http://example.org/other/dists/nodistro/InRelease' x 0\n\
                    'http://mirror.example.org/debian/dists/bookworm-updates/InRelease' x 0\n\
                    'http://mirror.example.org/debian/dists/bookworm/InRelease' x 0\n\
                    'http://mirror.example.org/safe/dists/bookworm-security/InRelease' x 0\n\
                    'http://mirror.example.org/debian/dists/bookworm/main/binary-amd64/Packages.xz' x 0\n";
        let found = Archives::parse(uris, "bookworm");
        assert_eq!(found.main.as_deref(), Some("http://mirror.example.org/debian"));
        assert_eq!(found.security.as_deref(), Some("http://mirror.example.org/safe"));
        assert_eq!(Archives::parse(uris, "trixie"), Archives::default());
    }

    #[test]
    fn only_the_list_of_the_own_archive_must_be_fetched() {
        let warnings = "W: Failed to fetch http://example.org/other/dists/x/InRelease  Could not connect\n\
                        W: Failed to fetch http://mirror.example.org/debian/dists/bookworm/InRelease  \
                        Temporary failure resolving 'mirror.example.org'\n\
                        W: Some index files failed to download.\n";
        let found = not_fetched(warnings, "http://mirror.example.org/debian").expect("the second line");
        assert!(found.ends_with("Temporary failure resolving 'mirror.example.org'"), "{found}");
        assert_eq!(not_fetched(warnings, "http://mirror.example.org/deb"), None);
    }
}
