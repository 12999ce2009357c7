//! The promise of the README: a whole block driver in at most 120 lines.

#[test]
fn the_whole_driver_is_at_most_120_lines() {
    let lines = [include_str!("../src/lib.rs"), include_str!("../src/main.rs")]
        .iter()
        .flat_map(|source| source.lines().map(str::trim))
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count();
    assert!((20..=120).contains(&lines), "{lines} lines of code");
}
