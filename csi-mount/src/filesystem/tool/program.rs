//! Programs that a driver runs: its storage's own command-line tools.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use super::{Bounds, INPUT, MAX_OUTPUT_BYTES, Output, ToolInput, failed, find, run};
use crate::error::{Error, ErrorKind, Result};

/// How long a [`Program`] can run, unless it has another limit.
pub(crate) const PROGRAM_TIME_LIMIT: Duration = Duration::from_secs(60);

/// A command-line tool of a storage system, run without a shell, within a time limit.
///
/// The program gets none of this process's environment but a `PATH` of the system's directories, and the C
/// locale. It runs in `/`. At the time limit, or when this process ends, it is killed with every process that
/// it started; only processes that it moved to another process group stay.
///
/// Secrets go through its standard input or its environment. They appear in no error, log line or `Debug`
/// output, and a command line that has one is refused: every user of the node could read it.
///
/// ```
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{ErrorKind, Program};
/// use std::time::Duration;
///
/// let show = Program::new("sh").args(["-c", "echo 7; cat >&2; exit $STATUS"]).time_limit(Duration::from_secs(30));
/// assert_eq!(show.clone().env("STATUS", "0").run()?.stdout, b"7\n");
///
/// let error = show.env("STATUS", "2").secret_input("pass-phrase").run().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::ToolFailed);
/// assert_eq!(error.to_string(), "run a program: sh ended with exit status: 2: ***");
/// # Ok(())
/// # }
/// ```
///
/// Each call blocks its thread. A driver on csi-core runs it by `blocking(move || Ok(program.run()?)).await`,
/// which also turns its error into a condition.
#[derive(Clone)]
#[must_use]
pub struct Program {
    name: String,
    package: Option<String>,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    input: Option<Vec<u8>>,
    secrets: Vec<Vec<u8>>,
    time_limit: Duration,
    stdout_limit: usize,
}

/// What a [`Program`] printed, and how it ended.
#[non_exhaustive]
pub struct ProgramOutput {
    /// The exit status.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// The end of its standard error, at most 8 KiB. Secrets are replaced by `***`.
    pub stderr: String,
    program: String,
}

impl Program {
    /// The program with this name, on `PATH` or in one of the system's directories, or at this absolute path.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            name: program.into(),
            package: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            input: None,
            secrets: Vec::new(),
            time_limit: PROGRAM_TIME_LIMIT,
            stdout_limit: 1 << 20,
        }
    }

    /// The package to install, for the error when the program is missing.
    pub fn package(mut self, package: impl Into<String>) -> Self {
        self.package = Some(package.into());
        self
    }

    /// Adds arguments. Every user of the node can read them.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets a variable of its environment to a secret. Processes of the same user can read it.
    pub fn secret_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let value = value.into();
        self.secrets.push(value.clone().into_bytes());
        self.env(name, value)
    }

    /// Its standard input, which is a secret of at most 4096 bytes. Without it, the input is empty.
    pub fn secret_input(mut self, input: impl Into<Vec<u8>>) -> Self {
        let input = input.into();
        self.secrets.push(input.clone());
        self.input = Some(input);
        self
    }

    /// How long it can run: 60 seconds unless set.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// How many bytes it can print on its standard output: 1 MiB unless set.
    pub fn stdout_limit(mut self, bytes: usize) -> Self {
        self.stdout_limit = bytes;
        self
    }

    /// Runs it, and requires that it succeeds.
    ///
    /// # Errors
    /// - [`ErrorKind::ToolFailed`]: it ended with another exit status than 0; the error has the last lines of
    ///   its standard error.
    /// - Those of [`output`](Self::output).
    pub fn run(&self) -> Result<ProgramOutput> {
        let output = self.output()?;
        if output.status.success() { Ok(output) } else { Err(output.error()) }
    }

    /// Runs it, whatever its exit status. A driver that knows what each status means turns the others into an
    /// error by [`ProgramOutput::error`].
    ///
    /// # Errors
    /// - [`ErrorKind::MissingTool`]: there is no such program; the error names the package.
    /// - [`ErrorKind::Unresponsive`]: it took longer than the time limit and was killed.
    /// - [`ErrorKind::OutOfRange`]: it printed more than the limit and was killed.
    /// - [`ErrorKind::InvalidInput`]: a secret is in the arguments, or the input is too large.
    pub fn output(&self) -> Result<ProgramOutput> {
        self.check()?;
        let environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let given = ToolInput {
            input: self.input.as_deref(),
            environment: &environment,
            stdout_limit: Some(self.stdout_limit),
            ..ToolInput::default()
        };
        let path = find(&self.name, self.package.as_deref())?;
        let output =
            run(&self.name, &path, &self.arguments, given, Bounds::from(self.time_limit), |_| Ok(()))?;
        let stderr = self.redacted(&output.text);
        Ok(ProgramOutput { status: output.status, stdout: output.stdout, stderr, program: self.name.clone() })
    }

    fn check(&self) -> Result<()> {
        let refuse = |reason: &str| {
            Err(Error::new(ErrorKind::InvalidInput, "run a program", format!("{}: {reason}", self.name)))
        };
        let has_secret = |argument: &OsStr| {
            let text = argument.to_string_lossy();
            self.secret_lines().any(|secret| text.contains(&*secret))
        };
        if self.arguments.iter().any(|argument| has_secret(argument)) {
            return refuse("an argument has a secret: pass it by the input or the environment only");
        }
        if self.input.as_ref().is_some_and(|input| input.len() > INPUT) {
            return refuse("its input has more than 4096 bytes");
        }
        Ok(())
    }

    /// The secrets line by line, since a program can print one line of a key file.
    fn secret_lines(&self) -> impl Iterator<Item = String> {
        let lines = self.secrets.iter().map(|secret| String::from_utf8_lossy(secret).into_owned());
        let lines: Vec<String> =
            lines.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.into_iter().filter(|line| !line.trim().is_empty())
    }

    fn redacted(&self, text: &str) -> String {
        // The first line that is kept can be cut off within a secret.
        let is_cut = text.len() >= MAX_OUTPUT_BYTES && !self.secrets.is_empty();
        let text = if is_cut { text.split_once('\n').map_or("", |(_, rest)| rest) } else { text };
        let mut secrets: Vec<String> = self.secret_lines().collect();
        // A secret can be part of a longer one.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

impl ProgramOutput {
    /// The error for an exit status that the driver did not expect: the status, and the last lines of the
    /// standard error.
    pub fn error(&self) -> Error {
        let status = self.status;
        let text = self.stderr.clone();
        failed("run a program", &self.program, &Output { status, text, stdout: Vec::new() })
    }
}

/// Without the standard output, which can have secrets.
impl fmt::Debug for ProgramOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramOutput")
            .field("program", &self.program)
            .field("status", &self.status)
            .field("stderr", &self.stderr)
            .finish_non_exhaustive()
    }
}

