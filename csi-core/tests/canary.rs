//! A secret is in every field that can contain one, through every RPC and every malformed request, with
//! everything logged. The secret appears nowhere.

#[path = "it/common/mod.rs"]
mod common;
#[path = "it/driver/mod.rs"]
mod driver;
#[path = "it/log/mod.rs"]
mod log;
#[path = "it/rpcs/mod.rs"]
mod rpcs;

use std::sync::Arc;

use common::Served;
use driver::whole_plugin;
use log::Log;
use rpcs::samples::CANARY;

// spec: secrets.not-leaked, mount-flags.not-leaked
#[tokio::test]
async fn a_secret_is_in_no_log_and_no_status() {
    let log = Log::of_process();
    let served = Served::start(whole_plugin(&Arc::default())).await;
    let mut statuses = 0;
    let mut logged = 0;
    for case in rpcs::walk::cases() {
        let answer = rpcs::call(&served.client, case.rpc, case.request).await;
        if let Err(status) = answer {
            assert!(!format!("{status:?}").contains(CANARY), "{}: {}: {status:?}", case.rpc, case.change);
            statuses += 1;
        }
        let text = log.take();
        if let Some(line) = text.lines().find(|line| line.contains(CANARY)) {
            panic!("{}: {}: {line}", case.rpc, case.change);
        }
        logged += text.lines().count();
        if case.change == "as it is" && case.rpc == csi_core::Rpc::NodeStageVolume {
            assert!(text.contains("password") && text.contains("***"), "requests are logged: {text}");
        }
    }
    println!("{logged} lines of log and {statuses} statuses without the secret");
    assert!(statuses > 400 && logged > 10_000);
}
