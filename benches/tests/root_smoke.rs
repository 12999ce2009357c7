//! Every subject, each contestant once, at its smallest size: so that what is measured keeps working.
//!
//! Without the test harness: the first thread's mount namespace is the one that `/proc/self` shows.

use benches::{ALL, Once, enter_namespace};

fn main() {
    enter_namespace();
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for subject in ALL.iter().filter(|subject| subject.name.contains(&filter)) {
        println!("{}", subject.name);
        subject.run(subject.sizes[0], &mut Once);
    }
}
