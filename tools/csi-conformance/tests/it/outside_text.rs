//! Text that a driver chose is in no report unescaped, whatever field it came in, and no number that it chose ends
//! the kit. No volume is put on a node, so the test needs no root.

use std::sync::LazyLock;

use csi_core::{Rpc, Service};
use prost_reflect::{DescriptorPool, DynamicMessage, MapKey, MethodDescriptor, Value};
use tonic::{Code, Status};

use crate::program::bare;
use crate::proxy;
use crate::proxy::{Answer, Behind, Fault, fault};
use crate::support::*;

/// One character of each class, in sequences that do harm.
const OUTSIDE: &str = "\x1b]52;c;cm0=\x07\r\x08\t\nFORGED\0\x7f\u{9b}2J\u{85}\u{ad}\u{200b}\u{200f}\u{2028}\u{2029}\
                       \u{202e}\u{2066}\u{feff}\u{e000}\u{e0041}\u{f0000}\u{ffff}<&\">#'";

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap());

fn method(rpc: Rpc) -> MethodDescriptor {
    let service = POOL.get_service_by_name(&format!("csi.v1.{}", rpc.service())).unwrap();
    service.methods().find(|method| method.name() == rpc.name()).unwrap()
}

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

/// Runs the kit, and checks each form of its report.
async fn reports_of(fault: Fault, name: &str) {
    let places = Places::new();
    let run = async {
        let mut command = bare(&places, "5");
        command.arg("--tap").arg(places.of("tap")).arg("--junit").arg(places.of("junit"));
        let output = command.output().await.unwrap();
        let shown = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        let of_file = |name| std::fs::read_to_string(places.of(name)).unwrap();
        for (format, text) in [("tap", of_file("tap")), ("junit", of_file("junit")), ("text", shown)] {
            has_none_raw(&text, &format!("{name} {format}"));
            // A run that does not begin has only the error.
            let is_empty = name == "unwell" && format != "text" && text.is_empty();
            assert!(text.contains("FORGED") || is_empty, "{name} {format}: {text}");
        }
        // What could not be undone is also named.
        let output = bare(&places, "1").arg("--clean-up").output().await.unwrap();
        has_none_raw(&String::from_utf8(output.stderr).unwrap(), &format!("{name}, clean-up"));
    };
    proxy::faulty(&places, fault, run).await;
}

#[tokio::test]
async fn nothing_of_a_driver_is_reported_raw() {
    reports_of(fault(hostile), "hostile").await;
}

#[tokio::test]
async fn nothing_of_a_refusal_is_reported_raw() {
    reports_of(fault(refusing), "refusing").await;
}

#[tokio::test]
async fn nothing_of_a_driver_that_is_not_ready_is_reported_raw() {
    reports_of(fault(unwell), "unwell").await;
}

fn replace_numbers(value: &mut Value, number: i64) {
    match value {
        Value::I64(found) => *found = number,
        Value::Message(inner) => {
            inner.fields_mut().for_each(|(_, value)| replace_numbers(value, number));
        }
        Value::List(values) => values.iter_mut().for_each(|value| replace_numbers(value, number)),
        _ => {}
    }
}

async fn of_size(number: i64, rpc: Rpc, bytes: Vec<u8>, behind: Behind) -> Answer {
    let answer = behind.call(rpc, bytes).await?;
    if rpc.service() == Service::SnapshotMetadata {
        return Ok(answer);
    }
    let mut message = Value::Message(DynamicMessage::decode(method(rpc).output(), &*answer).unwrap());
    replace_numbers(&mut message, number);
    Ok(prost::Message::encode_to_vec(message.as_message().unwrap()))
}

#[tokio::test]
async fn no_size_that_a_driver_reports_ends_the_kit() {
    tokio::join!(run_with_sizes(i64::MAX), run_with_sizes(i64::MAX / 2 + 1), run_with_sizes(i64::MIN));
}

async fn run_with_sizes(number: i64) {
    let places = Places::new();
    let fault = fault(move |rpc, bytes, behind| of_size(number, rpc, bytes, behind));
    let run = async {
        let output = bare(&places, "5").args(["--format", "tap"]).output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.contains("panicked") && output.status.code() != Some(101), "{number}: {errors}");
        assert!(text.contains("create-volume.same-name-other-size"), "{number}: {text} {errors}");
    };
    proxy::faulty(&places, fault, run).await;
}
