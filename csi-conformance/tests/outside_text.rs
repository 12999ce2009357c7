//! Text that a driver chose is in no report unescaped, whatever field it came in. No volume is put on a
//! node, so the test needs no root.
#![cfg(target_os = "linux")]

#[path = "support/memory/mod.rs"]
mod memory;
#[allow(dead_code, reason = "not every test needs each")]
#[path = "support/proxy.rs"]
mod proxy;
mod support;

use std::sync::{Arc, LazyLock};

use csi_core::{Rpc, Service};
use prost_reflect::{DescriptorPool, DynamicMessage, MapKey, MethodDescriptor, Value};
use proxy::{Answer, Behind, Fault};
use support::*;
use tokio::process::Command;
use tonic::{Code, Status};

/// One character of each class, in sequences that do harm.
const OUTSIDE: &str = "\x1b]52;c;cm0=\x07\r\x08\t\nFORGED\0\x7f\u{9b}2J\u{85}\u{ad}\u{200b}\u{200f}\u{2028}\u{2029}\
                       \u{202e}\u{2066}\u{feff}\u{e000}\u{e0041}\u{f0000}\u{ffff}<&\">#'";

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap());

fn method(rpc: Rpc) -> MethodDescriptor {
    let service = POOL.get_service_by_name(&format!("csi.v1.{}", rpc.service())).unwrap();
    service.methods().find(|method| method.name() == rpc.name()).unwrap()
}

/// Changes every text in the value, and every key of a map.
fn change(value: &mut Value, with: fn(&str) -> String) {
    match value {
        Value::String(text) => *text = with(text),
        Value::Message(inner) => inner.fields_mut().for_each(|(_, value)| change(value, with)),
        Value::List(values) => values.iter_mut().for_each(|value| change(value, with)),
        Value::Map(entries) => {
            for (key, mut value) in std::mem::take(entries) {
                change(&mut value, with);
                let key = match key {
                    MapKey::String(key) => MapKey::String(with(&key)),
                    other => other,
                };
                entries.insert(key, value);
            }
        }
        _ => {}
    }
}

fn changed(kind: prost_reflect::MessageDescriptor, bytes: &[u8], with: fn(&str) -> String) -> Vec<u8> {
    let mut message = Value::Message(DynamicMessage::decode(kind, bytes).unwrap());
    change(&mut message, with);
    prost::Message::encode_to_vec(message.as_message().unwrap())
}

/// All texts of its answers end with `OUTSIDE`. The driver behind it gets requests without that ending.
async fn hostile(rpc: Rpc, bytes: Vec<u8>, behind: Behind) -> Answer {
    let bytes = changed(method(rpc).input(), &bytes, |text| text.replace(OUTSIDE, ""));
    let answer = behind.call(rpc, bytes).await;
    let answer =
        answer.map_err(|status| Status::new(status.code(), format!("{}{OUTSIDE}", status.message())))?;
    if rpc.service() == Service::SnapshotMetadata {
        return Ok(answer);
    }
    Ok(changed(method(rpc).output(), &answer, |text| match text {
        "" => String::new(),
        text => format!("{text}{OUTSIDE}"),
    }))
}

/// Refuses every RPC except Probe and those that report capabilities or info.
async fn refusing(rpc: Rpc, bytes: Vec<u8>, behind: Behind) -> Answer {
    match rpc.name() {
        name if name.contains("Capabilities") || name.contains("Info") || name == "Probe" => {
            hostile(rpc, bytes, behind).await
        }
        _ => Err(Status::internal(OUTSIDE)),
    }
}

/// Reports that it is not ready.
async fn unwell(_: Rpc, _: Vec<u8>, _: Behind) -> Answer {
    Err(Status::new(Code::FailedPrecondition, OUTSIDE))
}

#[track_caller]
fn has_none_raw(text: &str, context: &str) {
    let raw: Vec<_> = OUTSIDE
        .chars()
        .filter(|c| !c.is_ascii_graphic() && *c != '\n')
        .filter(|c| text.contains(*c))
        .collect();
    assert!(raw.is_empty(), "{context}: {raw:?} in {text:?}");
    assert!(!text.lines().any(|line| line.trim().starts_with("FORGED")), "{context}: {text}");
}

async fn reports_of(fault: Fault, name: &str) {
    let places = Places::new();
    let (endpoint, behind) = (places.endpoint("csi.sock"), places.endpoint("behind.sock"));
    let run = async {
        for format in ["text", "tap", "junit"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_csi-conformance"));
            command.args(["--endpoint", &endpoint.to_string(), "--size", "1", "--deadline", "5"]);
            command.args(["--format", format]).arg("--journal").arg(places.of("journal"));
            let output = command.kill_on_drop(true).output().await.unwrap();
            let shown =
                String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
            has_none_raw(&shown, &format!("{name} {format}"));
            assert!(shown.contains("FORGED"), "{name} {format}: {shown}");
            // What could not be undone is also named.
            let mut clean_up = Command::new(env!("CARGO_BIN_EXE_csi-conformance"));
            clean_up.args(["--endpoint", &endpoint.to_string(), "--deadline", "1", "--clean-up"]);
            let output = clean_up.arg("--journal").arg(places.of("journal")).output().await.unwrap();
            has_none_raw(&String::from_utf8(output.stderr).unwrap(), &format!("{name}, clean-up"));
            let _ = std::fs::remove_file(places.of("journal"));
        }
    };
    let plugin = memory::Memory::directories(places.of("volumes")).plugin();
    with_plugin(plugin, &behind, proxy::with_fault(fault, &endpoint, &behind, run)).await;
}

#[tokio::test]
async fn nothing_of_a_driver_is_reported_raw() {
    reports_of(Arc::new(|rpc, bytes, behind| Box::pin(hostile(rpc, bytes, behind))), "hostile").await;
}

#[tokio::test]
async fn nothing_of_a_refusal_is_reported_raw() {
    reports_of(Arc::new(|rpc, bytes, behind| Box::pin(refusing(rpc, bytes, behind))), "refusing").await;
}

#[tokio::test]
async fn nothing_of_a_driver_that_is_not_ready_is_reported_raw() {
    reports_of(Arc::new(|rpc, bytes, behind| Box::pin(unwell(rpc, bytes, behind))), "unwell").await;
}
