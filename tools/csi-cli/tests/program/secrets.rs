//! Secrets reach the driver and nothing else.

use std::fs;

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message as _;
use prost_reflect::Value;
use tokio::sync::Notify;
use tonic::Status;

use crate::support::*;

const CANARY: &str = "canary-7f3a";

/// A driver that returns the text that it was sent wherever it can.
fn telltale() -> Fake {
    Fake::new(async |rpc, bytes| {
        let request = format!("{:?}", String::from_utf8_lossy(&bytes));
        if rpc == Rpc::CreateVolume {
            let volume = v1::Volume {
                volume_id: format!("with {CANARY}"),
                volume_context: [(CANARY.to_owned(), format!("login:{CANARY}"))].into(),
                ..Default::default()
            };
            return answer(&v1::CreateVolumeResponse { volume: Some(volume) });
        }
        Err(Status::internal(format!("can't log in with {request}")))
    })
}

/// The RPCs that take secrets, with their subcommands.
fn with_secrets() -> Vec<(Rpc, Vec<String>)> {
    let takes = |rpc: &&Rpc| method(**rpc).input().get_field_by_name("secrets").is_some();
    let all: Vec<_> = Rpc::ALL.iter().filter(takes).copied().collect();
    all.into_iter().map(|rpc| (rpc, vec![group(rpc).to_owned(), rpc.name().to_owned()])).collect()
}

pub(crate) fn group(rpc: Rpc) -> &'static str {
    match rpc.service() {
        csi_core::Service::Identity => "identity",
        csi_core::Service::Controller => "controller",
        csi_core::Service::GroupController => "group",
        csi_core::Service::SnapshotMetadata => "snapshot-metadata",
        _ => "node",
    }
}

fn secrets(rpc: Rpc, bytes: &[u8]) -> Vec<(String, String)> {
    let request = dynamic(&method(rpc).input(), bytes);
    let field = request.get_field_by_name("secrets").unwrap();
    let Value::Map(entries) = field.as_ref() else { panic!("{rpc}") };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    entries.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), text(value))).collect()
}

#[test]
fn every_rpc_that_takes_them_gets_them_and_shows_them_nowhere() {
    let fake = telltale();
    let file = fake.folder().join("secrets");
    fs::write(&file, format!("# for all\nfrom-file = {CANARY}\n[DeleteVolume]\nfrom-file=other-{CANARY}\n"))
        .unwrap();
    let file = file.to_str().unwrap();
    let rpcs = with_secrets();
    assert!(rpcs.len() >= 20, "{}", rpcs.len());
    for (rpc, words) in rpcs {
        for format in ["table", "json"] {
            let given = ["--secrets-file", file, "--secrets-env", "from-env=LOGIN", "--output", format];
            let mut command = csi(&fake.socket());
            let output = command.args(&words).args(given).env("LOGIN", CANARY).output().unwrap();
            let shown = text(&output);
            assert!(!shown.contains("canary") && shown.contains("***"), "{rpc}: {shown}");
            let mut sent = secrets(rpc, &fake.asked()[0].1);
            sent.sort();
            let own = if rpc == Rpc::DeleteVolume { "other-" } else { "" };
            let due = [("from-env", CANARY.to_owned()), ("from-file", format!("{own}{CANARY}"))];
            assert_eq!(sent, due.map(|(key, value)| (key.to_owned(), value)), "{rpc}");
        }
    }
}

#[test]
fn those_that_come_back_in_another_case_or_in_base64_are_not_shown() {
    // Forms of the canary, and of user:canary.
    for form in ["CANARY-7F3A", "Y2FuYXJ5LTdmM2E=", "dXNlcjpjYW5hcnktN2YzYQ==", "63616e6172792d37663361"] {
        let fake = Fake::new(move |_, _| async move { Err(Status::internal(form)) });
        let words = ["controller", "delete-volume", "--secrets-env", "key=LOGIN"];
        let output = csi(&fake.socket()).args(words).env("LOGIN", CANARY).output().unwrap();
        let shown = text(&output);
        assert!(shown.contains("***") && !shown.contains(&form[..8]), "{form}: {shown}");
    }
}

