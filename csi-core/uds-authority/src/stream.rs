//! A connection whose reader returns repaired bytes.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::repair::{Desynchronised, Repair, Step};

/// How much is read at once while a header block is incomplete.
const CHUNK: usize = 4096;

/// A connection whose reader repairs the `:authority` of the requests that come in.
///
/// Bytes that need no repair are read directly into the caller's buffer. An incomplete header block is held
/// back, at most about 150 KiB: longer blocks pass unchanged. Writes pass unchanged.
///
/// # Errors
/// Reading fails with [`io::ErrorKind::InvalidData`] if a header block can't be parsed after another one was
/// changed: the server's table of headers would then differ from the caller's. Until then, what can't be
/// parsed passes unchanged, and the server refuses it.
#[derive(Debug)]
pub struct RepairedStream<S> {
    inner: S,
    repair: Repair,
    /// The start of a header block or of a frame's head.
    held: Vec<u8>,
    /// How many bytes must be held before the next step.
    needed: usize,
    /// Bytes ready to be read, from `read` on.
    due: Vec<u8>,
    read: usize,
}

impl<S> RepairedStream<S> {
    /// Wraps an accepted connection of which nothing was read yet.
    pub fn new(inner: S) -> Self {
        Self { inner, repair: Repair::new(), held: Vec::new(), needed: 0, due: Vec::new(), read: 0 }
    }

    /// The connection, for example for the credentials of its peer. Don't read from it.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns how many of the first bytes of `fresh` pass unchanged. The others are held or replaced.
    fn repair_bytes(&mut self, fresh: &[u8]) -> io::Result<usize> {
        let mut passed = 0;
        while passed < fresh.len() {
            match self.repair.step(&fresh[passed..]).map_err(broken)? {
                Step::Pass(count) => passed += count,
                Step::Wait(needed) => {
                    self.needed = needed;
                    self.held.extend_from_slice(&fresh[passed..]);
                    break;
                }
                Step::Replace(count, instead) => {
                    self.due = instead;
                    self.held.extend_from_slice(&fresh[passed + count..]);
                    self.release()?;
                    break;
                }
            }
        }
        Ok(passed)
    }

    /// Processes as many of the held bytes as possible.
    fn release(&mut self) -> io::Result<()> {
        if self.held.len() < self.needed {
            return Ok(());
        }
        self.needed = 0;
        let mut done = 0;
        while done < self.held.len() {
            match self.repair.step(&self.held[done..]).map_err(broken)? {
                Step::Pass(count) => {
                    self.due.extend_from_slice(&self.held[done..done + count]);
                    done += count;
                }
                Step::Replace(count, instead) => {
                    self.due.extend_from_slice(&instead);
                    done += count;
                }
                Step::Wait(needed) => {
                    self.needed = needed;
                    break;
                }
            }
        }
        self.held.drain(..done);
        Ok(())
    }

    /// Copies as many of the ready bytes as fit.
    fn copy_to(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = buffer.remaining().min(self.due.len() - self.read);
        buffer.put_slice(&self.due[self.read..self.read + count]);
        self.read += count;
        if self.read == self.due.len() {
            // Give the memory of a rare large block back.
            self.due = Vec::new();
            self.read = 0;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RepairedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.due.is_empty() {
                this.copy_to(buffer);
                return Poll::Ready(Ok(()));
            }
            if this.held.is_empty() {
                let before = buffer.filled().len();
                ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
                if buffer.filled().len() == before {
                    return Poll::Ready(Ok(()));
                }
                let passed = this.repair_bytes(&buffer.filled()[before..]);
                // In case of an error the buffer must stay empty.
                buffer.set_filled(before + passed.as_ref().unwrap_or(&0));
                if passed? > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                let mut chunk = [MaybeUninit::uninit(); CHUNK];
                let mut chunk = ReadBuf::uninit(&mut chunk);
                ready!(Pin::new(&mut this.inner).poll_read(context, &mut chunk))?;
                if chunk.filled().is_empty() {
                    // The connection ended inside a frame.
                    this.due = std::mem::take(&mut this.held);
                } else {
                    this.held.extend_from_slice(chunk.filled());
                    this.release()?;
                }
            }
        }
    }
}

fn broken(_: Desynchronised) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a header block can't be read, and the tables are out of step")
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RepairedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::transport::server::Connected> tonic::transport::server::Connected for RepairedStream<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{CONTINUATION, HEADERS, Head, MAX_PAYLOAD};

    /// A block of eight frames that does not end, byte by byte: each frame is examined a bounded number of
    /// times.
    #[test]
    fn an_unfinished_block_in_small_pieces_is_linear_work() {
        let mut bytes = vec![b'x'; 24];
        for kind in
            [HEADERS, CONTINUATION, CONTINUATION, CONTINUATION, CONTINUATION, CONTINUATION, CONTINUATION]
        {
            Head { length: MAX_PAYLOAD, kind, flags: 0, stream: 1 }.write(&mut bytes);
            bytes.resize(bytes.len() + MAX_PAYLOAD, 0);
        }
        let mut connection = RepairedStream::new(tokio::io::empty());
        for byte in bytes.chunks(1) {
            if connection.held.is_empty() {
                connection.repair_bytes(byte).unwrap();
            } else {
                connection.held.extend_from_slice(byte);
                connection.release().unwrap();
            }
        }
        assert!(connection.held.len() > 7 * MAX_PAYLOAD, "all of it is held: {}", connection.held.len());
        let looks = connection.repair.looks;
        assert!(looks < 24 + 3 * 7, "{looks} looks at {} bytes", bytes.len());
    }

    #[test]
    fn a_block_that_the_server_refuses_is_not_held() {
        let mut bytes = vec![b'x'; 24];
        for nth in 0..20 {
            let kind = if nth == 0 { HEADERS } else { CONTINUATION };
            Head { length: MAX_PAYLOAD, kind, flags: 0, stream: 1 }.write(&mut bytes);
            bytes.resize(bytes.len() + MAX_PAYLOAD, 0);
        }
        let mut connection = RepairedStream::new(tokio::io::empty());
        let mut most = 0;
        for piece in bytes.chunks(1000) {
            if connection.held.is_empty() {
                connection.repair_bytes(piece).unwrap();
            } else {
                connection.held.extend_from_slice(piece);
                connection.release().unwrap();
            }
            most = most.max(connection.held.len());
        }
        assert!(most < 10 * (MAX_PAYLOAD + 9), "{most} bytes held");
        assert!(connection.held.is_empty());
    }
}
