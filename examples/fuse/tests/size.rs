//! The promise of the README: a whole driver with a FUSE program in at most 60 lines, not counting
//! that program.

#[test]
fn the_whole_driver_is_at_most_60_lines() {
    let lines = include_str!("../src/lib.rs")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count();
    assert!((20..=60).contains(&lines), "{lines} lines of code");
}
