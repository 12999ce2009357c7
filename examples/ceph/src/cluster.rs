//! Commands of a Ceph cluster, by the programs `ceph` and `rbd`, and the driver's records in the cluster.
//!
//! The key is the program's standard input: it is in no argument, no file and no environment.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use csi_core::types::Secrets;
use csi_core::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// How long the program can wait for a connection, and for the answer to a command.
const CEPH_OPTIONS: [&str; 2] = ["--connect-timeout=10", "--format=json"];
const RBD_OPTIONS: [&str; 2] = ["--client_mount_timeout=10", "--rados_osd_op_timeout=30"];
const ANSWER: Duration = Duration::from_secs(60);
/// The same for a command that works on the content of a whole image. Without OSDs it ends by itself.
const CONTENT: Duration = Duration::from_secs(24 * 3600);

/// Error numbers of the cluster.
pub(crate) const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
pub(crate) const EEXIST: i32 = 17;
const ETIMEDOUT: i32 = 110;

/// A user of the cluster, as a Secret names it.
#[derive(Clone)]
pub(crate) struct User<'a> {
    pub(crate) id: &'a str,
    pub(crate) key: &'a str,
}

impl<'a> User<'a> {
    pub(crate) fn of(secrets: &'a Secrets) -> Result<Self> {
        secrets.check_keys(&["userID", "userKey"])?;
        let of = |key: &str| {
            let missing =
                || format!("the secrets have no {key}: the StorageClass must name a Secret that has it");
            secrets.get(key).ok_or_else(|| Error::Unauthenticated(missing().into()))
        };
        Ok(Self { id: of("userID")?, key: of("userKey")? })
    }
}

/// A cluster, and the user who sends its commands.
pub(crate) struct Cluster<'a> {
    pub(crate) monitors: &'a [SocketAddr],
    pub(crate) user: User<'a>,
}

/// The monitors in the form that programs and the kernel accept.
pub(crate) fn list(monitors: &[SocketAddr]) -> String {
    monitors.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

impl Cluster<'_> {
    /// The output of `ceph`; `None` if it ends with an error number that `accept` contains.
    pub(crate) async fn ceph(&self, words: &[&str], accept: &[i32]) -> Result<Option<String>> {
        self.run("ceph", &CEPH_OPTIONS, words, accept).await
    }

    /// The output of `rbd`, which does not wait for an OSD without a limit either.
    pub(crate) async fn rbd(&self, words: &[&str], accept: &[i32]) -> Result<Option<String>> {
        self.run("rbd", &RBD_OPTIONS, words, accept).await
    }

    async fn run(
        &self,
        name: &str,
        options: &[&str],
        words: &[&str],
        accept: &[i32],
    ) -> Result<Option<String>> {
        let mut program = Command::new(name);
        program.args(["--conf=/dev/null", "--keyfile=-", "--mon-host"]).arg(list(self.monitors));
        program.arg(format!("--id={}", self.user.id)).args(options).args(words);
        program.env_remove("CEPH_ARGS");
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let failed = |error| Error::Unhealthy(format!("{name}: {error}; install ceph-common").into());
        let mut child = program.spawn().map_err(failed)?;
        let work = async {
            if let Some(mut input) = child.stdin.take() {
                // A program that has ended already says why.
                let _ = input.write_all(self.user.key.as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let silent = || Error::OutcomeUnknown("the cluster does not answer; check its monitors".into());
        let limit = match words {
            ["flatten" | "rm", ..] => CONTENT,
            _ => ANSWER,
        };
        let output = tokio::time::timeout(limit, work).await.map_err(|_| silent())?;
        let output = output.map_err(failed)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let code = output.status.code();
        let said = text(&output.stderr);
        let said = said.lines().next_back().unwrap_or("no message");
        match code.unwrap_or_default() {
            _ if output.status.success() => Ok(Some(text(&output.stdout))),
            code if accept.contains(&code) => Ok(None),
            EACCES if said.contains("error connecting") => {
                Err(Error::Unauthenticated(format!("the cluster refuses the user or the key: {said}").into()))
            }
            EACCES => Err(Error::PermissionDenied(format!("check the user's capabilities: {said}").into())),
            EAGAIN => Err(Error::Pending(said.to_owned().into())),
            ETIMEDOUT => Err(silent()),
            _ if said.contains("timed out") => Err(silent()),
            _ => Err(Error::Internal(
                format!("{name} {}: {said}", words[..3.min(words.len())].join(" ")).into(),
            )),
        }
    }

    /// The driver's record of this kind and name. An id that the driver did not make has none.
    pub(crate) async fn record<T: DeserializeOwned>(&self, kind: &str, name: &str) -> Result<Option<T>> {
        if !is_name(name) {
            return Ok(None);
        }
        let text = self.ceph(&["config-key", "get", &at(kind, name)], &[ENOENT]).await?;
        text.map(|text| serde_json::from_str(&text).map_err(Error::internal)).transpose()
    }

    pub(crate) async fn put(&self, kind: &str, name: &str, record: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(record).map_err(Error::internal)?;
        self.ceph(&["config-key", "set", &at(kind, name), &text], &[]).await.map(drop)
    }

    pub(crate) async fn forget(&self, kind: &str, name: &str) -> Result<()> {
        self.ceph(&["config-key", "rm", &at(kind, name)], &[ENOENT]).await.map(drop)
    }
}

/// Whether commands of the cluster take this name as it is.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=64).contains(&name.len()) && name.chars().all(is_plain)
}

fn at(kind: &str, name: &str) -> String {
    format!("csi/{kind}/{name}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::pin::pin;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_copy_takes_its_time_and_an_answer_a_minute() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("rbd");
        fs::write(&program, "#!/bin/sh\nuntil [ -e \"$0.end\" ]; do sleep 0.05; done\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let cluster = Cluster { monitors: &[], user: User { id: "u", key: "k" } };
        // While a thread of the runtime works, a paused clock does not go on by itself.
        let (_end, held) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv());
        let run = |words| cluster.run(program.to_str().unwrap(), &[], words, &[]);
        let mut copy = pin!(run(&["flatten"]));
        assert!(tokio::time::timeout(Duration::ZERO, &mut copy).await.is_err());
        let mut answer = pin!(run(&["info"]));
        assert!(tokio::time::timeout(Duration::ZERO, &mut answer).await.is_err());
        tokio::time::advance(Duration::from_secs(120)).await;
        let answer = tokio::time::timeout(Duration::ZERO, &mut answer).await.expect("it is given up");
        assert!(matches!(answer, Err(Error::OutcomeUnknown(_))), "{answer:?}");
        assert!(tokio::time::timeout(Duration::ZERO, &mut copy).await.is_err(), "the copy goes on");
        fs::write(place.path().join("rbd.end"), "").unwrap();
        copy.await.unwrap();
    }
}
