//! Tests: a process killed at each step, foreign and torn files, two processes.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{DirectoryLock, Records};
use crate::error::{Error, Result};
use crate::types::VolumeId;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Lun {
    number: u32,
}

thread_local! {
    /// How many steps are left before this thread is killed.
    static STEPS_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// The steps that were done.
    static STEPS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Called before each change on the disk. A killed process runs nothing afterwards, and neither does a panic:
/// no clean-up of the store is in a destructor.
pub(super) fn step(name: &'static str) {
    match STEPS_LEFT.get() {
        Some(0) => panic!("killed before {name}"),
        left => STEPS_LEFT.set(left.map(|left| left - 1)),
    }
    STEPS.with_borrow_mut(|steps| steps.push(name));
}

/// Runs the change; kills it before the step with this index. Returns whether it was killed.
fn kill_at(index: usize, change: impl FnOnce() -> Result<()>) -> bool {
    STEPS_LEFT.set(Some(index));
    let ended = catch_unwind(AssertUnwindSafe(change));
    STEPS_LEFT.set(None);
    match ended {
        Ok(changed) => {
            changed.unwrap();
            false
        }
        Err(_) => true,
    }
}

fn lun(number: u32) -> Lun {
    Lun { number }
}

fn open(directory: &TempDir) -> Records<Lun> {
    Records::open(directory.path().join("luns")).unwrap()
}

fn files<T>(records: &Records<T>) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(records.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".lock" && name != ".spare")
        .collect();
    names.sort();
    names
}

#[test]
fn records_survive_a_restart_with_any_id() {
    let directory = tempfile::tempdir().unwrap();
    let ids = ["pvc-1", "..", "a/b", "\u{1}", "名前", &"/".repeat(128), &"é".repeat(64)];
    let records = open(&directory);
    for (number, id) in (0..).zip(ids) {
        let id = VolumeId::new(id).unwrap();
        assert!(records.create(&id, &lun(100)).unwrap());
        assert!(!records.create(&id, &lun(101)).unwrap(), "{id} exists");
        records.put(&id, &lun(number)).unwrap();
    }
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(records.path()), 0o700);
    assert!(files(&records).iter().all(|name| mode(&records.path().join(name)) == 0o600));
    drop(records);

    let records = open(&directory);
    let list = records.list().unwrap();
    assert!(list.unreadable.is_empty(), "{:?}", list.unreadable);
    assert_eq!((list.records.len(), records.ids().unwrap().len()), (ids.len(), ids.len()));
    for (number, id) in (0..).zip(ids) {
        assert_eq!(list.records[id], lun(number));
        assert_eq!(records.get(id).unwrap(), Some(lun(number)));
        assert!(records.remove(id).unwrap() && !records.remove(id).unwrap());
        assert_eq!(records.get(id).unwrap(), None);
    }
    assert!(files(&records).is_empty());
}

#[test]
fn a_change_is_on_the_disk_before_it_is_visible_and_before_it_returns() {
    let directory = tempfile::tempdir().unwrap();
    let records = open(&directory);
    let steps = |change: &dyn Fn()| {
        STEPS.take();
        change();
        STEPS.take()
    };
    let first = steps(&|| records.put("a", &lun(0)).unwrap());
    assert_eq!(first[..4], ["create", "write", "sync file", "rename"], "the spare file");
    let put = steps(&|| records.put("a", &lun(1)).unwrap());
    assert_eq!(put, ["create", "write", "sync file", "rename", "sync directory"]);
    let create = steps(&|| assert!(records.create("b", &lun(1)).unwrap()));
    assert_eq!(create, ["create", "write", "sync file", "link", "unlink", "sync directory"]);
    assert_eq!(steps(&|| assert!(records.remove("a").unwrap())), ["unlink", "sync directory"]);
}

#[test]
fn a_process_killed_at_any_step_leaves_the_old_record_or_the_new() {
    type Change = fn(&Records<Lun>) -> Result<()>;
    let changes: [(Change, Option<Lun>, usize); 3] = [
        (|records| records.put("a", &lun(2)), Some(lun(2)), 5),
        (|records| records.remove("a").map(drop), None, 2),
        (|records| records.create("new", &lun(2)).map(drop), Some(lun(1)), 6),
    ];
    for (change, after, steps) in changes {
        for index in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let records = open(&directory);
            records.put("a", &lun(1)).unwrap();
            let killed = kill_at(index, || change(&records));
            drop(records);

            let records = open(&directory);
            let found = records.get("a").unwrap();
            assert!(found == Some(lun(1)) || found == after, "{index}: {found:?}");
            assert!(matches!(records.get("new").unwrap(), None | Some(Lun { number: 2 })), "{index}");
            assert!(records.list().unwrap().unreadable.is_empty());
            assert!(
                files(&records).iter().all(|name| name.ends_with(".json")),
                "{index}: {:?}",
                files(&records)
            );
            change(&records).unwrap();
            assert_eq!(records.get("a").unwrap(), after);
            if !killed {
                assert_eq!(index, steps);
                break;
            }
        }
    }
}

