//! Metrics of the process, with the names that every Prometheus client uses. Only on systems with `/proc`.

use std::fmt::{self, Display, Write};
use std::fs::{read_dir, read_to_string};

use super::exposition::family;

/// The unit of times in `/proc/self/stat`: a hundredth of a second on every known system (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn write(out: &mut String) -> fmt::Result {
    let times = Times::read();
    let cpu = times.as_ref().map(|times| times.cpu);
    sample(out, "process_cpu_seconds_total", "counter", "Processor time, user and system.", cpu)?;
    let start = times.and_then(|times| Some(times.start + boot()?));
    sample(out, "process_start_time_seconds", "gauge", "When the process began, since the epoch.", start)?;
    sample(out, "process_resident_memory_bytes", "gauge", "Memory that is resident.", resident())?;
    sample(out, "process_open_fds", "gauge", "Open file descriptors.", open_files())?;
    sample(
        out,
        "process_max_fds",
        "gauge",
        "How many file descriptors may be open.",
        Some(super::descriptors::limit()),
    )
}

fn sample(out: &mut String, name: &str, kind: &str, help: &str, value: Option<impl Display>) -> fmt::Result {
    let Some(value) = value else { return Ok(()) };
    family(out, name, kind, help)?;
    writeln!(out, "{name} {value}")
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
