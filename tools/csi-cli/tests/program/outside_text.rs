//! Text that a driver chose reaches no terminal unescaped, in any field; nor does text of the command line.

use std::process::{Command, Output};

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message as _;
use prost_reflect::{MessageDescriptor, ReflectMessage as _, Value};
use tonic::{Code, Status};

use crate::secrets::group;
use crate::support::*;

/// One character of each class, in sequences that do harm: set the clipboard, overwrite a line, forge a
/// line, clear the screen with a C1 character, reverse the text, and invisible characters.
const OUTSIDE: &str = "\x1b]52;c;cm0=\x07\r\x08\t\nFORGED\0\x7f\u{9b}2J\u{85}\u{ad}\u{200b}\u{200f}\u{2028}\u{2029}\
                       \u{202e}\u{2066}\u{feff}\u{e000}\u{e0041}\u{f0000}\u{ffff}'$(x)`x`\\";

/// The output; checks that it contains no raw character of [`OUTSIDE`].
#[track_caller]
fn shown(output: &Output, context: &str) -> String {
    let shown = text(output);
    let raw: Vec<_> = OUTSIDE
        .chars()
        .filter(|c| !c.is_ascii_graphic() && *c != ' ' && *c != '\n')
        .filter(|c| shown.contains(*c))
        .collect();
    assert!(raw.is_empty(), "{context}: {raw:?} in {shown:?}");
    assert!(!shown.lines().any(|line| line.starts_with("FORGED")), "{context}: {shown:?}");
    shown
}

fn texts(value: &serde_json::Value) -> Vec<&str> {
    match value {
        serde_json::Value::String(text) => vec![text],
        serde_json::Value::Array(values) => values.iter().flat_map(texts).collect(),
        serde_json::Value::Object(fields) => {
            fields.iter().flat_map(|(key, value)| [vec![key.as_str()], texts(value)].concat()).collect()
        }
        _ => vec![],
    }
}

/// The number of texts in a message, including the keys of its maps.
fn count(value: &Value) -> usize {
    let of_message = |message: &prost_reflect::DynamicMessage| -> usize {
        message.fields().map(|(_, value)| count(value)).sum()
    };
    match value {
        Value::String(_) => 1,
        Value::Message(inner) => of_message(inner),
        Value::List(values) => values.iter().map(count).sum(),
        Value::Map(entries) => entries.values().map(|value| 1 + count(value)).sum(),
        _ => 0,
    }
}

fn filled_answer(output: &MessageDescriptor, alternative: Alternative) -> prost_reflect::DynamicMessage {
    let mut message = filled_with(output, OUTSIDE, alternative);
    if message.has_field_by_name("next_token") {
        message.set_field_by_name("next_token", Value::String(OUTSIDE.to_owned()));
    }
    message
}

#[test]
fn no_field_of_any_answer_is_shown_raw() {
    for alternative in [Alternative::First, Alternative::Last] {
        let fake = Fake::new(move |rpc, _| async move {
            one(filled_answer(&method(rpc).output(), alternative).encode_to_vec())
        });
        for rpc in Rpc::ALL {
            let words = [group(*rpc), rpc.name()];
            let table = run(&fake.socket(), &words);
            let context = format!("{rpc} {alternative:?}");
            let shown_table = shown(&table, &context);
            assert_eq!(table.status.code(), Some(0), "{context}: {shown_table}");
            let json = run(&fake.socket(), &[&words[..], &["--output", "json"]].concat());
            let shown_json = shown(&json, &context);
            let value: serde_json::Value = serde_json::from_str(&shown_json).unwrap();
            // Mount flags of this kind are hidden completely.
            let hidden = shown_json.matches("***").count();
            let whole = texts(&value).iter().filter(|text| text.ends_with(OUTSIDE)).count();
            let answer = filled_answer(&method(*rpc).output(), alternative);
            assert_eq!(whole + hidden, count(&Value::Message(answer)), "{context}: {shown_json}");
        }
    }
}

