//! Kernel modules in load order. Packages have no `modules.dep`, so dependencies are read from each module.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, step};

/// A kernel's modules, by name. `-` and `_` are equal in module names.
pub(crate) struct Modules {
    files: BTreeMap<String, PathBuf>,
}

impl Modules {
    pub(crate) fn below(root: &Path) -> Result<Self, Failure> {
        let mut files = BTreeMap::new();
        let mut left = vec![root.to_owned()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let file_name = entry.file_name().to_string_lossy().into_owned();
                if entry.file_type()?.is_dir() {
                    left.push(entry.path());
                } else if let Some((name, "" | ".xz")) = file_name.split_once(".ko") {
                    files.insert(name.replace('-', "_"), entry.path());
                }
            }
        }
        Ok(Self { files })
    }

    /// A module after its dependencies, without the modules in `loaded`.
    pub(crate) fn load(
        &self,
        name: &str,
        loaded: &mut Vec<String>,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let name = name.replace('-', "_");
        let Some(file) = self.files.get(&name).filter(|_| !loaded.contains(&name)) else {
            return Ok(Vec::new());
        };
        let image = read(file)?;
        loaded.push(name.clone());
        let mut order = Vec::new();
        for needed in depends(&image) {
            order.extend(self.load(&needed, loaded)?);
        }
        order.push((name, image));
        Ok(order)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    if file.extension().is_some_and(|extension| extension == "ko") {
        return Ok(fs::read(file)?);
    }
    step::output(Command::new("xz").args(["--decompress", "--stdout"]).arg(file))
}

/// The dependencies in the module's `.modinfo` section, `depends=a,b`.
fn depends(image: &[u8]) -> Vec<String> {
    let texts = image.split(|byte| *byte == 0).filter_map(|text| text.strip_prefix(b"depends="));
    let lists = texts.filter_map(|list| std::str::from_utf8(list).ok());
    lists.flat_map(|list| list.split(',')).filter(|name| !name.is_empty()).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = directory.path().join("kernel/fs");
        fs::create_dir_all(&below).expect("create");
        for (name, depends) in [("a.ko", "b-b,c"), ("b_b.ko", "c"), ("c.ko", ""), ("d.ko", "a")] {
            fs::write(below.join(name), format!("\x7fELF\0depends={depends}\0x")).expect("write");
        }
        let modules = Modules::below(directory.path()).expect("modules");
        let mut loaded = Vec::new();
        let mut names = |name| {
            let order = modules.load(name, &mut loaded).expect("load");
            order.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("a"), "c b_b a");
        assert_eq!(names("d"), "d");
        assert_eq!(names("ext4"), "", "built in");
    }
}
