//! What happens when disk space, descriptors or memory run out, or when the disk turns read-only under the
//! driver. Each error names the step and the path, and nothing is left incomplete.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_core::client::{Client, VolumeUse};
use csi_proto::v1;
use test_support::driver::Driver;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::support::life::Life;
use crate::support::requests::*;
use crate::support::{MIB, Run, in_private, rounds, with_driver_on};

/// Creates a volume that is a directory or an image.
async fn create(client: &Client, name: &str, kind: &str) -> Result<String, Status> {
    let mut request = wanted(name, Some(""), MIB);
    let pairs = [("kind", kind), ("provisioning", if kind == "image" { "thick" } else { "thin" })];
    request.parameters = map(&pairs);
    Ok(client.call(request).await?.volume.unwrap().volume_id)
}

async fn delete(client: &Client, id: &str) -> Result<(), Status> {
    client.call(delete_volume(id)).await.map(drop)
}

async fn modify(client: &Client, id: &str, text: &str) -> Result<(), Status> {
    client.call(modification(id, &[("description", text)])).await.map(drop)
}

async fn snapshot(client: &Client, id: &str, name: &str) -> Result<String, Status> {
    let volume = VolumeUse::new(id, capability(None, 1));
    Ok(client.call(volume.create_snapshot(name)).await?.snapshot.unwrap().snapshot_id)
}

/// The paths below a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { [vec![path.clone()], below(&path)].concat() } else { vec![path] })
        .collect()
}

/// Checks that nothing that was begun is left on the disk.
#[track_caller]
fn nothing_is_half_made(run: &Run) {
    for path in below(&run.of("data")) {
        let is_whole = path.extension().is_none_or(|end| end != "part");
        let parent = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        assert!(is_whole && parent != ".new" && parent != ".old", "{} is left", path.display());
    }
}

/// Checks that the message names a step, and a path of the data directory or one of the allowed others.
#[track_caller]
fn names_its_path(status: &Status, run: &Run, system: &str) {
    let text = status.message();
    let data = run.of("data").display().to_string();
    let others = ["/dev/urandom", "/proc/thread-self/mountinfo"];
    assert!(text.contains(&data) || others.iter().any(|path| text.contains(path)), "{status:?}");
    assert!(text.contains(system) && !text.starts_with(system), "{status:?}");
}

/// Allocates all of the disk's free space except `leave` bytes.
fn fill(run: &Run, leave: usize) -> PathBuf {
    let path = run.of("data").join("filler");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let size = file.metadata().unwrap().len();
    file.set_len(size.saturating_sub(leave as u64)).unwrap();
    path
}

#[test]
fn a_full_disk_is_named_and_nothing_is_left_of_the_try() {
    with_driver_on(
        || Run::on_tmpfs(2 * MIB),
        &[],
        async |run, _driver| {
            let client = run.client();
            let id = create(&client, "before", "directory").await.unwrap();
            let mut refused = 0;
            // With each number of free pages another step fails.
            for pages in 0..6 {
                let filler = fill(run, pages * 4096);
                let long = "x".repeat(3500);
                let all = [
                    create(&client, &format!("d{pages}"), "directory").await.map(drop),
                    create(&client, &format!("i{pages}"), "image").await.map(drop),
                    modify(&client, &id, &long).await,
                    snapshot(&client, &id, "of-before").await.map(drop),
                ];
                for status in all.into_iter().filter_map(Result::err) {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                    // A pool without free space is reported before any step is tried.
                    if !status.message().starts_with("the volume needs") {
                        names_its_path(&status, run, "No space left on device");
                        refused += 1;
                    }
                }
                nothing_is_half_made(run);
                fs::remove_file(filler).unwrap();
            }
            assert!(refused >= 4, "{refused}");
            modify(&client, &id, "short").await.unwrap();
        },
    );
}

#[test]
fn after_an_expansion_on_a_full_disk_the_driver_starts_and_deletes() {
    with_driver_on(
        || Run::on_tmpfs(2 * MIB),
        &[],
        async |run, mut driver| {
            let client = run.client();
            let volume = client.call(wanted("grown", Some(""), MIB)).await.unwrap().volume.unwrap();
            // The disk was full before the records had their reserve.
            for reserve in below(&run.of("data")).iter().filter(|path| path.ends_with(".spare")) {
                fs::remove_file(reserve).unwrap();
            }
            let filler = fill(run, 0);
            let growing = VolumeUse::new(&volume.volume_id, capability(None, 1));
            let status = client.call(growing.controller_expand_volume(2 * MIB as i64)).await.unwrap_err();
            names_its_path(&status, run, "No space left on device");
            driver.restart().await;
            delete(&client, &volume.volume_id).await.unwrap();
            fs::remove_file(filler).unwrap();
            nothing_is_half_made(run);
        },
    );
}

