//! The metrics of FUSE daemons in pods of their own.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use csi_mount::flow::fuse::MounterDaemon;

/// How many volumes have lines of their own. The others of the node are together in lines without an id.
const MOST: usize = 256;

/// How many daemons of a volume run and do not. A volume that is not staged has one for each target.
#[derive(Default)]
pub(super) struct Daemons {
    running: u64,
    ended: u64,
    restarts: u64,
}

impl From<&MounterDaemon> for Daemons {
    fn from(daemon: &MounterDaemon) -> Self {
        let running = u64::from(daemon.is_running);
        Self { running, ended: 1 - running, restarts: daemon.restarts }
    }
}

/// Writes the daemons, each with the id of its volume.
pub(super) fn write(out: &mut String, daemons: impl Iterator<Item = (String, Daemons)>) -> fmt::Result {
    let mut volumes: BTreeMap<String, Daemons> = BTreeMap::new();
    for (mut id, daemon) in daemons {
        if volumes.len() >= MOST && !volumes.contains_key(&id) {
            id.clear();
        }
        let volume = volumes.entry(id).or_default();
        volume.running += daemon.running;
        volume.ended += daemon.ended;
        volume.restarts += daemon.restarts;
    }
    let name = "csi_fuse_daemons";
    writeln!(out, "# HELP {name} FUSE daemons of volumes, in pods of their own.\n# TYPE {name} gauge")?;
    for (id, volume) in &volumes {
        for (state, number) in [("ended", volume.ended), ("running", volume.running)] {
            writeln!(out, "{name}{{state=\"{state}\",volume_id=\"{}\"}} {number}", escaped(id))?;
        }
    }
    let name = "csi_fuse_daemon_restarts";
    writeln!(out, "# HELP {name} How often they were started again.\n# TYPE {name} counter")?;
    for (id, volume) in &volumes {
        writeln!(out, "{name}_total{{volume_id=\"{}\"}} {}", escaped(id), volume.restarts)?;
    }
    Ok(())
}

/// The value of a label.
fn escaped(id: &str) -> String {
    id.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_bounded_number_of_lines() {
        let daemon =
            |number: u64| (format!("v\"{number:03}"), Daemons { running: 1, ended: 0, restarts: number });
        let mut text = String::new();
        write(&mut text, (0..300).chain([1]).map(daemon)).unwrap();
        assert!(text.contains("csi_fuse_daemon_restarts_total{volume_id=\"v\\\"001\"} 2\n"), "{text}");
        assert!(text.contains("csi_fuse_daemons{state=\"running\",volume_id=\"\"} 44\n"), "{text}");
        assert!(text.contains("csi_fuse_daemon_restarts_total{volume_id=\"\"} 12210\n"), "{text}");
        assert_eq!(text.lines().count(), 4 + 257 * 3, "{text}");
    }
}
