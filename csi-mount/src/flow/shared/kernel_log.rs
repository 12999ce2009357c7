//! What the kernel writes to its log while it mounts. The clients of SMB and CephFS write the server's status
//! there, and not to their filesystem context.

use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::{Errno, read};
use std::os::fd::OwnedFd;

/// The most messages that are returned.
const MOST: usize = 8;

/// The kernel's log from a moment on (`/dev/kmsg`).
pub(super) struct KernelLog(Option<OwnedFd>);

impl KernelLog {
    /// From now on. Without CAP_SYSLOG, or in a container without `/dev/kmsg`, there is nothing to read.
    pub(super) fn from_now() -> Self {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let log = open("/dev/kmsg", flags, Mode::empty());
        Self(log.ok().filter(|log| seek(log, SeekFrom::End(0)).is_ok()))
    }

    /// The messages with one of these prefixes. They can also be about another mount.
    pub(super) fn messages(self, prefixes: &[&str]) -> Vec<String> {
        let mut messages = Vec::new();
        let mut buffer = [0; 2048];
        let Some(log) = self.0 else { return messages };
        while messages.len() < MOST {
            match read(&log, &mut buffer) {
                Ok(length) => messages.extend(message(&buffer[..length], prefixes)),
                // A record was overwritten before it was read.
                Err(Errno::PIPE) => {}
                Err(_) => break,
            }
        }
        messages.dedup();
        messages
    }
}

/// The text of a record (`6,1234,5678,-;CIFS: text`, then lines for programs) if it has one of the prefixes.
fn message(record: &[u8], prefixes: &[&str]) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let (_, text) = text.lines().next()?.split_once(';')?;
    // The kernel writes a backslash as its number.
    let text = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix))?;
    Some(text.trim().replace(r"\x5c", r"\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_the_text_of_a_record_with_its_prefix() {
        let record =
            b"3,812,5140900,-;CIFS: Status code returned 0xc000006d NT_STATUS_LOGON_FAILURE\n SUBSYSTEM=x\n";
        let text = message(record, &["CIFS: "]).unwrap();
        assert_eq!(text, "Status code returned 0xc000006d NT_STATUS_LOGON_FAILURE");
        assert_eq!(message(br"3,1,1,-;CIFS: VFS: \x5c\x5cs", &["x", "CIFS: "]).unwrap(), r"VFS: \\s");
        for other in [&b"6,1,1,-;EXT4-fs: mounted"[..], b"", b";", b"\xff\n;CIFS: "] {
            assert_eq!(message(other, &["CIFS: "]), None);
        }
    }
}
