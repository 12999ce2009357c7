//! Tests: the store as a killed process leaves it.

use std::fs;
use std::sync::Arc;

use csi_core::Error;
use serde::{Deserialize, Serialize};

use super::{NEW, OLD, Record, Store, new_id};

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
    assert!(store.get("a").is_none() && store.by_name("one").is_none(), "not before it is committed");
    store.commit(made).unwrap();
    // `forget` stands for a kill, which drops nothing.
    std::mem::forget(
        store.make("b".to_owned(), thing("two"), |place| Ok(fs::write(place.join("content"), "x")?)).unwrap(),
    );
    assert!(root.path().join("things").join(NEW).join("b").exists());

    let store = open(&root);
    assert_eq!(ids(&store), ["a"]);
    assert_eq!(store.by_name("one").unwrap().0, "a");
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
    assert!(store.by_name("one").is_none() && !store.place("a").exists());
    store.commit(store.make("c".to_owned(), thing("one"), |_| Ok(())).unwrap()).unwrap();
    assert_eq!(store.by_name("one").unwrap().0, "c");
    // Killed after the rename.
    fs::rename(store.place("b"), root.path().join("things").join(OLD).join("x")).unwrap();
    let store = open(&root);
    assert_eq!(ids(&store), ["c"]);
    assert!(!root.path().join("things").join(OLD).join("x").exists());
}

#[test]
fn an_object_that_can_not_be_read_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root);
    store.commit(store.make("a".to_owned(), thing("one"), |_| Ok(())).unwrap()).unwrap();
    fs::write(store.place("a").join("record.json"), "not json").unwrap();
    let store = open(&root);
    assert!(ids(&store).is_empty());
    assert!(store.find("a").is_err() && store.place("a").exists(), "it is not gone");
    assert!(store.find("b").unwrap().is_none());
}

#[test]
fn ids_are_file_names_that_nobody_had() {
    let (one, other) = (new_id().unwrap(), new_id().unwrap());
    assert_ne!(one, other);
    assert!(one.len() == 32 && one.chars().all(|c| c.is_ascii_hexdigit()), "{one}");
}
