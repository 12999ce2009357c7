//! The parts of header blocks: integers and strings (RFC 7541, 5).

use crate::{Malformed, huffman};

/// A header string in its encoded form.
pub(super) struct Text<'a> {
    coded: bool,
    bytes: &'a [u8],
}

impl Text<'_> {
    pub(super) fn length(&self) -> Result<usize, Malformed> {
        if !self.coded {
            return Ok(self.bytes.len());
        }
        let mut length = 0;
        huffman::decode(self.bytes, |_| length += 1)?;
        Ok(length)
    }

    pub(super) fn plain(&self) -> Result<Vec<u8>, Malformed> {
        if !self.coded {
            return Ok(self.bytes.to_vec());
        }
        let mut plain = Vec::with_capacity(self.bytes.len() * 8 / 5);
        huffman::decode(self.bytes, |byte| plain.push(byte))?;
        Ok(plain)
    }

    pub(super) fn is(&self, name: &[u8]) -> Result<bool, Malformed> {
        // The coded form of a string is never longer than four times its plain length.
        if self.bytes.len() > name.len() * 4 {
            return Ok(false);
        }
        Ok(self.plain()? == name)
    }
}

/// Reads a header block.
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = self.peek().ok_or(Malformed)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads an integer that has `prefix` bits in its first byte.
    pub(super) fn integer(&mut self, prefix: u8) -> Result<usize, Malformed> {
        let start = usize::from(self.byte()? & mask(prefix));
        if start < usize::from(mask(prefix)) {
            return Ok(start);
        }
        let mut value = start;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    pub(super) fn string(&mut self) -> Result<Text<'a>, Malformed> {
        let coded = self.peek().ok_or(Malformed)? & 0x80 != 0;
        let length = self.integer(7)?;
        let bytes = self.bytes[self.at..].get(..length).ok_or(Malformed)?;
        self.at += length;
        Ok(Text { coded, bytes })
    }
}

/// The mask of an integer's bits in its first byte.
pub(super) fn mask(prefix: u8) -> u8 {
    ((1_u16 << prefix) - 1) as u8
}

/// Writes an integer after the bits of `kind`, with `prefix` bits in the first byte.
pub(super) fn write_integer(out: &mut Vec<u8>, kind: u8, prefix: u8, value: usize) {
    let most = usize::from(mask(prefix));
    if value < most {
        return out.push(kind | value as u8);
    }
    out.push(kind | mask(prefix));
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}
