//! A daemon as words of a message: what its mounter has to know.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::super::FuseDaemon;
use super::super::daemon::Argument;
use super::message::{Message, invalid};

impl Message {
    pub(super) fn daemon(mut self, daemon: &FuseDaemon) -> Self {
        self = self.word(daemon.program.as_bytes()).number(daemon.arguments.len() as u64);
        for argument in &daemon.arguments {
            self = match argument {
                Argument::Plain(text) => self.word("text").word(text.as_bytes()),
                Argument::Device => self.word("device"),
                Argument::Credential { before, name, content } => {
                    self.word("credential").word(before.as_bytes()).word(name).word(content)
                }
            };
        }
        self = self.number(daemon.environment.len() as u64);
        for (key, value) in &daemon.environment {
            self = self.word(key.as_bytes()).word(value.as_bytes());
        }
        self = self.optional(daemon.secret.as_deref());
        self = self.optional(daemon.identity.as_ref().map(|identity| identity.as_bytes()));
        self = self.optional(daemon.memory_limit.map(|bytes| bytes.to_string()));
        self.number(daemon.is_continued.into())
    }

    pub(super) fn next_daemon(&mut self) -> io::Result<FuseDaemon> {
        let mut daemon = FuseDaemon::new(self.next_os()?);
        for _ in 0..self.next_number()? {
            daemon.arguments.push(match self.next_text()?.as_str() {
                "text" => Argument::Plain(self.next_os()?),
                "device" => Argument::Device,
                "credential" => Argument::Credential {
                    before: self.next_os()?,
                    name: self.next_text()?,
                    content: self.next()?,
                },
                _ => return Err(invalid("an argument has an unknown form")),
            });
        }
        for _ in 0..self.next_number()? {
            daemon.environment.push((self.next_os()?, self.next_os()?));
        }
        daemon.secret = self.next_optional()?;
        daemon.identity = self.next_optional()?.map(OsString::from_vec);
        let limit = self.next_optional()?;
        let number = |bytes: Vec<u8>| String::from_utf8(bytes).ok()?.parse().ok();
        daemon.memory_limit = limit.and_then(number);
        daemon.is_continued = self.next_number()? == 1;
        Ok(daemon)
    }

    fn next_os(&mut self) -> io::Result<OsString> {
        Ok(OsString::from_vec(self.next()?))
    }

    fn optional(self, word: Option<impl AsRef<[u8]>>) -> Self {
        match word {
            Some(word) => self.number(1).word(word),
            None => self.number(0),
        }
    }

    fn next_optional(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.next_number()? == 1 { self.next().map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounting::options::MountOptions;

    #[test]
    fn a_daemon_arrives_as_it_was_sent() {
        let daemon = FuseDaemon::new("rclone")
            .arg("mount")
            .arg_credential("--config=", "rclone.conf", "[remote]")
            .arg_device(MountOptions::new())
            .env("A", "b")
            .secret("")
            .identity("volume 1")
            .memory_limit(64 << 20)
            .continue_when_lost();
        let received = Message::default().daemon(&daemon).next_daemon().unwrap();
        let mut expected = daemon;
        // The driver mounts and starts it again.
        expected.device = None;
        expected.is_restarted = false;
        assert!(received == expected, "{received:?}");
    }
}