#[test]
fn they_are_in_no_argument_of_the_process() {
    let release = std::sync::Arc::new(Notify::new());
    let wait = release.clone();
    let fake = Fake::new(move |_, _| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            answer(&v1::DeleteVolumeResponse {})
        }
    });
    let mut command = csi(&fake.socket());
    command.args(["controller", "delete-volume", "--secrets-env", "key=LOGIN"]).env("LOGIN", CANARY);
    let running = Running::start(&mut command);
    let asked = until(|| fake.asked().pop());
    assert_eq!(secrets(asked.0, &asked.1), [("key".to_owned(), CANARY.to_owned())]);
    let arguments = running.arguments();
    assert!(arguments.contains("delete-volume") && !arguments.contains("canary"), "{arguments}");
    release.notify_one();
    assert_eq!(running.finish().0, Some(0));
}

#[test]
fn a_whole_request_hides_what_it_holds() {
    let fake = telltale();
    let file = fake.folder().join("request");
    let tokens = csi_proto::internal::TOKENS_KEY;
    let request = format!(
        r#"{{"volumeId": "v", "secrets": {{"key": "{CANARY}-1"}}, "volumeContext": {{"{tokens}": "{CANARY}-2"}},
            "volumeCapability": {{"mount": {{"mountFlags": ["noatime", "password={CANARY}-3"]}}}}}}"#
    );
    fs::write(&file, request).unwrap();
    for more in [&[][..], &["--dry-run"]] {
        let mut command = csi(&fake.socket());
        let output =
            command.args(["node", "stage-volume", "--request", file.to_str().unwrap()]).args(more).output();
        let shown = text(&output.unwrap());
        assert!(!shown.contains("canary") && shown.contains("***") && shown.contains("noatime"), "{shown}");
    }
    let asked = v1::NodeStageVolumeRequest::decode(&*fake.asked()[0].1).unwrap();
    assert_eq!(asked.secrets["key"], format!("{CANARY}-1"));
    assert_eq!(asked.volume_context[tokens], format!("{CANARY}-2"));
}

#[test]
fn those_on_the_command_line_are_refused_and_not_repeated() {
    let fake = telltale();
    let tokens = format!("{}={CANARY}", csi_proto::internal::TOKENS_KEY);
    let flags = format!("rwo,mount,cifs,password={CANARY}");
    let key = format!("key={CANARY}");
    for words in [
        &["--secrets", &key][..],
        &["--secret", &key],
        &["--secrets-env", &key],
        &["--secrets-env", CANARY],
        &["--volume-context", &tokens],
        &["--capability", &flags],
    ] {
        let output = csi(&fake.socket()).args(["node", "publish-volume"]).args(words).output().unwrap();
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {shown}");
        assert!(shown.contains("--secrets-env") || shown.contains("--request"), "{words:?}: {shown}");
        assert!(!shown.contains(CANARY), "{words:?}: {shown}");
    }
    assert!(fake.asked().is_empty());
}

#[test]
fn a_file_that_is_wrong_is_named_and_not_quoted() {
    let fake = telltale();
    let file = fake.folder().join("secrets");
    for text in [CANARY.to_owned(), format!("{{\"key\": [\"{CANARY}\"]}}"), format!("[{CANARY}]\na=b\n")] {
        fs::write(&file, text).unwrap();
        let words = ["controller", "delete-volume", "--secrets-file", file.to_str().unwrap()];
        let shown = errors(&run(&fake.socket(), &words), 2);
        assert!(shown.contains("secrets: line 1") && !shown.contains("canary"), "{shown}");
    }
    let output = run(&fake.socket(), &["controller", "delete-volume", "--secrets-file", "/absent"]);
    assert!(stderr(&output).contains("/absent: No such file"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
}
