//! The programs of the filesystems with the libraries that they need, from Debian's packages.
//!
//! The packages are downloaded by the machine's own apt and read, not installed. The image gets these programs
//! only: the packages have many others, and scripts that need an interpreter. It also gets each package's
//! licence, and the package's description where scanners of images look for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tar::{Archive, EntryType};

use super::root::{Entry, Root};
use crate::{Failure, elf, step};

/// The programs of the image, by package.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("btrfs-progs", &["btrfs", "btrfstune", "mkfs.btrfs"]),
    ("cryptsetup-bin", &["cryptsetup"]),
    ("e2fsprogs", &["e2fsck", "mkfs.ext4", "resize2fs"]),
    ("util-linux", &["nsenter"]),
    ("xfsprogs", &["mkfs.xfs", "xfs_repair"]),
];

/// Read by these programs, if a package has it.
const CONFIGURATION: &str = "etc/mke2fs.conf";
/// glibc loads it when a thread ends, so no program names it.
const LOADED_LATER: &str = "libgcc_s.so.1";
/// Directories that are links on Debian.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
const BINARIES: [&str; 2] = ["usr/bin", "usr/sbin"];
const LIBRARIES: &str = "usr/lib";
const MAX_LINKS: usize = 8;
/// How the names of packages of libraries begin, and of those with the licences of gcc's libraries.
const LIBRARY_PACKAGES: [&str; 3] = ["gcc-", "lib", "zlib"];

/// The layer of all programs. The packages are kept in `cache`.
pub(crate) fn root(cache: &Path) -> Result<Root, Failure> {
    fs::create_dir_all(cache)?;
    let wanted: Vec<&str> = PROGRAMS.iter().map(|(package, _)| *package).collect();
    let packages = Packages::read(&fetch(cache, &wanted)?)?;
    let mut root = Root::default();
    for directory in MERGED {
        root.link(directory, &format!("usr/{directory}"));
    }
    let mut used = BTreeSet::new();
    for program in PROGRAMS.iter().flat_map(|(_, programs)| *programs) {
        packages.copy_program(program, &mut root, &mut used)?;
    }
    packages.copy(&packages.library(LOADED_LATER)?, &mut root, &mut used)?;
    if packages.entries.contains_key(CONFIGURATION) {
        packages.copy(CONFIGURATION, &mut root, &mut used)?;
    }
    for package in used {
        packages.describe(&package, &mut root)?;
    }
    Ok(root)
}

/// Downloads these packages and the packages of the libraries that they depend on. Returns their files.
fn fetch(cache: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    let depends = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"];
    let depends = depends.iter().map(|kind| format!("--no-{kind}"));
    let mut command = Command::new("apt-cache");
    command.args(["depends", "--recurse"]).args(depends).args(wanted);
    let listed = text_of(command)?;
    let packages = with_libraries(wanted, &listed);
    let mut uris = Command::new("apt-get");
    uris.args(["download", "--print-uris"]).args(&packages);
    let named = text_of(uris)?;
    let files: Vec<PathBuf> =
        named.lines().filter_map(|line| line.split(' ').nth(1)).map(|name| cache.join(name)).collect();
    if !files.iter().all(|file| file.is_file()) {
        println!("    fetching {} packages", packages.len());
        let mut download = Command::new("apt-get");
        // Its own user can be unable to enter this folder.
        download.args(["download", "-o", "APT::Sandbox::User=root"]).args(&packages).current_dir(cache);
        text_of(download)?;
    }
    Ok(files)
}

/// These packages, and the libraries that they depend on, in the output of `apt-cache
/// depends --recurse`: a package, then its dependencies, indented.
fn with_libraries<'a>(wanted: &[&'a str], listed: &'a str) -> BTreeSet<&'a str> {
    let mut depends: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut of = "";
    for line in listed.lines() {
        match line.split_once("Depends: ") {
            Some((_, package)) => depends.entry(of).or_default().push(package),
            None if !line.starts_with(' ') => of = line,
            None => {}
        }
    }
    let mut found = BTreeSet::new();
    let mut open = wanted.to_vec();
    while let Some(package) = open.pop() {
        if found.insert(package) {
            let all = depends.get(package).into_iter().flatten().copied();
            open.extend(all.filter(|name| LIBRARY_PACKAGES.iter().any(|start| name.starts_with(start))));
        }
    }
    found
}

