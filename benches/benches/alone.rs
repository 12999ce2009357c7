//! Each contestant alone, under Criterion: `cargo bench -p benches [-- FILTER]`. The crate's documentation
//! lists the other ways to measure.

use std::time::Duration;

use benches::{ALL, Contestant, Engine, Kind, enter_namespace};
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, measurement::WallTime};

struct Under<'g, 'c> {
    group: &'g mut BenchmarkGroup<'c, WallTime>,
    size: usize,
}

impl Engine for Under<'_, '_> {
    fn compare(&mut self, contestants: &mut [Contestant<'_>]) {
        for contestant in contestants {
            // A program takes milliseconds, hundreds of times as long as the library: a few runs are enough.
            self.group.sample_size(if contestant.kind == Kind::Program { 10 } else { 30 });
            let id = BenchmarkId::new(format!("{} {}", contestant.kind.name(), contestant.name), self.size);
            self.group.bench_function(id, |bencher| bencher.iter_custom(|times| contestant.run(times)));
        }
    }
}

fn main() {
    // Subjects make mounts before Criterion could list what it would run, so the list is printed here.
    if std::env::args().any(|argument| argument == "--list") {
        ALL.iter().for_each(|subject| println!("{}: bench", subject.name));
        return;
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    enter_namespace();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for subject in ALL.iter().filter(|subject| subject.name.contains(&filter)) {
        for &size in subject.sizes {
            let mut group = criterion.benchmark_group(subject.name);
            subject.run(size, &mut Under { group: &mut group, size });
            group.finish();
        }
    }
    criterion.final_summary();
}
