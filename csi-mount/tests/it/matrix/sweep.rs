//! Several steps of a volume, each killed at its points.

use super::{Case, Job, Step, Volume};
use crate::stepper::{Kill, Programs};

/// A step, its number of points, and the lowest number of system calls that it must have.
pub(crate) type Row = (Step, u64, u64);

/// The step is killed together with the processes that it started, except daemons.
pub(crate) const STEP_DIES: (Programs, Kill<'_>) = (Programs::LetGo, Kill::Job);

/// Kills the steps. Returns the number of points.
pub(crate) fn kill_steps(
    (test, job): (&str, Job),
    volume: &mut dyn Volume,
    (programs, kill): (Programs, Kill<'_>),
    steps: &[Row],
) -> u32 {
    let killed = steps.iter().map(|(step, points, least_calls)| {
        let step = *step;
        let points = *points;
        let least_calls = *least_calls;
        Case { test, job, programs, kill, step, points, least_calls }.run(volume)
    });
    killed.sum()
}

/// Checks that there were at least this many points, unless the environment sets the number.
pub(crate) fn assert_points(test: &str, points: u32, least: u32) {
    println!("{test}: {points} points");
    let is_changed =
        ["CSI_CRASH_POINTS", "CSI_CRASH_STRIDE"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(is_changed || points >= least, "only {points} points, and {least} are due");
}