#[test]
fn no_message_of_a_refusal_is_shown_raw() {
    for code in [Code::Internal, Code::NotFound, Code::FailedPrecondition, Code::Unimplemented] {
        let fake = Fake::new(move |_, _| async move { Err(Status::new(code, OUTSIDE)) });
        let rpcs = Rpc::ALL.iter().map(|rpc| vec![group(*rpc), rpc.name()]);
        let programs = ["capabilities", "lifecycle"].map(|name| vec![name]);
        for words in rpcs.chain(programs) {
            for format in ["table", "json"] {
                let output = run(&fake.socket(), &[&words[..], &["--output", format]].concat());
                let shown = shown(&output, &words.join(" "));
                assert_ne!(output.status.code(), Some(101), "{words:?}: {shown}");
            }
        }
    }
}

/// A driver with every capability whose texts are [`OUTSIDE`], or end with `end`.
fn hostile(rpc: Rpc, bytes: &[u8], end: &str) -> Result<Answers, Status> {
    let output = method(rpc).output();
    match rpc {
        Rpc::GetPluginCapabilities => {
            use v1::plugin_capability::{Service, Type};
            answer(&plugin_offers([1, 2].map(|kind| Type::Service(Service { r#type: kind }))))
        }
        Rpc::ControllerGetCapabilities => answer(&controller_offers(1..=16)),
        Rpc::NodeGetCapabilities => answer(&node_offers(1..=9)),
        Rpc::CreateVolume => {
            let volume = v1::Volume { volume_id: format!("v{end}"), ..Default::default() };
            answer(&v1::CreateVolumeResponse { volume: Some(volume) })
        }
        Rpc::ValidateVolumeCapabilities => answer(&confirmed(bytes, end)),
        Rpc::Probe => answer(&v1::ProbeResponse::default()),
        Rpc::NodeGetVolumeStats => {
            let one =
                |unit| v1::VolumeUsage { total: 1 << 30, available: 1 << 30, unit, ..Default::default() };
            answer(&v1::NodeGetVolumeStatsResponse { usage: vec![one(1), one(2)], ..Default::default() })
        }
        _ => {
            let mut message = filled_with(&output, end, Alternative::First);
            if message.descriptor().get_field_by_name("next_token").is_some() {
                message.set_field_by_name("next_token", Value::String(String::new()));
            }
            one(message.encode_to_vec())
        }
    }
}

#[test]
fn nothing_that_is_made_of_several_answers_shows_it_raw() {
    let fake = Fake::new(async |rpc, bytes| hostile(rpc, &bytes, OUTSIDE));
    for format in ["table", "json"] {
        let output = run(&fake.socket(), &["capabilities", "--output", format]);
        let shown = shown(&output, format);
        assert!(shown.contains("FORGED"), "{shown}");
    }
}

#[test]
fn a_life_shows_none_of_it_raw_wherever_it_ends() {
    let ends = Rpc::ALL.iter().copied().map(Some).chain([None]);
    for end in ends.filter(|rpc| rpc.is_none_or(|rpc| !matches!(group(rpc), "group" | "snapshot-metadata"))) {
        let fake = Fake::new(move |rpc, bytes| async move {
            if Some(rpc) == end { Err(Status::internal(OUTSIDE)) } else { hostile(rpc, &bytes, OUTSIDE) }
        });
        for format in ["table", "json"] {
            let output = fake.lifecycle(&["--no-mount-access", "--output", format]).output().unwrap();
            let shown = shown(&output, &format!("{end:?}"));
            if format == "json" {
                let lines = stdout(&output);
                let all: Vec<serde_json::Value> =
                    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
                let is_whole = all.iter().flat_map(texts).any(|text| text.contains(OUTSIDE));
                assert!(is_whole, "{end:?}: {shown}");
            }
        }
    }
}

/// How a shell reads the commands: the words of each, with `csi` and `rmdir` as functions that print
/// their words.
fn pasted(commands: &str) -> Vec<Vec<String>> {
    let script = format!(
        "PATH=/nowhere; csi() {{ printf '%s\\0' csi \"$@\"; printf '\\0\\n'; }}; rmdir() {{ csi \"$@\"; }}\n{commands}"
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(stderr(&output), "");
    let shown = stdout(&output);
    shown.split_terminator("\0\0\n").map(|line| line.split('\0').map(str::to_owned).collect()).collect()
}

#[test]
fn the_commands_that_take_it_back_can_be_pasted() {
    let without_nul: &'static str = OUTSIDE.replace('\0', "").leak();
    let fake = Fake::new(move |rpc, bytes| async move { hostile(rpc, &bytes, without_nul) });
    let output = fake.lifecycle(&["--no-mount-access", "--keep"]).output().unwrap();
    let shown = shown(&output, "kept");
    let (_, commands) =
        shown.split_once("these commands undo what is left:\n").unwrap_or_else(|| panic!("{shown}"));
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let words = pasted(commands);
    let due = format!("v{without_nul}");
    let with_id: Vec<_> = words.iter().filter(|words| words.contains(&due)).collect();
    assert!(with_id.len() >= 4, "{words:?}");
    assert_eq!(words.last().map(Vec::len), Some(2), "the last one is rmdir: {words:?}");
    // An id with a NUL cannot be an argument, so no command is printed.
    let fake = Fake::new(async |rpc, bytes| hostile(rpc, &bytes, "\0; touch x"));
    let shown = self::shown(&fake.lifecycle(&["--no-node", "--keep"]).output().unwrap(), "NUL");
    assert!(shown.contains(r"# no command can contain this --volume-id: 'v\u{0}; touch x'"), "{shown}");
    assert!(!shown.contains("csi controller delete-volume"), "{shown}");
}

/// The command line can be pasted from somewhere, and the errors about it name its values.
#[test]
fn nothing_of_the_command_line_is_repeated_raw() {
    // An argument has no NUL.
    let outside = &OUTSIDE.replace('\0', "");
    let manifests = ["manifests", "--image=registry.example.org/x:1", "--single"];
    let class = format!("a,={outside}");
    let twice = format!("a,{outside}=1,{outside}=2");
    let flag = format!("--{outside}");
    let long = format!("--fs-group-policy={}", "x".repeat(100_000));
    for words in [
        [&manifests[..], &["--fs-group-policy", outside]].concat(),
        [&manifests[..], &["--lifecycle", outside]].concat(),
        [&manifests[..], &["--controller", outside]].concat(),
        [&manifests[..], &["--node-rule", outside]].concat(),
        [&manifests[..], &["--storage-class", &class]].concat(),
        [&manifests[..], &["--storage-class", &twice]].concat(),
        [&manifests[..], &["--token", &format!("a={outside}")]].concat(),
        [&manifests[..], &["--replicas", outside]].concat(),
        [&manifests[..], &["--secret", outside]].concat(),
        [&manifests[..], &["--secret", &format!("{outside}=a/b")]].concat(),
        [&manifests[..], &[flag.as_str()]].concat(),
        vec![outside],
        vec!["controller", outside],
        vec!["controller", "create-volume", "--capability", outside],
        vec!["controller", "create-volume", "--size", outside],
        vec!["controller", "create-volume", "--secret", outside],
        vec!["controller", "create-volume", "--secrets-env", outside],
        vec!["controller", "create-volume", "--secrets-file", outside],
        vec!["lifecycle", "--grown", outside],
    ] {
        let output = run(std::path::Path::new("/no/such.sock"), &words);
        let text = shown(&output, &format!("{words:?}"));
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        if words.iter().any(|word| word.starts_with("--secret")) && !words.contains(&"--secrets-file") {
            assert!(!text.contains("FORGED"), "a value that can be a secret: {text}");
        }
    }
    let output = run(std::path::Path::new("/no/such.sock"), &[&manifests[..], &[long.as_str()]].concat());
    assert!(text(&output).contains("bytes left out"), "{}", text(&output).len());
}
