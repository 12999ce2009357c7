//! Every RPC with a valid request, then with each of its fields missing, empty, one byte too large, out of
//! range, or of a wrong kind: checks the code, and the field that the message names.

use std::sync::Arc;

use csi_core::Rpc;

use crate::common::Served;
use crate::driver::whole_plugin;
use crate::rpcs::{self, walk::cases};

// spec: services.identity-everywhere, size-limits.string, size-limits.map, size-limits.mount-flags
// spec: size-limits.node-id, size-limits.paths, fields.required, fields.required-list, fields.one-of
// spec: fields.not-negative, fields.names, fields.invalid-is-invalid-argument, endpoint.all-services
// spec: probe.served, create-volume.answers-an-id, validate-volume-capabilities.served
// spec: group-controller.capabilities, node.paths-absolute, node-publish-volume.needs-staging-path
// spec: node-get-capabilities.served, node-get-info.served, snapshot-metadata.both-served
// spec: snapshot-metadata.offset-out-of-range
#[tokio::test]
async fn each_field_of_each_rpc_is_checked_and_named() {
    let served = Served::start(whole_plugin(&Arc::default())).await;
    let cases = cases();
    for rpc in Rpc::ALL {
        assert!(cases.iter().any(|case| case.rpc == *rpc), "no request for {rpc}");
    }
    let mut wrong = Vec::new();
    for case in &cases {
        let answer = rpcs::call(&served.client, case.rpc, case.request.clone()).await;
        let due = &case.due;
        let what = format!("{}: {}", case.rpc, case.change);
        match (&answer, due) {
            (Ok(_), Ok(())) => {}
            (Err(status), Err((code, field))) if case.change.ends_with(" of a wrong kind") => {
                // Refused by the codec, before the request reaches the call path.
                if status.code() != *code || !status.message().contains(&format!("Request.{field}")) {
                    wrong.push(format!("{what}: {code:?} {field} is due, not {status}"));
                }
            }
            (Err(status), Err((code, field))) => {
                let named = status.message().split(':').next().unwrap();
                if status.code() != *code || named != field || !status.details().is_empty() {
                    wrong.push(format!("{what}: {code:?} {field} is due, not {status}"));
                }
            }
            _ => wrong.push(format!("{what}: {due:?} is due, not {answer:?}")),
        }
    }
    let refused = cases.iter().filter(|case| case.due.is_err()).count();
    println!("{} requests of {} RPCs, {refused} of them to be refused", cases.len(), Rpc::ALL.len());
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