/// Without the values of the environment and the input.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.environment.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Program")
            .field("name", &Path::new(&self.name))
            .field("arguments", &self.arguments)
            .field("environment", &names)
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Program {
        Program::new("sh").args(["-c", script])
    }

    #[test]
    fn outputs_are_kept_apart_and_the_status_is_the_drivers_choice() {
        let output = shell("echo out; echo err >&2; exit 3").output().unwrap();
        assert_eq!(
            (&*output.stdout, &*output.stderr, output.status.code()),
            (&b"out\n"[..], "err\n", Some(3))
        );
        let error = shell("echo out; echo err >&2; exit 3").run().unwrap_err();
        assert_eq!(error.to_string(), "run a program: sh ended with exit status: 3: err");
        let all = shell("head -c 300000 /dev/zero").time_limit(Duration::MAX).run().unwrap();
        assert_eq!(all.stdout.len(), 300_000);
        let error = shell("exec cat /dev/zero").stdout_limit(1000).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
        let missing = Program::new("no-such-tool").package("no-such-tools").run().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::MissingTool);
        assert!(missing.to_string().ends_with("; install the package no-such-tools"), "{missing}");
        assert!(Program::new("no-such-tool").run().is_err());
    }

    #[test]
    fn a_late_program_is_killed_with_its_children() {
        let start = Instant::now();
        let error = shell("sleep 300 & sleep 300").time_limit(Duration::from_millis(200)).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn secrets_reach_the_program_and_nothing_else() {
        let program = shell("read a; read b; echo $a $b $KEY; echo $b and $KEY >&2; exit 1")
            .secret_input("line-one\nline-two\n")
            .secret_env("KEY", "token");
        let output = program.output().unwrap();
        assert_eq!(output.stdout, b"line-one line-two token\n");
        assert_eq!(output.stderr, "*** and ***\n");
        let shown = format!("{program:?} {output:?} {}", program.run().unwrap_err());
        for secret in ["line-one", "line-two", "token"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let error = program.clone().args(["--key=token"]).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(!error.to_string().contains("token"), "{error}");
        let flood = shell("i=0; while [ $i -lt 3000 ]; do printf token >&2; i=$((i+1)); done; exit 1");
        let error = flood.secret_env("KEY", "token").run().unwrap_err().to_string();
        assert!(!error.contains("tok") && !error.contains("ken"), "{error}");
    }
}
