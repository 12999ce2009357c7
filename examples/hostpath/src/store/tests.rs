//! Tests: the store as a killed process leaves it.

use std::fs;
use std::sync::Arc;

use csi_core::Error;
use serde::{Deserialize, Serialize};

use super::{NEW, OLD, Record, Store, new_id, read_record};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Thing {
    name: String,
    size: u64,
}

impl Record for Thing {
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

fn thing(name: &str) -> Thing {
    Thing { name: name.to_owned(), size: 1 }
}

fn open(root: &tempfile::TempDir) -> Store<Thing> {
    Store::open(root.path().join("things")).unwrap()
}

fn grow(thing: &mut Thing, by: u64) -> Result<(), Error> {
    thing.size += by;
    Ok(())
}

fn ids(store: &Store<Thing>) -> Vec<String> {
    store.all().into_iter().map(|(id, _)| id).collect()
}

#[test]
fn what_was_committed_is_found_again_and_what_was_not_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root);
    let made =
        store.make("a".to_owned(), thing("one"), |place| Ok(fs::write(place.join("content"), "x")?)).unwrap();
    assert!(
        store.get("a").is_none() && store.by_name("one").unwrap().is_none(),
        "not before it is committed"
    );
    store.commit(made).unwrap();
    // `forget` stands for a kill, which drops nothing.
    std::mem::forget(
        store.make("b".to_owned(), thing("two"), |place| Ok(fs::write(place.join("content"), "x")?)).unwrap(),
    );
    assert!(root.path().join("things").join(NEW).join("b").exists());

    let store = open(&root);
    assert_eq!(ids(&store), ["a"]);
    assert_eq!(store.by_name("one").unwrap().unwrap().0, "a");
    assert_eq!(fs::read(store.place("a").join("content")).unwrap(), b"x");
    for half in [NEW, OLD] {
        assert_eq!(fs::read_dir(root.path().join("things").join(half)).unwrap().count(), 0);
    }
}

#[test]
fn what_fails_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root);
    let failed = store.make("a".to_owned(), thing("one"), |_| Err(Error::LimitReached("full".into())));
    assert!(matches!(failed, Err(Error::LimitReached(_))));
    drop(store.make("b".to_owned(), thing("two"), |_| Ok(())).unwrap());
    assert_eq!(fs::read_dir(root.path().join("things").join(NEW)).unwrap().count(), 0);
    assert!(ids(&store).is_empty());
}

#[test]
fn a_change_is_whole_or_is_none() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root);
    store.commit(store.make("a".to_owned(), thing("one"), |_| Ok(())).unwrap()).unwrap();
    let refused: Result<Option<()>, Error> = store.update("a", |thing| {
        thing.size = 7;
        Err(Error::LimitReached("no".into()))
    });
    assert!(refused.is_err() && store.get("a").unwrap().size == 1);
    assert!(store.update("none", |_| Ok(())).unwrap().is_none());
    store.update("a", |thing| grow(thing, 1)).unwrap().unwrap();
    // Killed between the write and the rename: the old record is valid.
    fs::write(store.place("a").join(".new-1-0"), "{\"na").unwrap();
    assert_eq!(open(&root).get("a").unwrap().size, 2);
    assert!(!store.place("a").join(".new-1-0").exists());
}

#[test]
fn changes_at_once_are_all_made() {
    let root = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&root));
    store.commit(store.make("a".to_owned(), thing("one"), |_| Ok(())).unwrap()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    store.update("a", |thing| grow(thing, 1)).unwrap().unwrap();
                }
            });
        }
    });
    assert_eq!(store.get("a").unwrap().size, 161);
    assert_eq!(open(&root).get("a").unwrap().size, 161);
}

#[test]
fn a_name_comes_free_with_its_object_and_a_half_deletion_is_one() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root);
    for (id, name) in [("a", "one"), ("b", "two")] {
        store.commit(store.make(id.to_owned(), thing(name), |_| Ok(())).unwrap()).unwrap();
    }
    store.remove("a").unwrap();
    assert!(store.by_name("one").unwrap().is_none() && !store.place("a").exists());
    store.commit(store.make("c".to_owned(), thing("one"), |_| Ok(())).unwrap()).unwrap();
    assert_eq!(store.by_name("one").unwrap().unwrap().0, "c");
    // Killed after the rename.
    fs::rename(store.place("b"), root.path().join("things").join(OLD).join("x")).unwrap();
    let store = open(&root);
    assert_eq!(ids(&store), ["c"]);
    assert!(!root.path().join("things").join(OLD).join("x").exists());
}

