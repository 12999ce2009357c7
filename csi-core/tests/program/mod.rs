//! The example `flags`, run as a process of its own: this very test program, told to be the example.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use clap::Parser;
use csi_core::client::Client;
use tokio::process::{Child, Command};
use tokio::time::timeout;

#[path = "../../examples/flags.rs"]
mod flags;

const FLAGS: &str = "PROGRAM_FLAGS";
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Program {
    pub directory: tempfile::TempDir,
    pub child: Child,
}

impl Program {
    /// Runs with these flags, and with its socket and its log in a directory of its own.
    pub fn start(flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let endpoint = format!("--endpoint={}", directory.path().join("csi.sock").display());
        let flags = [&["flags", &endpoint], flags].concat().join("\n");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "program::runs", "--nocapture"])
            .env_clear()
            .env(FLAGS, flags)
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        Self { directory, child }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    pub async fn client(&self) -> Client {
        let client = Client::new(&self.socket().to_str().unwrap().parse().unwrap());
        if let Err(error) = client.ready(PATIENCE).await {
            panic!("{error}; its log: {}", self.log());
        }
        client
    }

    pub fn terminate(&self) {
        let id = self.child.id().expect("it runs").to_string();
        assert!(std::process::Command::new("kill").arg(id).status().unwrap().success());
    }

    pub async fn ended(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.child.wait()).await.expect("it ends in time").unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

/// The program itself, in a process that a test started.
#[test]
#[ignore = "the program that other tests run"]
fn runs() {
    let text = std::env::var(FLAGS).expect("a test runs this");
    let code = match flags::Args::try_parse_from(text.split('\n')) {
        Ok(args) => tokio::runtime::Runtime::new().unwrap().block_on(flags::run(args)),
        Err(error) => error.exit(),
    };
    let number = (0..=2).find(|number| ExitCode::from(*number) == code).expect("one of the three");
    std::process::exit(i32::from(number));
}