/// A pod has filled the disk. What gives its space back needs none.
#[test]
fn on_a_full_disk_volumes_are_detached_and_deleted() {
    with_driver_on(
        || Run::on_tmpfs(16 * MIB),
        &[],
        async |run, _driver| {
            let mut lives = Vec::new();
            for number in 0..5 {
                let mut life = Life::new(run, wanted(&format!("v{number}"), Some(""), MIB)).await.unwrap();
                life.start().await.unwrap();
                lives.push(life);
            }
            let client = run.client();
            let cut = snapshot(&client, &lives[0].id, "cut").await.unwrap();
            fill(run, 0);
            for life in &lives {
                // Twice: the orchestrator repeats each call.
                for _ in 0..2 {
                    life.stop().await.unwrap();
                }
            }
            client.call(delete_snapshot(cut)).await.unwrap();
            for life in &lives {
                life.delete().await.unwrap();
                // The space that came free is taken at once.
                fill(run, 0);
                life.delete().await.unwrap();
            }
            assert!(volumes(&client).await.is_empty());
            nothing_is_half_made(run);
        },
    );
}

#[test]
fn a_disk_that_turns_read_only_refuses_and_loses_nothing() {
    with_driver_on(
        || Run::on_tmpfs(64 * MIB),
        &[],
        async |run, _driver| {
            let client = run.client();
            let ids = [
                create(&client, "directory", "directory").await.unwrap(),
                create(&client, "image", "image").await.unwrap(),
            ];
            let remount = |flags| {
                use nix::mount::{MsFlags, mount};
                let none = None::<&str>;
                mount(none, &run.of("data"), none, MsFlags::MS_REMOUNT | flags, none).unwrap();
            };
            remount(nix::mount::MsFlags::MS_RDONLY);
            for id in &ids {
                for refused in [
                    create(&client, "new", "directory").await.map(drop),
                    create(&client, "newer", "image").await.map(drop),
                    delete(&client, id).await,
                    modify(&client, id, "text").await,
                    snapshot(&client, id, &format!("of-{id}")).await.map(drop),
                ] {
                    let status = refused.unwrap_err();
                    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
                    names_its_path(&status, run, "Read-only file system");
                }
            }
            let mut all = volumes(&client).await;
            all.sort();
            let mut due = ids.to_vec();
            due.sort();
            assert_eq!(all, due);
            let request = v1::NodeGetStorageHealthRequest::default();
            let health = client.call(request).await.unwrap();
            assert_eq!(health.backend_health[0].reason, "FilesystemReadOnly", "{health:?}");
            client.call(v1::ProbeRequest {}).await.unwrap();
            remount(nix::mount::MsFlags::empty());
            nothing_is_half_made(run);
            let id = create(&client, "new", "directory").await.unwrap();
            let cut = snapshot(&client, &id, "new").await.unwrap();
            client.call(delete_snapshot(cut)).await.unwrap();
            for id in ids.iter().chain([&id]) {
                modify(&client, id, "text").await.unwrap();
                delete(&client, id).await.unwrap();
            }
            nothing_is_half_made(run);
            assert!(volumes(&client).await.is_empty());
        },
    );
}

/// Lets the driver get no new descriptor with a number of `most` or above. Its open descriptors stay open.
fn limit_descriptors(driver: &Driver, most: u64) {
    let words = [format!("--pid={}", driver.id()), format!("--nofile={most}:")];
    assert!(std::process::Command::new("prlimit").args(words).status().unwrap().success());
}

/// The limit grows from one that leaves no free descriptor to one that leaves enough. So each step of each
/// operation meets it, however many descriptors the driver itself has open.
#[test]
fn too_many_open_files_names_the_step_and_nothing_is_left_of_the_try() {
    with_driver_on(
        || Run::on_tmpfs(64 * MIB),
        &[],
        async |run, mut driver| {
            let client = run.client();
            let source = create(&client, "before", "directory").await.unwrap();
            let mut refused = [0; 4];
            // Standard input, output and error are open.
            for most in 3.. {
                assert!(most < 200, "{refused:?}: more than 200 descriptors are not enough");
                limit_descriptors(&driver, most);
                let all = [
                    create(&client, &format!("d{most}"), "directory").await.map(drop),
                    create(&client, &format!("i{most}"), "image").await.map(drop),
                    modify(&client, &source, &format!("{most}")).await,
                    snapshot(&client, &source, &format!("s{most}")).await.map(drop),
                ];
                limit_descriptors(&driver, 1024);
                if all.iter().all(Result::is_ok) {
                    break;
                }
                for (status, refused) in all.into_iter().zip(&mut refused) {
                    let Err(status) = status else { continue };
                    names_its_path(&status, run, "Too many open files");
                    *refused += 1;
                }
            }
            assert!(refused.iter().all(|times| *times > 0), "{refused:?}");
            for id in volumes(&client).await {
                modify(&client, &id, "after").await.unwrap();
            }
            driver.kill();
            // What could not be removed without a descriptor is removed at the next start.
            driver.start_again().await;
            nothing_is_half_made(run);
        },
    );
}