#[test]
fn an_object_that_can_not_be_read_is_left_alone_and_never_counts_as_gone() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root);
    for (id, name) in [("a", "one"), ("b", "two")] {
        store.commit(store.make(id.to_owned(), thing(name), |_| Ok(())).unwrap()).unwrap();
    }
    let file = store.place("a").join("record.json");
    let whole = fs::read(&file).unwrap();
    let foreign = fs::read(store.place("b").join("record.json")).unwrap();
    let damages = [&b""[..], &whole[..whole.len() / 2], b"not json", b"{\"older\": 1}", &foreign];
    for damage in damages.into_iter().map(Some).chain([None]) {
        match damage {
            Some(damage) => fs::write(&file, damage).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let store = open(&root);
        assert_eq!(ids(&store), ["b"]);
        let error = store.find("a").unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
        store.update("a", |_| Ok(())).unwrap_err();
        store.by_name("one").unwrap_err();
        assert_eq!(store.by_name("two").unwrap().unwrap().0, "b");
        read_record::<Thing>(&store.place("a")).unwrap_err();
        assert!(store.find("none").unwrap().is_none() && store.place("a").exists(), "it is not gone");
    }
    // A record of an earlier version has no id.
    let text = String::from_utf8(whole).unwrap();
    fs::write(&file, text.replace("\"id\": \"a\",", "")).unwrap();
    assert_eq!(ids(&open(&root)), ["a", "b"]);
    fs::write(&file, "").unwrap();
    let store = open(&root);
    store.remove("a").unwrap();
    assert!(store.find("a").unwrap().is_none());
}

/// Such as a backup that somebody put there.
#[test]
fn a_file_among_the_objects_stops_no_start_and_is_reported_with_its_repair() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root);
    store.commit(store.make("a".to_owned(), thing("one"), |_| Ok(())).unwrap()).unwrap();
    fs::write(store.place("backup.tar"), "").unwrap();
    let store = open(&root);
    assert_eq!(ids(&store), ["a"]);
    let error = store.by_name("two").unwrap_err().to_string();
    let due = "backup.tar: is not the directory of an object; move it away. Then start the driver again";
    assert!(error.ends_with(due), "{error}");
}

#[test]
fn ids_are_file_names_that_nobody_had() {
    let one = new_id().unwrap();
    let other = new_id().unwrap();
    assert_ne!(one, other);
    assert!(one.len() == 32 && one.chars().all(|c| c.is_ascii_hexdigit()), "{one}");
}

mod needs_root {
    use csi_mount::testing::private_mount_namespace;
    use csi_mount::{Mount, Target, unmount};

    use super::*;

    /// A deletion was OK although the content could not be removed, and nobody removed it any more.
    #[test]
    fn an_object_is_deleted_when_its_content_is_gone() {
        let root = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let store = open(&root);
            store.commit(store.make("a".to_owned(), thing("one"), |_| Ok(())).unwrap()).unwrap();
            // Nothing below a mount is removed.
            let inside = Target::new(store.place("a").join("inside")).unwrap();
            inside.create_dir().unwrap();
            Mount::new("tmpfs", "inside").at(&inside).unwrap();
            let old = root.path().join("things").join(OLD).join("a");
            for _ in 0..2 {
                let error = store.remove("a").unwrap_err();
                assert!(error.to_string().contains("inside"), "{error}");
                assert!(store.find("a").unwrap().is_some(), "a retry finds it");
                assert!(store.get("a").is_none() && ids(&store).is_empty(), "nobody else does");
                assert!(old.exists());
            }
            let restarted = open(&root);
            let error = restarted.find("a").unwrap_err().to_string();
            assert!(error.contains("/.old/a can't be removed"), "{error}");

            unmount(&Target::new(old.join("inside")).unwrap()).unwrap();
            store.remove("a").unwrap();
            assert!(store.find("a").unwrap().is_none() && !old.exists());
        });
    }
}
