//! The wall clock jumps forward and back by years while the driver serves: nothing waits for it, and
//! nothing is lost. Needs root, and a C compiler for the library that gives the driver another time.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use csi_proto::v1;
use test_support::driver::Signal;
use tokio::time::timeout;

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, in_private, program};

const YEAR: i64 = 365 * 24 * 60 * 60;
/// Much longer than a call takes on a busy machine, and much shorter than a jump.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Adds the seconds in a file to the wall clock. The monotonic clock is unchanged.
const LIBRARY: &str = r#"
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    static int64_t none, *ahead = &none;

    __attribute__((constructor)) static void open_clock(void) {
        int file = open(getenv("TEST_CLOCK"), O_RDONLY | O_CLOEXEC);
        void *found = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        if (found == MAP_FAILED) abort();
        ahead = found;
        close(file);
    }

    int clock_gettime(clockid_t clock, struct timespec *time) {
        int failed = syscall(SYS_clock_gettime, clock, time);
        if (!failed && clock == CLOCK_REALTIME) time->tv_sec += *ahead;
        return failed;
    }
"#;

/// The driver's wall clock.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    fn new(directory: &Path) -> Self {
        let at = |name: &str| directory.join(name);
        let clock = Self { library: at("clock.so"), file: at("clock") };
        std::fs::write(at("clock.c"), LIBRARY).unwrap();
        std::fs::write(&clock.file, 0_i64.to_ne_bytes()).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&clock.library).arg(at("clock.c"));
        assert!(compiler.status().expect("a C compiler").success());
        clock
    }

    /// Sets the driver's clock this number of seconds ahead of this process's clock.
    fn set_ahead(&self, seconds: i64) {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

/// The seconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// Takes a volume through its life; the clock has another offset in each step.
async fn live(run: &Run, clock: &Clock, name: &str, ahead: i64) {
    clock.set_ahead(0);
    let mut volume = Life::new(run, wanted(name, Some("xfs"), 320 * MIB)).await.unwrap();
    clock.set_ahead(ahead);
    let target = volume.start().await.unwrap();
    std::fs::write(target.join("file"), "content").unwrap();
    let snapshot = volume.snapshot(name).await.unwrap();
    let request = v1::ListSnapshotsRequest { snapshot_id: snapshot.clone(), ..Default::default() };
    let listed = volume.client.call(request).await.unwrap();
    let cut = listed.entries[0].snapshot.as_ref().unwrap().creation_time.unwrap();
    assert!((cut.seconds - now() - ahead).abs() < 3600, "the driver sees this clock: {cut:?}, {ahead} ahead");
    clock.set_ahead(0);
    assert_eq!(volume.snapshot(name).await.unwrap(), snapshot, "the same one is found again");
    clock.set_ahead(-ahead);
    volume.client.call(v1::ProbeRequest {}).await.unwrap();
    volume.client.call(delete_snapshot(snapshot)).await.unwrap();
    assert_eq!(std::fs::read(target.join("file")).unwrap(), b"content");
    clock.set_ahead(ahead);
    volume.end().await;
    run.assert_clean();
}

#[test]
fn a_clock_that_jumps_changes_nothing_but_the_times_of_snapshots() {
    in_private(async || {
        let run = Run::new();
        let clock = Clock::new(run.root());
        let mut command = program();
        command.env("LD_PRELOAD", &clock.library).env("TEST_CLOCK", &clock.file);
        let mut driver = run.start_as(command, "csi.sock", "node-1", &["--grace=60s"]).await;
        // The last jump goes to 1970, where a machine without a clock battery starts.
        for (nth, ahead) in [0, 10 * YEAR, -10 * YEAR, 1 - now()].into_iter().enumerate() {
            let name = format!("volume-{nth}");
            let life = live(&run, &clock, &name, ahead);
            timeout(TIMEOUT, life).await.unwrap_or_else(|_| panic!("{ahead} s ahead: it takes too long"));
        }
        clock.set_ahead(10 * YEAR);
        driver.signal(Signal::TERM);
        let ended = driver.ended().await;
        assert!(ended.success(), "{ended}");
    });
}
