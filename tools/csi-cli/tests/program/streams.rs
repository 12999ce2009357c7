//! Answers that come as a stream.

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::Status;

use crate::support::*;

fn blocks(start: i64) -> Vec<u8> {
    let block = |byte_offset| v1::BlockMetadata { byte_offset, size_bytes: 4096 };
    v1::GetMetadataAllocatedResponse {
        block_metadata_type: v1::BlockMetadataType::FixedLength.into(),
        volume_capacity_bytes: 1 << 30,
        block_metadata: vec![block(start), block(start + 4096)],
    }
    .encode_to_vec()
}

/// A driver whose stream yields what the test sends, when the test sends it.
fn told() -> (Fake, mpsc::Sender<Result<Vec<u8>, Status>>) {
    let (sender, answers) = mpsc::channel(1);
    let answers = std::sync::Mutex::new(Some(answers));
    let fake = Fake::new(move |rpc, _| {
        assert_eq!(rpc, Rpc::GetMetadataAllocated);
        let answers = answers.lock().unwrap().take().unwrap();
        async { Ok(answers) }
    });
    (fake, sender)
}

const WORDS: [&str; 4] = ["snapshot-metadata", "allocated", "--snapshot-id", "snap-1"];

#[test]
fn each_message_is_printed_before_the_next_is_sent() {
    let (fake, driver) = told();
    let mut csi = Running::start(csi(&fake.socket()).args(WORDS));
    driver.blocking_send(Ok(blocks(0))).unwrap();
    assert_eq!(csi.line().unwrap(), "BYTE_OFFSET   SIZE_BYTES");
    assert_eq!(csi.line().unwrap(), "0 B           4 KiB (4096)");
    assert_eq!(csi.line().unwrap(), "4 KiB (4096)  4 KiB (4096)");
    assert_eq!(csi.line().unwrap(), "block_metadata_type    FIXED_LENGTH");
    assert_eq!(csi.line().unwrap(), "volume_capacity_bytes  1 GiB (1073741824)");
    // The heading is printed once, and so are the fields that do not change.
    driver.blocking_send(Ok(blocks(8192))).unwrap();
    assert_eq!(csi.line().unwrap(), "8 KiB (8192)  4 KiB (4096)");
    assert_eq!(csi.line().unwrap(), "12 KiB (12288)  4 KiB (4096)");
    drop(driver);
    let (status, rest, errors) = csi.finish();
    assert_eq!((status, rest.as_str(), errors.as_str()), (Some(0), "", ""));
}

#[test]
fn json_is_a_line_a_message_and_an_error_in_the_middle_is_one() {
    let (fake, driver) = told();
    let mut csi = Running::start(csi(&fake.socket()).args(WORDS).args(["--output", "json"]));
    driver.blocking_send(Ok(blocks(4096))).unwrap();
    let line: serde_json::Value = serde_json::from_str(&csi.line().unwrap()).unwrap();
    assert_eq!(line["blockMetadata"][0]["byteOffset"], "4096");
    driver.blocking_send(Err(Status::failed_precondition("the snapshot is gone"))).unwrap();
    let (status, rest, errors) = csi.finish();
    assert_eq!((status, rest.as_str()), (Some(73), ""));
    assert!(errors.contains("GetMetadataAllocated: FAILED_PRECONDITION: the snapshot is gone"), "{errors}");
}

#[test]
fn a_stream_that_falls_silent_is_given_up_in_time() {
    let (fake, driver) = told();
    let mut csi = Running::start(csi(&fake.socket()).args(WORDS).args(["--timeout", "2s"]));
    driver.blocking_send(Ok(blocks(0))).unwrap();
    csi.until("volume_capacity_bytes");
    let (status, _, errors) = csi.finish();
    assert_eq!(status, Some(68), "{errors}");
    assert!(errors.contains("no answer within 2s") && errors.contains("--timeout"), "{errors}");
    drop(driver);
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let (fake, driver) = told();
    let mut shell = std::process::Command::new("sh");
    // The stream continues until its reader stops reading.
    let script = r#""$0" "$@" | head -n 1; echo "status ${PIPESTATUS}""#.replace("${PIPESTATUS}", "over");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_csi")]).args(WORDS);
    shell.env("CSI_ENDPOINT", format!("unix://{}", fake.socket().display()));
    let feeder = std::thread::spawn(move || {
        let mut at = 0;
        while driver.blocking_send(Ok(blocks(at))).is_ok() {
            at += 8192;
        }
    });
    let output = shell.output().unwrap();
    assert_eq!(
        (text(&output).as_str(), output.status.code()),
        ("BYTE_OFFSET   SIZE_BYTES\nstatus over\n", Some(0))
    );
    drop(fake);
    feeder.join().unwrap();
}
