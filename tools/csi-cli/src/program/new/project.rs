//! A project on its way to the disk.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// The files and directories that were made so far, in this order.
#[derive(Default)]
struct Made(Vec<PathBuf>);

/// Why a project was not written. Nothing of it is left, unless the text says so.
#[derive(Debug)]
pub(super) enum NotWritten {
    /// The directory has something in it, and was not changed.
    NotEmpty,
    /// What failed, and where.
    Failed(String),
}

/// Writes the files of a project into its directory, which is made, or is empty.
///
/// # Errors
/// When the directory is not empty, or something can't be written. Then everything that this call made is removed.
pub(super) fn write(project: &Path, files: &[(&str, String)]) -> Result<(), NotWritten> {
    let mut made = Made::default();
    made.directory(project).map_err(|error| failed(project, error))?;
    let mut found = fs::read_dir(project).map_err(|error| failed(project, error))?;
    if found.next().is_some() {
        return Err(NotWritten::NotEmpty);
    }
    for (path, text) in files {
        let path = project.join(path);
        if let Err(error) = made.file(project, &path, text) {
            return Err(made.undo(failed(&path, error)));
        }
    }
    Ok(())
}

fn failed(path: &Path, error: io::Error) -> NotWritten {
    NotWritten::Failed(format!("{}: {error}", path.display()))
}

impl Made {
    /// Makes a directory, unless it exists.
    fn directory(&mut self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Ok(()) => self.0.push(path.to_owned()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes a file, and the directories between it and the project's.
    fn file(&mut self, project: &Path, path: &Path, text: &str) -> io::Result<()> {
        let between: Vec<&Path> = path.ancestors().skip(1).take_while(|above| *above != project).collect();
        between.into_iter().rev().try_for_each(|directory| self.directory(directory))?;
        let mut file = File::create_new(path)?;
        self.0.push(path.to_owned());
        file.write_all(text.as_bytes())
    }

    /// Removes what was made, by name: what somebody else put there meanwhile stays.
    fn undo(self, reason: NotWritten) -> NotWritten {
        let remove = |path: &PathBuf| {
            let removed = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
            removed.err().map(|error| format!("{} ({error})", path.display()))
        };
        let left: Vec<String> = self.0.iter().rev().filter_map(remove).collect();
        match reason {
            NotWritten::Failed(reason) if !left.is_empty() => {
                NotWritten::Failed(format!("{reason}; left behind: {}", left.join(", ")))
            }
            reason => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `src` is a file first and a directory then.
    const CONTRADICTION: [&str; 3] = ["tests/kit.rs", "src", "src/main.rs"];

    #[test]
    fn a_project_is_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let files = CONTRADICTION.map(|path| (path, path.to_owned()));
        let new = folder.path().join("new");
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).unwrap();
        for project in [&new, &empty] {
            let Err(NotWritten::Failed(reason)) = write(project, &files) else { panic!("it is written") };
            assert!(reason.starts_with(&format!("{}/src/main.rs: ", project.display())), "{reason}");
        }
        assert!(!new.exists());
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
        write(&new, &files[..2]).unwrap();
        assert_eq!(fs::read_to_string(new.join("tests/kit.rs")).unwrap(), "tests/kit.rs");
        assert!(matches!(write(&new, &files[2..]), Err(NotWritten::NotEmpty)));
        assert!(!new.join("src/main.rs").exists());
    }
}
