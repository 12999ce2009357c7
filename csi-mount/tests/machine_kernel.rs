//! The kernel keeps the contract of machines. Needs root.

mod flow_support;
mod machine_contract;

use std::fs;
use std::io;
use std::io::Write as _;
use std::path::Path;

use csi_mount::{Kernel, Machine};
use machine_contract::{Bench, Held};

struct Real<'a>(&'a Path);

impl Held for fs::File {}

impl Bench for Real<'_> {
    fn machine(&self) -> &dyn Machine {
        &Kernel
    }

    fn root(&self) -> &Path {
        self.0
    }

    fn create_dir(&self, path: &Path) {
        fs::create_dir_all(path).unwrap();
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = fs::File::options().write(true).create(true).truncate(false).open(path)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if written.is_err() && file.metadata()?.is_file() {
            fs::remove_file(path)?;
        }
        written
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn hold(&self, path: &Path) -> Box<dyn Held + '_> {
        Box::new(fs::File::open(path).unwrap())
    }
}

#[test]
fn the_kernel_keeps_the_contract() {
    flow_support::on_tmpfs(|root| machine_contract::keep(&Real(root)));
}
