//! The example `flags` as a separate process: this test program itself, which an environment variable turns
//! into the example.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use clap::Parser;
use csi_core::client::Client;
use tokio::process::Child;
use tokio::time::timeout;

use crate::common::PATIENCE;

pub mod files;
#[path = "../../../../examples/flags.rs"]
mod flags;

const FLAGS: &str = "PROGRAM_FLAGS";

pub struct Program {
    pub directory: tempfile::TempDir,
    pub child: Child,
}

impl Program {
    /// Starts it with these flags, and with its socket and its log in a separate directory.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_as("flags", flags, None)
    }

    /// Starts the driver of `files` instead, with a limit of open files if one is given.
    pub fn start_files(flags: &[&str], limit: Option<u32>) -> Self {
        Self::start_as("files", flags, limit)
    }

    fn start_as(name: &str, flags: &[&str], limit: Option<u32>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let endpoint = format!("--endpoint={}", directory.path().join("csi.sock").display());
        let mut command =
            tokio::process::Command::from(command(name, &[&[endpoint.as_str()], flags].concat(), limit));
        let child = command.stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn();
        Self { directory, child: child.expect("it starts") }
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

    /// What the kubelet shows of a container that ended with an error and has `terminationMessagePolicy:
    /// FallbackToLogsOnError`: the last 80 lines of its log, and at most 2048 bytes of them.
    pub fn termination_message(&self) -> String {
        let log = self.log();
        let start = log.len().saturating_sub(2048);
        let tail = String::from_utf8_lossy(&log.as_bytes()[start..]).into_owned();
        let lines: Vec<&str> = tail.lines().collect();
        lines[lines.len().saturating_sub(80)..].join("\n")
    }
}

/// This test program, started as the example with these flags.
fn command(name: &str, flags: &[&str], limit: Option<u32>) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match limit {
        None => Command::new(program),
        Some(limit) => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]).arg(program);
            shell
        }
    };
    command
        .args(["--exact", "process::program::the_flags_are_explained", "--nocapture"])
        .env_clear()
        .env(FLAGS, [&[name], flags].concat().join("\n"));
    command
}

/// A test of `--help`. In a process that a test started, it runs the example itself.
#[test]
fn the_flags_are_explained() {
    if let Ok(text) = std::env::var(FLAGS) {
        be_the_example(&text);
    }
    let output = command("flags", &["--help"], None).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    // The line of the test program comes first. The documentation of a flattened struct is not the program's.
    let before = text.split("Usage:").next().unwrap();
    assert_eq!(before.trim(), "running 1 test", "{text}");
    for flag in ["--volumes-per-node", "--endpoint", "--metrics-address"] {
        assert!(text.contains(flag), "{flag} is not explained: {text}");
    }
}

fn be_the_example(flags: &str) -> ! {
    // Dropped like the runtime of `main`, which waits for blocking work.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let code = if flags.starts_with("files") {
        runtime.block_on(files::run(files::Args::parse_from(flags.split('\n'))))
    } else {
        match flags::Args::try_parse_from(flags.split('\n')) {
            Ok(args) => runtime.block_on(flags::run(args)),
            Err(error) => error.exit(),
        }
    };
    drop(runtime);
    let number = (0..=2).find(|number| ExitCode::from(*number) == code).expect("one of the three");
    std::process::exit(i32::from(number));
}
