//! How far a long run is, with a line for each part: its number and the total, the elapsed time, and the expected
//! time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;

/// How far a run of several parts is, and how long each part took.
#[derive(Debug)]
pub(crate) struct Progress {
    /// What a part is called.
    noun: &'static str,
    count: usize,
    /// How many parts run at the same time.
    at_once: usize,
    start: Instant,
    begun: usize,
    running: BTreeMap<String, Instant>,
    /// The times of this run, and of the last run for parts that have not run yet.
    times: BTreeMap<String, Duration>,
    /// The parts that have ended in this run.
    ended: Vec<String>,
}

impl Progress {
    pub(crate) fn new(
        noun: &'static str,
        count: usize,
        times: BTreeMap<String, Duration>,
        at_once: usize,
        start: Instant,
    ) -> Self {
        Self { noun, count, at_once, start, begun: 0, running: BTreeMap::new(), times, ended: Vec::new() }
    }

    /// The line for a part that begins now.
    pub(crate) fn begin(&mut self, part: &str, now: Instant) -> String {
        self.begun += 1;
        self.running.insert(part.to_owned(), now);
        let so_far = minutes(now - self.start);
        let parts = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let has_ended = |name: &String| self.ended.contains(name);
        let before: Duration =
            self.times.iter().filter(|(name, _)| !has_ended(name)).map(|(_, time)| time).sum();
        let left = match before {
            // In the first run of all, each part counts as much as the average of those that ran.
            Duration::ZERO => {
                let average = (now - self.start).checked_div(parts(self.ended.len())).unwrap_or_default();
                average * parts(self.count.saturating_sub(self.ended.len()))
            }
            before => before / parts(self.at_once.max(1)),
        };
        let left = if left.is_zero() { String::new() } else { format!(", about {} left", minutes(left)) };
        format!("[{} {} of {}, {so_far} so far{left}]", self.noun, self.begun, self.count)
    }

    pub(crate) fn end(&mut self, part: &str, now: Instant) {
        if let Some((name, since)) = self.running.remove_entry(part) {
            self.times.insert(name.clone(), now - since);
            self.ended.push(name);
        }
    }

    /// The parts that ran in this run and the time of each, as a table, and writes all times to a file for the
    /// next run.
    pub(crate) fn close(&self, file: &Path, now: Instant) -> Result<String, Failure> {
        write_times(file, &self.times)?;
        let row = |name: &str, time: Duration| format!("{:>8.1} s  {name}\n", time.as_secs_f64());
        let rows = self.ended.iter().map(|name| row(name, self.times[name]));
        Ok(rows.chain([row("all", now - self.start)]).collect())
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

pub(crate) fn read_times(file: &Path) -> BTreeMap<String, Duration> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .filter_map(|(name, seconds)| {
            Some((name.to_owned(), Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
        })
        .collect()
}

fn write_times(file: &Path, times: &BTreeMap<String, Duration>) -> Result<(), Failure> {
    let lines: Vec<String> =
        times.iter().map(|(name, time)| format!("{name} {:.1}\n", time.as_secs_f64())).collect();
    Ok(fs::write(file, lines.concat())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_the_others_took_the_last_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::new("part", 2, BTreeMap::new(), 1, start);
        assert_eq!(progress.begin("a", at(0)), "[part 1 of 2, 0 s so far]");
        progress.end("a", at(90));
        assert_eq!(progress.begin("b", at(90)), "[part 2 of 2, 2 min so far, about 2 min left]");
        progress.end("b", at(100));
        let times = progress.times;
        let mut again = Progress::new("part", 2, times.clone(), 1, start);
        assert_eq!(again.begin("a", at(0)), "[part 1 of 2, 0 s so far, about 2 min left]");
        again.end("a", at(80));
        assert_eq!(again.begin("b", at(80)), "[part 2 of 2, 2 min so far, about 10 s left]");
        again.end("b", at(85));
        assert_eq!(again.times["b"], Duration::from_secs(5));
        let mut both = Progress::new("part", 2, times, 2, start);
        assert_eq!(both.begin("a", at(0)), "[part 1 of 2, 0 s so far, about 50 s left]");
    }

    #[test]
    fn the_table_has_the_parts_of_this_run_and_all_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, start) = (folder.path().join("times"), Instant::now());
        let earlier = BTreeMap::from([("other".to_owned(), Duration::from_secs(9))]);
        let mut progress = Progress::new("step", 1, earlier, 1, start);
        progress.begin("docs", start);
        let end = start + Duration::from_secs(3);
        progress.end("docs", end);
        let table = progress.close(&file, end).expect("written");
        assert_eq!(table, "     3.0 s  docs\n     3.0 s  all\n");
        assert_eq!(read_times(&file).len(), 2);
    }

    #[test]
    fn times_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("times");
        let times = BTreeMap::from([("a".to_owned(), Duration::from_millis(1500))]);
        write_times(&file, &times).expect("written");
        assert_eq!(read_times(&file), times);
        assert_eq!(read_times(&folder.path().join("none")), BTreeMap::new());
    }
}
