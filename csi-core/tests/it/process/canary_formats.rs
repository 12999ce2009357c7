//! A secret is in every field that can contain one, through every RPC of a driver that runs as a process.
//! It is in no log, at no level, in no format.

use csi_core::client::Client;
use prost::Message as _;

use crate::process::program::Program;
use crate::rpcs::samples::{CANARY, samples};

/// Calls every RPC with a valid request. Returns the number of calls, and how many of them succeeded.
async fn call_all(client: &Client) -> (usize, usize) {
    let mut calls = 0;
    let mut successes = 0;
    for (rpc, request) in samples() {
        calls += 1;
        match crate::rpcs::call(client, rpc, request.encode_to_vec()).await {
            Ok(_) => successes += 1,
            Err(status) => assert!(!format!("{status:?}").contains(CANARY), "{rpc}: {status:?}"),
        }
    }
    (calls, successes)
}

// spec: secrets.not-leaked
#[tokio::test]
async fn no_log_has_the_canary() {
    for format in ["text", "json"] {
        for level in ["error", "warn", "info", "debug", "trace"] {
            let mut program = Program::start(&["--log-format", format, "--log-level", level]);
            let client = program.client().await;
            let (calls, successes) = call_all(&client).await;
            program.terminate();
            assert!(program.ended().await.success());
            let log = program.log();
            println!(
                "{format} {level}: {calls} calls, {successes} succeed, {} lines of log",
                log.lines().count()
            );
            assert!(calls >= 36 && successes >= 8, "{calls} calls, {successes} successes");
            if let Some(line) = log.lines().find(|line| line.contains(CANARY)) {
                panic!("{format} {level}: {line}");
            }
            // Proves that this is the right log, and that it contains the requests.
            if ["debug", "trace"].contains(&level) {
                assert!(log.contains("NodePublishVolume") && log.contains("password"), "{log}");
            }
            if format == "json" {
                log.lines().for_each(|line| assert!(line.starts_with('{') && line.ends_with('}'), "{line}"));
            }
        }
    }
}