fn text_of(mut command: Command) -> Result<String, Failure> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| Failure::usage(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(Failure::usage(format!(
        "{command:?}: {}; if a package is unknown, run `apt-get update` first",
        why.trim()
    )))
}

/// The files of packages, by path.
#[derive(Default)]
struct Packages {
    entries: BTreeMap<String, (String, Entry)>,
    /// Each package's control file.
    control: BTreeMap<String, Vec<u8>>,
}

impl Packages {
    fn read(files: &[PathBuf]) -> Result<Self, Failure> {
        let mut packages = Self::default();
        for file in files {
            let dpkg = |option: &str| step::output(Command::new("dpkg-deb").arg(option).arg(file));
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let package = name.split('_').next().unwrap_or_default().to_owned();
            packages.control.insert(package.clone(), dpkg("--field")?);
            packages.add(&package, &dpkg("--fsys-tarfile")?)?;
        }
        Ok(packages)
    }

    fn add(&mut self, package: &str, archive: &[u8]) -> Result<(), Failure> {
        for entry in Archive::new(archive).entries()? {
            let mut entry = entry?;
            let path = merged(&entry.path()?.to_string_lossy());
            let target = |link: Option<std::borrow::Cow<'_, Path>>| {
                link.map(|to| to.to_string_lossy().into_owned()).unwrap_or_default()
            };
            let found = match entry.header().entry_type() {
                EntryType::Symlink => Entry::Link(target(entry.link_name()?)),
                // A hard link, which is named from the archive's root.
                EntryType::Link => Entry::Link(format!("/{}", merged(&target(entry.link_name()?)))),
                EntryType::Regular => {
                    let mut content = Vec::new();
                    entry.read_to_end(&mut content)?;
                    Entry::File { mode: entry.header().mode()? & 0o755, content }
                }
                _ => continue,
            };
            self.entries.insert(path, (package.to_owned(), found));
        }
        Ok(())
    }

    fn copy_program(
        &self,
        program: &str,
        root: &mut Root,
        used: &mut BTreeSet<String>,
    ) -> Result<(), Failure> {
        let mut paths = BINARIES.iter().map(|folder| format!("{folder}/{program}"));
        let path = paths.find(|path| self.entries.contains_key(path));
        let path = path.ok_or_else(|| Failure::new(format!("no Debian package has {program}")))?;
        self.copy(&path, root, used)
    }

    /// Copies a file, the links that lead to it, and the libraries that it needs.
    fn copy(&self, path: &str, root: &mut Root, used: &mut BTreeSet<String>) -> Result<(), Failure> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let (package, entry) = self
                .entries
                .get(&path)
                .ok_or_else(|| Failure::new(format!("no Debian package has {path}")))?;
            used.insert(package.clone());
            if !root.add_new(&path, entry) {
                return Ok(());
            }
            match entry {
                Entry::Link(to) => path = resolved(&path, to),
                Entry::File { content, .. } => {
                    let Some(needs) = elf::needs(content) else { return Ok(()) };
                    for library in needs.libraries {
                        self.copy(&self.library(&library)?, root, used)?;
                    }
                    return needs.interpreter.map_or(Ok(()), |it| self.copy(&merged(&it), root, used));
                }
                Entry::Directory => return Ok(()),
            }
        }
        Err(Failure::new(format!("{path}: too many links")))
    }

    fn library(&self, name: &str) -> Result<String, Failure> {
        let folder = format!("{LIBRARIES}/{}-linux-gnu", std::env::consts::ARCH);
        let mut paths = [folder.as_str(), LIBRARIES].into_iter().map(|folder| format!("{folder}/{name}"));
        let path = paths.find(|path| self.entries.contains_key(path));
        path.ok_or_else(|| Failure::new(format!("no Debian package has the library {name}")))
    }

    /// The package's licence, and its description in the folder that images without dpkg's database use.
    fn describe(&self, package: &str, root: &mut Root) -> Result<(), Failure> {
        let folder = format!("usr/share/doc/{package}");
        // The folder can be a link to that of another package: libgcc-s1's is one.
        let licence = self.followed(&format!("{}/copyright", self.followed(&folder)));
        let Some((_, entry @ Entry::File { .. })) = self.entries.get(&licence) else {
            return Err(Failure::new(format!("the Debian package {package} has no licence: {licence}")));
        };
        root.add(&format!("{folder}/copyright"), entry.clone());
        let control = self.control.get(package).cloned().unwrap_or_default();
        root.file(&format!("var/lib/dpkg/status.d/{package}"), control);
        Ok(())
    }

    /// The path to which the links at this path lead.
    fn followed(&self, path: &str) -> String {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let Some((_, Entry::Link(to))) = self.entries.get(&path) else { break };
            path = resolved(&path, to);
        }
        path
    }
}