/// A memory control group. It is removed on drop, when no process is in it.
struct Group {
    path: PathBuf,
    limit: &'static str,
}

impl Group {
    fn new() -> Self {
        let (root, limit) = if Path::new("/sys/fs/cgroup/memory").is_dir() {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            ("/sys/fs/cgroup", "memory.max")
        };
        let path = Path::new(root).join(format!("csi-hostpath-test-{}", std::process::id()));
        fs::create_dir(&path).expect("this test makes a control group of memory");
        assert!(path.join(limit).exists(), "no controller of memory for {}", path.display());
        Self { path, limit }
    }

    fn limit(&self, bytes: u64) {
        fs::write(self.path.join(self.limit), bytes.to_string()).unwrap();
    }

    fn take(&self, process: u32) {
        fs::write(self.path.join("cgroup.procs"), process.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(120);
        while fs::remove_dir(&self.path).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The limit covers the driver's own memory, the pages of its tmpfs, and the kernel's memory for it. The
/// creates meet the limit at any step, and the kernel can kill the driver there.
#[test]
fn a_create_without_memory_is_refused_or_works_and_is_never_half_made() {
    in_private(async || {
        let mut worked = 0;
        let mut refused = 0;
        let mut killed = 0;
        for round in 0..rounds(8) {
            let run = Run::on_tmpfs(64 * MIB);
            let group = Group::new();
            let mut driver = run.start(&[]).await;
            let client = run.client();
            let source = create(&client, "source", "image").await.unwrap();
            group.take(driver.id());
            group.limit(u64::from(1 + round) * MIB);
            let mut made = vec![source];
            for at in 0..24 {
                let name = format!("v{at}");
                match create(&client, &name, if at % 2 == 0 { "image" } else { "directory" }).await {
                    Ok(id) => {
                        worked += 1;
                        made.push(id);
                    }
                    // The connection broke.
                    Err(status) if std::error::Error::source(&status).is_some() => {
                        driver.ended().await;
                        killed += 1;
                        break;
                    }
                    Err(status) => {
                        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                        refused += 1;
                    }
                }
            }
            drop(driver);
            // Without a limit, the same names again: existing volumes are found, missing ones are created.
            let _driver = run.start(&[]).await;
            nothing_is_half_made(&run);
            let client = run.client();
            let found = volumes(&client).await;
            assert!(made.iter().all(|id| found.contains(id)), "{made:?} {found:?}");
            for at in 0..24 {
                let kind = if at % 2 == 0 { "image" } else { "directory" };
                let id = create(&client, &format!("v{at}"), kind).await.unwrap();
                delete(&client, &id).await.unwrap();
            }
            assert_eq!(volumes(&client).await.len(), 1);
        }
        println!("{worked} creates worked, {refused} were refused, {killed} times the driver was killed");
        assert!(killed + refused > 0, "the limit was never met");
    });
}

/// After a drain of a node the kubelet starts all its pods at once.
#[test]
fn a_burst_takes_few_threads_and_its_memory_is_given_back() {
    const VOLUMES: usize = 50;
    with_driver_on(
        || Run::on_tmpfs(8 << 30),
        &[],
        async |run, driver| {
            let before = driver.status("RssAnon:");
            let mut lives = Vec::new();
            for at in 0..VOLUMES {
                let mut life =
                    Life::new(run, wanted(&format!("v{at}"), Some("ext4"), 64 * MIB)).await.unwrap();
                life.attach("node-1").await.unwrap();
                lives.push(life);
            }
            let begin = Instant::now();
            let mut burst = JoinSet::new();
            for life in &lives {
                fs::create_dir_all(life.staging()).unwrap();
                let client = life.node.clone();
                let volume = life.volume.clone();
                burst.spawn(async move { volume.stage(&client).await });
            }
            let mut threads = 0;
            while !burst.is_empty() {
                threads = threads.max(driver.status("Threads:"));
                if let Ok(Some(staged)) =
                    tokio::time::timeout(Duration::from_millis(5), burst.join_next()).await
                {
                    staged.unwrap().unwrap();
                }
            }
            let peak = driver.status("RssAnon:");
            // 41 on a quiet machine with two cores, and 80 to 132 without places. On a busy machine some work takes
            // longer than the 10 s for which it keeps its place, and other work begins next to it.
            let most = 64 + 16 * (begin.elapsed().as_secs() / 10);
            assert!(threads <= most, "{threads} threads at once, and {most} are allowed");

            // What it leaves: 4.8 MiB on a quiet machine. How much the driver has before depends on how many threads
            // its start took.
            let most = before + 6 * 1024;
            let end = Instant::now() + Duration::from_secs(120);
            let mut after = peak;
            while after > most && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(500)).await;
                after = driver.status("RssAnon:");
            }
            println!(
                "{threads} threads; private memory {before} KiB before, {peak} in the burst, {after} after it"
            );
            assert!(after <= most, "{after} KiB, {before} KiB before the burst");
            for life in &lives {
                life.unstage().await.unwrap();
            }
        },
    );
}
