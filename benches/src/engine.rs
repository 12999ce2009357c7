//! How contestants are measured: in turns, or once each to check that they work.

use std::time::{Duration, Instant};

use crate::Contestant;

/// Measures the contestants of one subject at one size.
pub trait Engine {
    /// Measures them.
    fn compare(&mut self, contestants: &mut [Contestant<'_>]);
}

/// Runs each contestant once.
#[derive(Debug)]
pub struct Once;

impl Engine for Once {
    fn compare(&mut self, contestants: &mut [Contestant<'_>]) {
        for contestant in contestants {
            contestant.run(1);
        }
    }
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// No new round begins after this time.
    pub time: Duration,
    /// The minimum number of rounds, whatever the time.
    pub least_rounds: usize,
    /// The maximum number of rounds.
    pub most_rounds: usize,
}

/// The measurements of one contestant.
#[derive(Debug)]
pub struct Taken {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: crate::Kind,
    /// The repetitions in each round.
    pub times: u64,
    /// Nanoseconds per repetition, one value per round. All contestants have the same rounds, but a slow one
    /// takes part only in the first.
    pub nanoseconds: Vec<f64>,
}

/// Runs all contestants in turns, in short rounds; each round has a new random order.
#[derive(Debug)]
pub struct Interleaved {
    limits: Limits,
    random: Random,
    /// The measurements.
    pub taken: Vec<Taken>,
}

/// The target duration of a turn: long enough for the clock, and short enough that the machine does not
/// change.
const TURN: Duration = Duration::from_millis(2);
/// A turn whose unmeasured part takes this long is not made longer.
const LONG_TURN: Duration = Duration::from_millis(8);

impl Interleaved {
    /// Measures within these limits. The seed determines the order of the turns.
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self { limits, random: Random(seed | 1), taken: Vec::new() }
    }
}

impl Engine for Interleaved {
    fn compare(&mut self, contestants: &mut [Contestant<'_>]) {
        let begun = Instant::now();
        let mut slow = Vec::new();
        let mut all_taken = Vec::new();
        for contestant in contestants.iter_mut() {
            let begun = Instant::now();
            let times = times_of_a_turn(contestant);
            slow.push(times == 1 && begun.elapsed() > self.limits.time / 20);
            let name = contestant.name;
            let kind = contestant.kind;
            all_taken.push(Taken { name, kind, times, nanoseconds: Vec::new() });
        }
        self.taken = all_taken;
        let mut order: Vec<usize> = (0..contestants.len()).collect();
        for round in 0..self.limits.most_rounds {
            if round >= self.limits.least_rounds && begun.elapsed() > self.limits.time {
                break;
            }
            self.random.shuffle(&mut order);
            for &at in &order {
                let taken = &mut self.taken[at];
                if round >= self.limits.least_rounds && slow[at] {
                    continue;
                }
                let time = contestants[at].run(taken.times);
                taken.nanoseconds.push(time.as_nanos() as f64 / taken.times as f64);
            }
        }
    }
}

/// Finds the number of repetitions in a turn. This also warms up.
fn times_of_a_turn(contestant: &mut Contestant<'_>) -> u64 {
    let mut times = 1;
    loop {
        let begun = Instant::now();
        let timed = contestant.run(times);
        if timed >= TURN || begun.elapsed() >= LONG_TURN || times > 1 << 24 {
            return times;
        }
        times *= 2;
    }
}

/// Xorshift: good enough for a random order.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            items.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(least_rounds: usize) -> Limits {
        Limits { time: Duration::ZERO, least_rounds, most_rounds: 100 }
    }

    #[test]
    fn a_slow_one_stops_after_the_least_rounds() {
        let slow = |_| {
            std::thread::sleep(Duration::from_millis(20));
            Duration::from_millis(20)
        };
        let limits = Limits { time: Duration::from_millis(300), least_rounds: 2, most_rounds: 10 };
        let mut engine = Interleaved::new(limits, 1);
        engine.compare(&mut [
            Contestant::bare("fast", Duration::from_millis),
            Contestant::program("slow", slow),
        ]);
        assert_eq!(engine.taken.iter().map(|taken| taken.nanoseconds.len()).collect::<Vec<_>>(), [10, 2]);
    }

    #[test]
    fn all_take_part_in_every_round() {
        let fast = |times| Duration::from_nanos(1000 * times);
        let slow = |times| Duration::from_millis(5 * times);
        let mut engine = Interleaved::new(limits(7), 1);
        engine.compare(&mut [Contestant::ours("fast", fast), Contestant::bare("slow", slow)]);
        assert_eq!(engine.taken[0].nanoseconds, [1000.0; 7]);
        assert_eq!((engine.taken[1].nanoseconds.as_slice(), engine.taken[1].times), ([5e6; 7].as_slice(), 1));
    }

    #[test]
    fn a_shuffle_keeps_all_and_changes_the_order() {
        let mut items: Vec<u32> = (0..50).collect();
        let before = items.clone();
        Random(77).shuffle(&mut items);
        assert_ne!(items, before);
        items.sort_unstable();
        assert_eq!(items, before);
    }
}
