//! Which of a connection's bytes pass, which are replaced, and which must be waited for.

use super::Malformed;
use super::frames::{Block, CONTINUATION, HEAD, HEADERS, Head, PUSH_PROMISE, Read};
use super::hpack::Table;

/// What a client sends first: "PRI * HTTP/2.0" and so on.
const PREFACE: usize = 24;

/// What to do with the bytes at hand.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many of them go on as they are.
    Pass(usize),
    /// So many of them are replaced.
    Replace(usize, Vec<u8>),
    /// So many must be there before anything can be said.
    Wait(usize),
}

/// The caller's tables got out of the server's step for good: to go on would give it wrong headers.
#[derive(Debug)]
pub(super) struct OutOfStep;

#[derive(Debug)]
pub(super) struct Repair {
    table: Table,
    /// So many bytes belong to what was looked at already.
    skip: usize,
    /// Something could not be read. Nothing is looked at any more.
    blind: bool,
    /// How often bytes were looked at.
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

    /// What to do with `bytes`, of which there is at least one, and which follow those that the last step took.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Result<Step, OutOfStep> {
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
            // Neither is a client's to send here; the server closes the connection.
            PUSH_PROMISE | CONTINUATION => Err(Malformed),
            _ => {
                self.skip = head.length;
                Ok(Step::Pass(HEAD))
            }
        };
        match step {
            Ok(step) => Ok(step),
            Err(Malformed) if self.table.in_step() => {
                self.blind = true;
                Ok(Step::Pass(bytes.len()))
            }
            Err(Malformed) => Err(OutOfStep),
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
