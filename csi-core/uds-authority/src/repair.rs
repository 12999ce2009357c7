//! Decides which bytes of a connection pass, which are replaced, and for which more bytes are needed.

use crate::Malformed;
use crate::frames::{Block, CONTINUATION, HEAD, HEADERS, Head, PUSH_PROMISE, Read};
use crate::hpack::Table;

/// The length of a client's preface ("PRI * HTTP/2.0" and so on).
const PREFACE: usize = 24;

/// What to do with the available bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Pass this many bytes unchanged.
    Pass(usize),
    /// Replace this many bytes.
    Replace(usize, Vec<u8>),
    /// Wait until this many bytes are available.
    Wait(usize),
}

/// The caller's table and the server's differ permanently: to continue would give the server wrong headers.
#[derive(Debug)]
pub(super) struct Desynchronised;

#[derive(Debug)]
pub(super) struct Repair {
    table: Table,
    /// This many of the next bytes belong to something that is already examined.
    skip: usize,
    /// Something could not be parsed. Nothing is examined any more.
    blind: bool,
    /// How often bytes were examined.
    #[cfg(test)]
    pub(super) looks: usize,
}

impl Repair {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(),
            skip: PREFACE,
            blind: false,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Decides about `bytes`, which are not empty and follow the bytes that the last step consumed.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Result<Step, Desynchronised> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        if self.blind {
            return Ok(Step::Pass(bytes.len()));
        }
        if self.skip > 0 {
            let passed = self.skip.min(bytes.len());
            self.skip -= passed;
            return Ok(Step::Pass(passed));
        }
        let Some(head) = Head::read(bytes) else { return Ok(Step::Wait(HEAD)) };
        let step = match head.kind {
            HEADERS => self.headers(bytes),
            // A client must not send either here; the server closes the connection.
            PUSH_PROMISE | CONTINUATION => Err(Malformed),
            _ => {
                self.skip = head.length;
                Ok(Step::Pass(HEAD))
            }
        };
        match step {
            Ok(step) => Ok(step),
            Err(Malformed) if self.table.is_synchronised() => {
                self.blind = true;
                Ok(Step::Pass(bytes.len()))
            }
            Err(Malformed) => Err(Desynchronised),
        }
    }

    fn headers(&mut self, bytes: &[u8]) -> Result<Step, Malformed> {
        let block = match Block::read(bytes)? {
            Read::Whole(block) => block,
            Read::Needs(count) => return Ok(Step::Wait(count)),
        };
        Ok(match self.table.repair(&block.fragment)? {
            None => Step::Pass(block.length),
            Some(fragment) => Step::Replace(block.length, block.with(&fragment)),
        })
    }
}
