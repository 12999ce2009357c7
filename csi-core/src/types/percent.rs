//! Percent-encoding of a few ASCII characters. Everything else, also beyond ASCII, stays readable and short:
//! an id has at most 128 bytes.

use std::fmt::Write as _;

/// Encodes the ASCII characters that `is_escaped` selects by position and character.
pub(crate) fn encode(text: &str, is_escaped: impl Fn(usize, char) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        if is_escaped(at, character) {
            // Writing to a String can't fail.
            let _ = write!(encoded, "%{:02X}", u32::from(character));
        } else {
            encoded.push(character);
        }
    }
    encoded
}

/// Decodes; `None` if a `%` is not followed by the two hexadecimal digits of an ASCII character.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut decoded = parts.next()?.to_owned();
    for part in parts {
        let code = u8::from_str_radix(part.get(..2)?, 16).ok().filter(u8::is_ascii)?;
        decoded.push(char::from(code));
        decoded.push_str(&part[2..]);
    }
    Some(decoded)
}
