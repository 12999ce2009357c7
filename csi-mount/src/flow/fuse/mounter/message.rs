//! Messages over a unix socket: words, and at most one open file.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::socket::MESSAGE_TIME_LIMIT;
use crate::sys::deadline::deadline;

/// The longest message, in bytes: arguments and credentials.
const MOST: usize = 4 << 20;
/// The bytes of one write.
const WRITE: usize = 16 << 10;

#[derive(Default)]
pub(super) struct Message {
    words: VecDeque<Vec<u8>>,
    pub(super) device: Option<OwnedFd>,
}

impl Message {
    pub(super) fn new(first: &str) -> Self {
        Self::default().word(first)
    }

    pub(super) fn word(mut self, word: impl AsRef<[u8]>) -> Self {
        self.words.push_back(word.as_ref().to_vec());
        self
    }

    pub(super) fn number(self, number: u64) -> Self {
        self.word(number.to_string())
    }

    pub(super) fn with(mut self, device: Option<OwnedFd>) -> Self {
        self.device = device;
        self
    }

    /// The next word.
    pub(super) fn next(&mut self) -> io::Result<Vec<u8>> {
        self.words.pop_front().ok_or_else(|| invalid("a message is too short"))
    }

    pub(super) fn next_text(&mut self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.next()?).into_owned())
    }

    pub(super) fn next_number(&mut self) -> io::Result<u64> {
        self.next_text()?.parse().map_err(|_| invalid("a number of a message is wrong"))
    }

    /// Sends it within the stream's time limit for one write.
    pub(super) fn send(&self, stream: &UnixStream) -> io::Result<()> {
        let limit = stream.write_timeout()?;
        let deadline = deadline(limit.unwrap_or(MESSAGE_TIME_LIMIT));
        let mut body = Vec::new();
        for word in &self.words {
            body.extend(length(word.len())?);
            body.extend(word);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        let device = self.device.as_ref().map(|device| [device.as_fd()]);
        if let Some(device) = &device {
            attached.push(SendAncillaryMessage::ScmRights(device));
        }
        // The file comes with the first byte.
        let header = length(body.len())?;
        let sent = sendmsg(stream, &[IoSlice::new(&header)], &mut attached, SendFlags::NOSIGNAL)?;
        write_by(deadline, stream, &header[sent..])?;
        write_by(deadline, stream, &body)?;
        stream.set_write_timeout(limit)
    }

    /// Waits for a whole message for as long as the stream's time limit for one read; without one, for its rest only. Returns
    /// `None` if the other side has closed the connection.
    pub(super) fn receive(stream: &UnixStream) -> io::Result<Option<Self>> {
        let limit = stream.read_timeout()?;
        let by = limit.map(deadline);
        let mut header = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut attached = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut attached, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            return Ok(None);
        }
        let device = attached.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let deadline = by.unwrap_or_else(|| deadline(MESSAGE_TIME_LIMIT));
        read_by(deadline, stream, &mut header[received.bytes..])?;
        let length = u32::from_le_bytes(header) as usize;
        if length > MOST {
            return Err(invalid("a message is too long"));
        }
        let mut body = vec![0; length];
        read_by(deadline, stream, &mut body)?;
        stream.set_read_timeout(limit)?;
        Ok(Some(Self { words: words(&body)?, device }))
    }
}

/// Writes all. Each byte that is taken would begin a time limit of the stream again.
fn write_by(deadline: Instant, mut stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        // A time limit holds for one wait of a write, and a longer write can wait again and again.
        match stream.write(&bytes[..bytes.len().min(WRITE)]) {
            Ok(_) if left.is_zero() => return Err(io::ErrorKind::WouldBlock.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills the buffer. Each byte that comes would begin a time limit of the stream again.
fn read_by(deadline: Instant, mut stream: &UnixStream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(buffer) {
            Ok(_) if left.is_zero() => return Err(io::ErrorKind::WouldBlock.into()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn words(mut body: &[u8]) -> io::Result<VecDeque<Vec<u8>>> {
    let mut words = VecDeque::new();
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let (word, rest) = rest.split_at_checked(length).ok_or_else(|| invalid("a message is cut"))?;
        words.push_back(word.to_vec());
        body = rest;
    }
    if body.is_empty() { Ok(words) } else { Err(invalid("a message is cut")) }
}

fn length(bytes: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= MOST);
    length.map(u32::to_le_bytes).ok_or_else(|| invalid("a message is too long"))
}

pub(super) fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn words_and_a_file_arrive_whole() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let long = vec![7; 300_000];
        let sender = std::thread::spawn(move || {
            let message = Message::new("first").word(&long).word("").number(12).with(Some(file.into()));
            message.send(&one).unwrap();
            Message::new("second").send(&one).unwrap();
        });
        let mut received = Message::receive(&other).unwrap().unwrap();
        assert_eq!(received.next_text().unwrap(), "first");
        assert_eq!(received.next().unwrap().len(), 300_000);
        assert_eq!(received.next().unwrap(), b"");
        assert_eq!(received.next_number().unwrap(), 12);
        received.next().unwrap_err();
        assert!(received.device.is_some());
        let second = Message::receive(&other).unwrap().unwrap();
        assert!(second.device.is_none());
        sender.join().unwrap();
        assert!(Message::receive(&other).unwrap().is_none(), "it is closed");
    }

    /// Each of the bytes comes within the time limit of a read.
    #[test]
    fn a_message_that_comes_byte_by_byte_is_given_up() {
        let (mut one, other) = UnixStream::pair().unwrap();
        other.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let sender = std::thread::spawn(move || {
            one.write_all(&100_u32.to_le_bytes()).unwrap();
            while one.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let error = Message::receive(&other).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        drop(other);
        sender.join().unwrap();
    }

    /// Each of the bytes is taken within the time limit of a write.
    #[test]
    fn a_message_that_is_taken_byte_by_byte_is_given_up() {
        let (one, mut other) = UnixStream::pair().unwrap();
        one.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let reader = std::thread::spawn(move || {
            let mut some = [0; 16 << 10];
            while other.read(&mut some).is_ok_and(|length| length > 0) {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let error = Message::new("long").word(vec![7; 3 << 20]).send(&one).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        drop(one);
        reader.join().unwrap();
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bad in [&[1, 0, 0, 0, 9][..], &[5, 0, 0, 0, 9, 0, 0, 0, 1], &[0, 0, 0, 0x40], &[9, 0]] {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(bad).unwrap();
            drop(one);
            assert!(Message::receive(&other).is_err(), "{bad:?}");
        }
    }
}
