//! The properties of the machine that affect the times.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The name and value of each property, as in a record.
pub(crate) fn describe(root: &Path) -> Vec<(String, String)> {
    let rows = [
        ("processor", processor()),
        ("memory", after("/proc/meminfo", "MemTotal")),
        ("kernel", after("/proc/sys/kernel/osrelease", "")),
        ("system", after("/etc/os-release", "PRETTY_NAME=")),
        ("commit", first_of(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root))),
        ("date", first_of(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))),
        ("load averages before", after("/proc/loadavg", "")),
        ("rustc", first_of(Command::new("rustc").arg("-V"))),
        ("util-linux", first_of(Command::new("mount").arg("--version"))),
        ("e2fsprogs", first_of(Command::new("mkfs.ext4").arg("-V"))),
        ("xfsprogs", first_of(Command::new("mkfs.xfs").arg("-V"))),
        ("crates", crates(root)),
        ("go", first_of(Command::new("go").arg("version"))),
        ("mount-utils", mount_utils(root)),
    ];
    let known = rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.collect()
}

/// The required version of `k8s.io/mount-utils`.
fn mount_utils(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("benches/mount-utils/go.mod")).ok()?;
    let version = text.lines().find_map(|line| line.trim().strip_prefix("k8s.io/mount-utils "))?;
    Some(version.to_owned())
}

/// The rest of the first line of a file that begins with this, without what surrounds a value.
fn after(path: &str, start: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
    Some(rest.trim_matches([' ', '\t', ':', '"']).to_owned())
}

/// The first line of a program's output, on stdout or stderr.
fn first_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    said.iter().find_map(|text| text.lines().next().filter(|line| !line.is_empty()).map(str::to_owned))
}

fn processor() -> Option<String> {
    let count = std::thread::available_parallelism().ok()?;
    Some(format!("{}, {count} cores", after("/proc/cpuinfo", "model name")?))
}

/// The crates that are compared, with their versions.
fn crates(root: &Path) -> Option<String> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).ok()?;
    let version = |name: &str| {
        let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        Some(format!("{name} {}", rest.split_once('"')?.0))
    };
    let names = ["procfs", "proc-mounts", "mountinfo", "sys-mount", "nix", "rustix", "tonic", "tokio"];
    Some(names.into_iter().filter_map(version).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_the_crates_have_versions() {
        let rows = describe(crate::root());
        let value = |name: &str| rows.iter().find(|(row, _)| row == name).map(|(_, value)| value.as_str());
        assert!(value("kernel").is_some_and(|kernel| kernel.contains('.')), "{rows:?}");
        let crates = value("crates").expect("a lock file");
        assert!(
            ["procfs 0.", "proc-mounts ", "mountinfo ", "sys-mount "]
                .iter()
                .all(|name| crates.contains(name))
        );
    }
}