#[test]
fn what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let store =
        || Records::<Lun>::in_directory(fs::File::open(&directory).unwrap(), directory.path()).unwrap();
    let killed = directory.path().join(".new-1-0");
    let living = directory.path().join(".new-1-1");
    fs::write(&killed, "{\"num").unwrap();
    let file = fs::File::create(&living).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    store().put("a", &lun(1)).unwrap();
    store().remove_unfinished().unwrap();
    assert!(!killed.exists() && living.exists());
    assert_eq!(store().get("a").unwrap(), Some(lun(1)));
    drop(file);
    store().remove_unfinished().unwrap();
    assert!(!living.exists());
}

#[test]
fn no_write_fails_while_others_sweep() {
    let directory = tempfile::tempdir().unwrap();
    let store =
        || Records::<Lun>::in_directory(fs::File::open(&directory).unwrap(), directory.path()).unwrap();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let records = store();
                scope.spawn(move || {
                    (0..200).for_each(|at| records.put(format!("{writer}"), &lun(at)).unwrap());
                })
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            store().remove_unfinished().unwrap();
        }
    });
    assert_eq!(files(&store()).len(), 3);
}

#[test]
fn what_is_not_a_record_is_named_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let records = open(&directory);
    records.put("good", &lun(1)).unwrap();
    let path = |name: &str| records.path().join(name);
    fs::write(path("torn.json"), "{\"num").unwrap();
    fs::write(path("other.json"), "{\"name\": 1}").unwrap();
    fs::write(path("large.json"), vec![b' '; Records::<Lun>::MAX_BYTES + 1]).unwrap();
    fs::write(path("README"), "of somebody").unwrap();
    fs::copy(path("good.json"), path("copy.json")).unwrap();
    fs::create_dir(path("directory.json")).unwrap();
    symlink("good.json", path("link.json")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path("pipe.json"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let socket = std::os::unix::net::UnixListener::bind(path("socket.json")).unwrap();
    let not_text = records.path().join(std::ffi::OsStr::from_bytes(b"\xff.json"));
    fs::write(&not_text, "{}").unwrap();
    let foreign = [
        "torn.json",
        "other.json",
        "large.json",
        "README",
        "copy.json",
        "directory.json",
        "link.json",
        "pipe.json",
        "socket.json",
    ];

    drop((records.clone(), socket));
    let list = records.list().unwrap();
    assert_eq!(list.records.len(), 1);
    let errors: Vec<String> = list.unreadable.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), foreign.len() + 1, "{errors:#?}");
    for name in foreign {
        let path = path(name);
        let error = errors.iter().find(|error| error.contains(path.to_str().unwrap()));
        let error = error.unwrap_or_else(|| panic!("{name}: {errors:#?}"));
        assert!(name == "README" || error.contains("restore the file"), "{error}");
        assert!(path.symlink_metadata().is_ok(), "{name} is kept");
    }
    assert!(not_text.exists() && errors.iter().any(|error| error.contains("not UTF-8")), "{errors:#?}");
    // It has no id.
    assert!(records.ids().unwrap().iter().all(|id| !id.contains('\u{fffd}')));
    let error = records.get("torn").unwrap_err();
    assert!(matches!(&error, Error::Internal(_)) && error.to_string().contains("torn.json: is not a record"));
    let text = records.get("copy").unwrap_err().to_string();
    assert!(
        text.contains("copy.json: is not a record of this driver: it is the record of \"good\""),
        "{text}"
    );
    let error = records.put("a", &lun(1)).and(Records::<String>::open(directory.path().join("texts")));
    let error = error.unwrap().put("a", &"x".repeat(1 << 20)).unwrap_err();
    assert!(error.to_string().contains("the limit is 1048576"), "{error}");
}

#[test]
fn a_second_process_is_refused_and_a_clone_is_not_one() {
    let directory = tempfile::tempdir().unwrap();
    let records = open(&directory);
    let again = || DirectoryLock::acquire_within(records.path(), Duration::ZERO);
    let error = again().unwrap_err();
    let text = format!("another process uses {}: stop it first", records.path().display());
    assert!(matches!(&error, Error::Unhealthy(_)) && error.to_string() == text, "{error}");

    let other =
        Records::<Lun>::in_directory(fs::File::open(records.path()).unwrap(), records.path()).unwrap();
    other.put("a", &lun(1)).unwrap();
    assert_eq!(records.clone().get("a").unwrap(), Some(lun(1)));
    let path = records.path().to_owned();
    drop(records);
    DirectoryLock::acquire_within(&path, Duration::ZERO).unwrap();
}

#[test]
fn many_writers_of_one_record_never_leave_a_partial_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = || Records::<String>::in_directory(fs::File::open(&directory).unwrap(), directory.path());
    let text = |byte: char| byte.to_string().repeat(64 << 10);
    store().unwrap().put("a", &text('x')).unwrap();
    std::thread::scope(|scope| {
        let writers: Vec<_> = ('a'..='d')
            .map(|byte| {
                let records = store().unwrap();
                scope.spawn(move || (0..20).for_each(|_| records.put("a", &text(byte)).unwrap()))
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            let found = store().unwrap().get("a").unwrap().unwrap();
            assert_eq!(found, text(found.chars().next().unwrap()));
        }
    });
    assert_eq!(files(&store().unwrap()).len(), 1, "nothing is left next to it");
}
