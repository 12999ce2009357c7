//! The Huffman code of header strings (RFC 7541, appendix B).
//!
//! The code is canonical: codes of the same length are consecutive, in the order of their symbols. So the
//! lengths define the whole code.

use crate::Malformed;

/// The length in bits of each byte's code; the last one is that of the end-of-string symbol.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5,
    6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22,
    23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22,
    22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26,
    26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27,
    27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27,
    27, 27, 27, 27, 26, 30,
];
const LONGEST: usize = 30;
const END_OF_STRING: u16 = 256;

/// Per code length: the first such code, the number of such codes, and where their symbols begin in
/// `symbols`.
struct Canonical {
    first: [u32; LONGEST + 1],
    count: [u32; LONGEST + 1],
    start: [u32; LONGEST + 1],
    symbols: [u16; 257],
}

static CODE: Canonical = canonical();

const fn canonical() -> Canonical {
    let mut code = Canonical {
        first: [0; LONGEST + 1],
        count: [0; LONGEST + 1],
        start: [0; LONGEST + 1],
        symbols: [0; 257],
    };
    let mut next = 0_u32;
    let mut placed = 0_usize;
    let mut length = 1_usize;
    while length <= LONGEST {
        next <<= 1;
        code.first[length] = next;
        code.start[length] = placed as u32;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                code.symbols[placed] = symbol as u16;
                placed += 1;
                next += 1;
            }
            symbol += 1;
        }
        code.count[length] = next - code.first[length];
        length += 1;
    }
    code
}

/// Passes each decoded byte to `each`.
pub(super) fn decode(coded: &[u8], mut each: impl FnMut(u8)) -> Result<(), Malformed> {
    let mut bits = 0_u32;
    let mut length = 0_usize;
    for byte in coded {
        for shift in (0..8).rev() {
            bits = bits << 1 | u32::from(byte >> shift & 1);
            length += 1;
            let nth = bits.wrapping_sub(CODE.first[length]);
            if nth < CODE.count[length] {
                match CODE.symbols[(CODE.start[length] + nth) as usize] {
                    END_OF_STRING => return Err(Malformed),
                    symbol => each(symbol as u8),
                }
                (bits, length) = (0, 0);
            } else if length == LONGEST {
                return Err(Malformed);
            }
        }
    }
    // The remaining bits are the padding of the last byte: fewer than eight ones.
    if length < 8 && bits == (1 << length) - 1 { Ok(()) } else { Err(Malformed) }
}

/// Encodes a string, for tests.
#[cfg(test)]
pub(super) fn encode(plain: &[u8]) -> Vec<u8> {
    // The codes, by byte.
    static CODES: std::sync::LazyLock<[u64; 256]> = std::sync::LazyLock::new(|| {
        let mut next = CODE.first;
        std::array::from_fn(|byte| {
            let code = &mut next[usize::from(LENGTHS[byte])];
            *code += 1;
            u64::from(*code - 1)
        })
    });
    let mut coded = Vec::new();
    let mut bits = 0_u64;
    let mut length = 0_usize;
    for byte in plain {
        let of_byte = usize::from(LENGTHS[usize::from(*byte)]);
        bits = bits << of_byte | CODES[usize::from(*byte)];
        length += of_byte;
        while length >= 8 {
            length -= 8;
            coded.push((bits >> length) as u8);
            bits &= (1 << length) - 1;
        }
    }
    if length > 0 {
        coded.push((bits << (8 - length) | ((1 << (8 - length)) - 1)) as u8);
    }
    coded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut plain = Vec::new();
        decode(coded, |byte| plain.push(byte)).map(|()| plain)
    }

    #[test]
    fn strings_of_the_specification() {
        // RFC 7541, C.4.1 and C.4.3.
        let host = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&host).unwrap(), b"www.example.com");
        assert_eq!(encode(b"www.example.com"), host);
        let value = [0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf];
        assert_eq!(decoded(&value).unwrap(), b"custom-value");
    }

    #[test]
    fn every_byte_there_and_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encode(&all)).unwrap(), all);
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn bad_padding_and_the_end_mark_are_refused() {
        for bad in [&[0x00_u8][..], &[0xff], &[0x1f, 0xff], &[0xff, 0xff, 0xff, 0xff], &[0x18]] {
            assert_eq!(decoded(bad), Err(Malformed), "{bad:x?}");
        }
    }
}
