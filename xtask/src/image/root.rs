//! The files of a layer, and the archive of them: always in the same order, with the same times and owners.

use std::collections::BTreeMap;
use std::path::Path;

use tar::{Builder, EntryType, Header};

use crate::Failure;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory,
    File { mode: u32, content: Vec<u8> },
    Link(String),
}

/// Entries by their path, without a `/` in front.
#[derive(Debug, Default)]
pub(crate) struct Root(BTreeMap<String, Entry>);

impl Root {
    pub(crate) fn program(&mut self, path: &str, content: Vec<u8>) {
        self.add(path, Entry::File { mode: 0o755, content });
    }

    pub(crate) fn file(&mut self, path: &str, content: Vec<u8>) {
        self.add(path, Entry::File { mode: 0o644, content });
    }

    pub(crate) fn link(&mut self, path: &str, to: &str) {
        self.add(path, Entry::Link(to.to_owned()));
    }

    /// Adds an entry, and the directories above it.
    pub(crate) fn add(&mut self, path: &str, entry: Entry) {
        for above in Path::new(path).ancestors().skip(1).filter_map(Path::to_str) {
            if !above.is_empty() {
                self.0.entry(above.to_owned()).or_insert(Entry::Directory);
            }
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Adds a copy of an entry. Returns whether it was new.
    pub(crate) fn add_new(&mut self, path: &str, entry: &Entry) -> bool {
        let is_new = !self.0.contains_key(path);
        if is_new {
            self.add(path, entry.clone());
        }
        is_new
    }

    pub(crate) fn archive(&self) -> Result<Vec<u8>, Failure> {
        let mut archive = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(0);
            match entry {
                Entry::Directory => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(0o755);
                    archive.append_data(&mut header, path, [].as_slice())?;
                }
                Entry::File { mode, content } => {
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    archive.append_data(&mut header, path, content.as_slice())?;
                }
                Entry::Link(to) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    archive.append_link(&mut header, path, to)?;
                }
            }
        }
        Ok(archive.into_inner()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_unpacks_to_the_same_entries() {
        let mut root = Root::default();
        root.program("usr/bin/a", b"a program".to_vec());
        root.link("bin", "usr/bin");
        root.file("etc/conf", Vec::new());
        let place = tempfile::tempdir().expect("a folder");
        tar::Archive::new(root.archive().expect("an archive").as_slice())
            .unpack(place.path())
            .expect("unpack");
        assert_eq!(std::fs::read(place.path().join("bin/a")).expect("by the link"), b"a program");
        assert!(place.path().join("etc/conf").is_file());
    }
}
