//! Runs each contestant of every subject once, at its smallest size, so that the benchmarks keep working.
//!
//! Without the test harness: `/proc/self` shows the mount namespace of the first thread.

use benches::{ALL, Once, enter_namespace};

fn main() {
    enter_namespace();
    if std::env::var_os("BENCH_MOUNT_UTILS").is_none() {
        println!("without mount-utils, which `cargo xtask ci` runs too");
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for subject in ALL.iter().filter(|subject| subject.name.contains(&filter)) {
        println!("{}", subject.name);
        subject.run(subject.sizes[0], &mut Once);
    }
}