/// A path in an archive, without `./` or `/` in front, and below `usr`.
fn merged(path: &str) -> String {
    let path = path.trim_start_matches("./").trim_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    if MERGED.contains(&first) { format!("usr/{path}") } else { path.to_owned() }
}

/// The path to which a link at `path` leads.
fn resolved(path: &str, to: &str) -> String {
    if to.starts_with('/') {
        return merged(to);
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in to.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            name => parts.push(name),
        }
    }
    merged(&parts.join("/"))
}

#[cfg(test)]
mod tests {
    use csi_core::mount::Filesystem;

    use super::*;

    #[test]
    fn the_image_has_the_programs_that_csi_mount_calls() {
        for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
            let (_, programs) =
                PROGRAMS.iter().find(|(name, _)| *name == filesystem.package()).expect("a row");
            for tool in filesystem.tools() {
                assert!(programs.contains(tool), "{tool}");
            }
        }
    }

    #[test]
    fn libraries_are_followed_and_other_packages_are_not() {
        let listed = "a\n  PreDepends: libb1\n  Depends: python3\n |Depends: <virtual>\nlibb1\n  Depends: libc6\n  \
                      Depends: dmsetup\npython3\n  Depends: libd\nlibc6\nlibd\n";
        assert_eq!(with_libraries(&["a"], listed), BTreeSet::from(["a", "libb1", "libc6"]));
    }

    #[test]
    fn a_package_without_its_licence_is_refused() {
        let entry = |entry| ("gcc-12-base".to_owned(), entry);
        let mut packages = Packages::default();
        let folder = "usr/share/doc/libgcc-s1";
        packages.entries.insert(folder.to_owned(), entry(Entry::Link("gcc-12-base".to_owned())));
        let mut root = Root::default();
        assert!(packages.describe("libgcc-s1", &mut root).is_err());
        let licence = Entry::File { mode: 0o644, content: b"GPL".to_vec() };
        packages.entries.insert("usr/share/doc/gcc-12-base/copyright".to_owned(), entry(licence.clone()));
        packages.describe("libgcc-s1", &mut root).expect("a licence");
        assert!(!root.add_new(&format!("{folder}/copyright"), &licence), "it is in the image");
    }

    #[test]
    fn links_lead_where_they_do_on_debian() {
        assert_eq!(merged("./sbin/mke2fs"), "usr/sbin/mke2fs");
        assert_eq!(merged("./etc/mke2fs.conf"), "etc/mke2fs.conf");
        assert_eq!(resolved("usr/sbin/mkfs.ext4", "mke2fs"), "usr/sbin/mke2fs");
        assert_eq!(resolved("usr/lib64/ld.so.2", "../lib/x/ld.so"), "usr/lib/x/ld.so");
        assert_eq!(resolved("usr/lib64/ld.so.2", "/lib/x/ld.so"), "usr/lib/x/ld.so");
    }
}
