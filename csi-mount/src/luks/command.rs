//! One run of `cryptsetup`.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::tool::{Bounds, OpenFile, Output, Tool, ToolInput};
use crate::luks::LuksKey;

pub(super) const CRYPTSETUP: Tool = Tool { program: "cryptsetup", package: "cryptsetup-bin" };

/// Without it `cryptsetup` waits for udev, which never answers from inside a container.
const NO_UDEV: (&str, &str) = ("DM_DISABLE_UDEV", "1");

/// Runs `cryptsetup` with these arguments and this key on this device, which the arguments name by the open
/// file's path.
pub(super) fn run(
    operation: &'static str,
    on: OpenFile<'_>,
    arguments: &[String],
    key: Option<&LuksKey>,
    bounds: Bounds,
) -> Result<Output> {
    let mut line = vec!["--batch-mode".to_owned()];
    if let Some(key) = key {
        // With the key's length, it does not wait for the end of the pipe, which another thread's child can
        // hold open.
        line.extend(["--key-file=-".to_owned(), format!("--keyfile-size={}", key.bytes().len())]);
    }
    line.extend_from_slice(arguments);
    let given = ToolInput {
        input: key.map(LuksKey::bytes),
        environment: &[NO_UDEV],
        file: Some(on),
        ..ToolInput::default()
    };
    let output = CRYPTSETUP.run_with_input(&line, given, bounds, |_| Ok(()));
    let output = output.map_err(|error| more_memory(error.at(on.name)))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(failure(operation, on.name, &output, bounds))
}

/// Turns the exit status into an error (`cryptsetup(8)`, "RETURN CODES").
fn failure(operation: &'static str, device: &Path, output: &Output, bounds: Bounds) -> Error {
    let failed = CRYPTSETUP.failed(device, output);
    match output.status.code() {
        Some(2) => Error::new(ErrorKind::WrongKey, operation, "the key does not open any of its key slots")
            .at(device)
            .hint("use the key that it was encrypted with; the device was not changed"),
        Some(3) => more_memory(failed.with_kind(ErrorKind::OutOfMemory)),
        Some(5) => failed.with_kind(ErrorKind::Busy),
        None if output.status.signal() == Some(nix::libc::SIGKILL) => {
            let given = bounds.memory.unwrap_or_default();
            let reason = "it was killed, possibly because the kernel had no free memory";
            more_memory(CRYPTSETUP.out_of_memory(given).add_reason(reason).at(device))
        }
        _ => failed,
    }
}

fn more_memory(error: Error) -> Error {
    match error.kind() {
        ErrorKind::OutOfMemory => {
            error.hint("give it more memory (Luks::memory), or give the container more")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;
    use crate::luks::LUKS_TIME_LIMIT;

    #[test]
    fn exit_statuses_have_different_error_kinds() {
        for (status, expected) in [
            (1 << 8, ErrorKind::ToolFailed),
            (2 << 8, ErrorKind::WrongKey),
            (3 << 8, ErrorKind::OutOfMemory),
            (4 << 8, ErrorKind::ToolFailed),
            (5 << 8, ErrorKind::Busy),
            (9, ErrorKind::OutOfMemory),
            (15, ErrorKind::ToolFailed),
        ] {
            let output = Output {
                status: ExitStatus::from_raw(status),
                text: "says so".to_owned(),
                stdout: Vec::new(),
            };
            let bounds = Bounds { time: LUKS_TIME_LIMIT, memory: Some(1 << 20) };
            let error = failure("open", Path::new("/dev/x"), &output, bounds);
            assert_eq!(error.kind(), expected, "{status}: {error}");
        }
    }
}
