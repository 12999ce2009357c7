//! Metrics of the process, with the names that every Prometheus client uses. Only on systems with `/proc`.

use std::fmt::{self, Write};
use std::fs::{read_dir, read_to_string};

use super::openmetrics::Family;

/// The unit of times in `/proc/self/stat`: a hundredth of a second on every known system (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn write_metrics(out: &mut dyn Write) -> fmt::Result {
    let times = Times::read();
    if let Some(times) = &times {
        let help = "Processor time, user and system.";
        Family::new(out, "process_cpu_seconds", "counter", help)?.sample("_total", &[], times.cpu)?;
    }
    let start = times.and_then(|times| Some(times.start + boot()?));
    let limit = u32::try_from(super::descriptors::limit()).unwrap_or(u32::MAX);
    for (name, help, value) in [
        ("process_start_time_seconds", "When the process began, since the epoch.", start),
        ("process_resident_memory_bytes", "Memory that is resident.", resident().map(|bytes| bytes as f64)),
        ("process_open_fds", "Open file descriptors.", open_files().map(|files| files as f64)),
        ("process_max_fds", "How many file descriptors may be open.", Some(f64::from(limit))),
    ] {
        if let Some(value) = value {
            Family::new(out, name, "gauge", help)?.sample("", &[], value)?;
        }
    }
    Ok(())
}

struct Times {
    cpu: f64,
    /// When the process started, in seconds since the system booted.
    start: f64,
}

impl Times {
    fn read() -> Option<Self> {
        let stat = read_to_string("/proc/self/stat").ok()?;
        // The program's name can contain anything; after its last bracket come the third field and the
        // rest.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let seconds = |number: usize| Some(fields.get(number - 3)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
        Some(Self { cpu: seconds(14)? + seconds(15)?, start: seconds(22)? })
    }
}

fn boot() -> Option<f64> {
    value_of("/proc/stat", "btime ")?.parse().ok()
}

fn resident() -> Option<u64> {
    let kibibytes = value_of("/proc/self/status", "VmRSS:")?;
    Some(kibibytes.trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

fn open_files() -> Option<usize> {
    // The descriptor that lists the directory is not counted.
    Some(read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// The rest of the line that begins with `start`.
fn value_of(file: &str, start: &str) -> Option<String> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(start))?;
    Some(line.trim().to_owned())
}
