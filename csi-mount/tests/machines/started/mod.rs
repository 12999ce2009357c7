//! The programs and processes that are started anywhere on this machine, as the kernel traces them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mount::{Mount, Target};

const TRACING: &str = "/sys/kernel/tracing";
const EVENTS: [&str; 2] =
    ["events/sched/sched_process_exec/enable", "events/sched/sched_process_fork/enable"];

/// What a piece of work took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cost {
    pub(crate) time: Duration,
    /// How often each program was started, by whichever process.
    pub(crate) programs: BTreeMap<String, u32>,
    /// How many processes and threads were started, with those of the programs.
    pub(crate) processes: u32,
}

impl Cost {
    pub(crate) fn add(&mut self, other: Self) {
        self.time += other.time;
        self.processes += other.processes;
        for (program, count) in other.programs {
            *self.programs.entry(program).or_default() += count;
        }
    }
}

fn set(name: &str, value: &str) {
    let place = Path::new(TRACING).join(name);
    fs::write(&place, value).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
}

/// Does the work, and counts what is started until it ends.
pub(crate) fn cost_of<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    if !Path::new(TRACING).join("trace").exists() {
        Mount::new("tracefs", "none").at(&Target::new(TRACING).unwrap()).unwrap();
        EVENTS.iter().for_each(|event| set(event, "1"));
    }
    set("trace", "");
    set("tracing_on", "1");
    let start = Instant::now();
    let done = work();
    let mut cost = Cost { time: start.elapsed(), ..Cost::default() };
    set("tracing_on", "0");
    let trace = fs::read(Path::new(TRACING).join("trace")).unwrap();
    for line in String::from_utf8_lossy(&trace).lines() {
        if let Some((_, event)) = line.split_once("sched_process_exec: filename=") {
            let program = Path::new(event.split(' ').next().unwrap()).file_name().unwrap_or_default();
            *cost.programs.entry(program.to_string_lossy().into_owned()).or_default() += 1;
        } else if line.contains("sched_process_fork: ") && !line.contains("comm=kthreadd ") {
            cost.processes += 1;
        }
    }
    (done, cost)
}
