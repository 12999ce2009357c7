//! A node with udevd and multipathd.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::devices::{eventually, start_daemon};

/// The defaults of a node for these tests; tests add their own lines.
const DEFAULTS: &str = "polling_interval 1\n max_polling_interval 1\n user_friendly_names no\n";

/// Kills its process when it is dropped.
pub(crate) struct Daemon(Child);

impl Daemon {
    fn start(mut command: Command) -> Self {
        let log = File::options().create(true).append(true).open("/run/daemons.log").unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(start_daemon(command))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string("/run/daemons.log").unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

/// Starts udevd with Debian's rules.
pub(crate) fn udevd() -> Daemon {
    let mut command = Command::new("udevadm");
    command.arg0("systemd-udevd");
    let daemon = Daemon::start(command);
    eventually("udevd listens", || Path::new("/run/udev/control").exists().then_some(()));
    daemon
}

/// Starts multipathd with these additional defaults, and these settings for disks of LIO. Their usual hardware
/// handler is a module that the kernel of these tests lacks.
pub(crate) fn multipathd_for(defaults: &str, lio: &str) -> Daemon {
    let device = format!(
        "vendor LIO-ORG\n product \".*\"\n hardware_handler 0\n prio const\n detect_prio no\n \
         path_grouping_policy failover\n {lio}"
    );
    let config =
        format!("defaults {{\n {DEFAULTS} {defaults}\n}}\ndevices {{\n device {{\n {device}\n }}\n}}\n");
    fs::create_dir_all("/etc/multipath").unwrap();
    fs::write("/etc/multipath.conf", config).unwrap();
    let mut command = Command::new("multipathd");
    command.args(["-d", "-s", "-v3"]);
    let daemon = Daemon::start(command);
    eventually("multipathd answers", || shown(&["show", "daemon"]).contains("idle").then_some(()));
    daemon
}

/// Starts multipathd with these additional defaults.
pub(crate) fn multipathd(defaults: &str) -> Daemon {
    multipathd_for(defaults, "")
}

/// What `multipathd` prints.
pub(crate) fn shown(words: &[&str]) -> String {
    let output = Command::new("multipathd").args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What `dmsetup` prints.
pub(crate) fn dmsetup(words: &[&str]) -> String {
    let output = Command::new("dmsetup").args(words).output().unwrap();
    assert!(output.status.success(), "{words:?} {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The maps of dm-multipath: names, and UUIDs.
pub(crate) fn maps() -> Vec<(String, String)> {
    let listed = dmsetup(&["info", "-c", "--noheadings", "--separator", " ", "-o", "name,uuid"]);
    let lines = listed.lines().filter_map(|line| line.split_once(' '));
    let maps = lines.filter(|(_, uuid)| uuid.starts_with("mpath-"));
    maps.map(|(name, uuid)| (name.to_owned(), uuid.to_owned())).collect()
}

/// The number of paths in the only map.
pub(crate) fn paths() -> usize {
    let [(name, _)] = &maps()[..] else { return 0 };
    dmsetup(&["deps", "-o", "devname", name]).matches('(').count()
}

/// The number of paths that the device mapper uses.
pub(crate) fn active() -> usize {
    let status = dmsetup(&["status"]);
    let words: Vec<&str> = status.split_whitespace().collect();
    // The state of a path follows its number.
    words.windows(2).filter(|pair| pair[0].contains(':') && pair[1] == "A").count()
}

/// Whether the kernel makes one disk of all paths of NVMe.
pub(crate) fn has_native_multipath() -> bool {
    fs::read_to_string("/sys/module/nvme_core/parameters/multipath").unwrap().trim() == "Y"
}
