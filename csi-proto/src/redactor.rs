//! Hides the values of secrets in text that others wrote: a driver can repeat what it was sent, trimmed, encoded or
//! escaped.

use std::fmt;

use crate::redact::HIDDEN;

/// Values that must not be printed.
///
/// ```
/// use csi_proto::internal::Redactor;
///
/// let mut hidden = Redactor::default();
/// hidden.add(["pa ss\"word\n"]);
/// assert_eq!(hidden.scrub(r#"no login with {"key":"pa ss\"word"}"#), r#"no login with {"key":"***"}"#);
/// assert_eq!(hidden.scrub("GET /login?key=pa+ss%22word"), "GET /login?key=***");
/// ```
#[derive(Default, Clone)]
pub struct Redactor(Vec<String>);

/// A value with fewer bytes is hidden only as a whole word, because any text can contain its letters.
const SHORTEST: usize = 4;

impl Redactor {
    /// Hides these values, their lines and their encoded forms from now on.
    pub fn add<V: AsRef<str>>(&mut self, values: impl IntoIterator<Item = V>) {
        for value in values {
            let value = value.as_ref();
            let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST);
            let parts = [value, value.trim()].into_iter().chain(lines);
            self.0.extend(parts.filter(|part| !part.is_empty()).flat_map(forms));
        }
        self.sort();
    }

    /// Also hides what `other` hides.
    pub fn add_all(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
        self.sort();
    }

    fn sort(&mut self) {
        // If a value contains another one, the longer one is hidden first.
        self.0.sort_by_key(|value| std::cmp::Reverse((value.len(), value.clone())));
        self.0.dedup();
    }

    /// Returns the text without the hidden values: a driver can put what it was sent into its answers.
    ///
    /// A value is found in any case of ASCII letters, in hexadecimal, in base64, alone or inside a longer encoded
    /// text, and with any of its characters escaped: with backslashes, as in Rust, Go, JSON and shells, in percent
    /// encoding, and as entities of XML. Other encodings are not found.
    pub fn scrub(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, value| without(&text, value))
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.0.len())
    }
}

/// The value, and its forms in hexadecimal and in base64 (RFC 4648, both alphabets).
fn forms(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    if value.len() < SHORTEST {
        return forms;
    }
    forms.push(value.bytes().map(|byte| format!("{byte:02x}")).collect());
    // For each of the three positions in a base64 group: the letters that depend on the value alone.
    for before in 0..3 {
        let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(value.bytes()).collect();
        let letters = base64(&bytes);
        let first = [0, 2, 3][before];
        let end = bytes.len() * 8 / 6;
        if end - first >= SHORTEST {
            let own = letters[first..end].to_owned();
            forms.extend([own.replace('+', "-").replace('/', "_"), own]);
        }
    }
    forms
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let letter = |start: usize| (start..start + 6).fold(0, |sum, at| sum * 2 + usize::from(bit(at)));
    (0..bytes.len() * 8).step_by(6).map(|start| char::from(ALPHABET[letter(start)])).collect()
}

/// The text without a value. A short value is removed only as a whole word.
fn without(text: &str, value: &str) -> String {
    let joins = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let mut result = String::new();
    let mut kept = 0;
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let end = end_of(&text.as_bytes()[at..], value.as_bytes()).map(|length| at + length);
        let Some(end) = end.filter(|end| text.is_char_boundary(*end)) else {
            at += letter.len_utf8();
            continue;
        };
        let is_within = joins(text[..at].chars().next_back()) || joins(text[end..].chars().next());
        if value.len() >= SHORTEST || !is_within {
            result.push_str(&text[kept..at]);
            result.push_str(HIDDEN);
            kept = end;
        }
        at = end;
    }
    result + &text[kept..]
}

/// How many bytes of the text's beginning are the value, as it is or with characters escaped. `None` if the text does
/// not begin with the value.
fn end_of(text: &[u8], value: &[u8]) -> Option<usize> {
    if text.get(..value.len()).is_some_and(|start| start.eq_ignore_ascii_case(value)) {
        return Some(value.len());
    }
    let mut at = 0;
    let mut rest = value;
    while !rest.is_empty() {
        let (bytes, length) = unescaped(text.get(at..)?, rest)?;
        let start = rest.get(..bytes.len()).filter(|start| start.eq_ignore_ascii_case(&bytes))?;
        rest = &rest[start.len()..];
        at += length;
    }
    Some(at)
}

/// What the text begins with, read as an escape if that fits `due`, and how many bytes of the text it takes.
fn unescaped(text: &[u8], due: &[u8]) -> Option<(Vec<u8>, usize)> {
    let raw = *text.first()?;
    let escape = match text {
        [b'+', ..] => Some((vec![b' '], 1)),
        [b'%', digits @ ..] => code(digits, 2, 16).map(|byte| (vec![byte as u8], 3)),
        [b'&', ..] => entity(text),
        [b'\\', ..] => backslash(text, due),
        _ => None,
    };
    let fits = |(bytes, _): &(Vec<u8>, usize)| {
        due.len() >= bytes.len() && due[..bytes.len()].eq_ignore_ascii_case(bytes)
    };
    Some(escape.filter(fits).unwrap_or((vec![raw], 1)))
}

/// An escape with a backslash. Text that was escaped twice has several backslashes.
fn backslash(text: &[u8], due: &[u8]) -> Option<(Vec<u8>, usize)> {
    let count = |text: &[u8]| text.iter().take_while(|byte| **byte == b'\\').count();
    let slashes = count(text);
    let due_slashes = count(due);
    if slashes >= 2 && due_slashes >= 1 {
        let is_doubled = slashes % due_slashes == 0 && (slashes / due_slashes).is_power_of_two();
        let whole_run = (due[..due_slashes].to_vec(), slashes);
        return Some(if is_doubled { whole_run } else { (br"\".to_vec(), 2) });
    }
    let after = &text[slashes..];
    let letter = *after.first()?;
    let digits = &after[1..];
    let (character, length) = match letter {
        b'n' => ('\n', 1),
        b'r' => ('\r', 1),
        b't' => ('\t', 1),
        b'x' => return code(digits, 2, 16).map(|byte| (vec![byte as u8], slashes + 3)),
        b'0'..=b'7' if code(after, 3, 8).is_some() => {
            return code(after, 3, 8).map(|byte| (vec![byte as u8], slashes + 3));
        }
        b'0' => ('\0', 1),
        b'a' => ('\u{7}', 1),
        b'b' => ('\u{8}', 1),
        b'f' => ('\u{c}', 1),
        b'v' => ('\u{b}', 1),
        b'e' => ('\u{1b}', 1),
        b'u' if digits.first() == Some(&b'{') => {
            let length = digits.iter().position(|byte| *byte == b'}')?;
            (char::from_u32(code(&digits[1..], length - 1, 16)?)?, length + 2)
        }
        b'u' => utf_16(digits)?,
        b'U' => (char::from_u32(code(digits, 8, 16)?)?, 9),
        other if other.is_ascii_punctuation() || other == b' ' => (char::from(other), 1),
        _ => return None,
    };
    Some((character.to_string().into_bytes(), slashes + length))
}

/// The character of `uXXXX`, or of a surrogate pair `uXXXX\uXXXX`, from its first digit; and the length with the `u`.
fn utf_16(digits: &[u8]) -> Option<(char, usize)> {
    let first = u16::try_from(code(digits, 4, 16)?).ok()?;
    let second = digits.get(4..).and_then(|rest| rest.strip_prefix(br"\u"));
    let second = second.and_then(|digits| u16::try_from(code(digits, 4, 16)?).ok());
    if let Some(character) = char::from_u32(first.into()) {
        return Some((character, 5));
    }
    let pair = char::decode_utf16([first, second?]).next()?.ok()?;
    Some((pair, 11))
}

fn entity(text: &[u8]) -> Option<(Vec<u8>, usize)> {
    let end = text.iter().take(12).position(|byte| *byte == b';')?;
    let character = match &text[1..end] {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(code(digits, digits.len(), 16)?)?,
        [b'#', digits @ ..] => char::from_u32(code(digits, digits.len(), 10)?)?,
        _ => return None,
    };
    Some((character.to_string().into_bytes(), end + 1))
}

fn code(digits: &[u8], length: usize, radix: u32) -> Option<u32> {
    let digits = digits.get(..length).filter(|digits| digits.iter().all(u8::is_ascii_alphanumeric))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_hidden_wherever_they_stand() {
        let mut hidden = Redactor::default();
        hidden.add(["canary", "canary-and-more", "abc", ""]);
        assert_eq!(hidden.scrub("xcanaryx canary-and-more"), "x***x ***");
        assert_eq!(hidden.scrub("abc 'abc' abcabc abcd"), "*** '***' abcabc abcd");
        assert!(!format!("{hidden:?}").contains("canary"));
    }

    #[test]
    fn cheap_forms_are_hidden_too() {
        let mut hidden = Redactor::default();
        hidden.add(["canary-7f3a"]);
        for text in [
            "CANARY-7F3A",
            "Canary-7f3A",
            "63616e6172792d37663361",
            "63616E6172792D37663361",
            "Y2FuYXJ5LTdmM2E=",
            // user:canary-7f3a, me:canary-7f3a, x:canary-7f3a!
            "dXNlcjpjYW5hcnktN2YzYQ==",
            "bWU6Y2FuYXJ5LTdmM2E=",
            "eDpjYW5hcnktN2YzYSE=",
        ] {
            let shown = hidden.scrub(&format!("no login by {text}."));
            assert!(shown.contains("***"), "{text}: {shown}");
            assert!(shown.len() < "no login by ***.".len() + 12, "{text}: {shown}");
        }
        // Values of either alphabet.
        hidden.add(["\u{3ff}\u{7ff}\u{3ff}\u{7ff}"]);
        assert_eq!(base64("\u{3ff}\u{7ff}\u{3ff}\u{7ff}".as_bytes()), "z7/fv8+/378");
        assert!(!hidden.scrub("z7_fv8-_378").contains("fv8"));
        assert_eq!(hidden.scrub("größe of pool"), "größe of pool");
    }

    #[test]
    fn escaped_and_trimmed_forms_are_hidden() {
        let value = " pa\"s's\\w<o>r&d/\n\t\u{1b}\u{202e}ü👍 $x`%+= ";
        let json = |text: &str| -> String {
            text.chars()
                .map(|c| match c {
                    '"' | '\\' => format!("\\{c}"),
                    '\n' => r"\n".to_owned(),
                    '\t' => r"\t".to_owned(),
                    '<' | '>' | '&' | '\u{1b}' | '\u{202e}' | 'ü' => format!("\\u{:04x}", u32::from(c)),
                    '👍' => r"\ud83d\udc4d".to_owned(),
                    c => c.to_string(),
                })
                .collect()
        };
        let percent = |text: &str, kept: &str| -> String {
            let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte);
            text.bytes()
                .map(|byte| if is_kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
                .collect()
        };
        let octal: String = value.bytes().map(|byte| format!("\\{byte:03o}")).collect();
        let bytes: String = value.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
        let xml =
            value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&#62;").replace('"', "&quot;");
        let debug = format!("{value:?}");
        let debug = &debug[1..debug.len() - 1];
        let twice = format!("{debug:?}");
        let mut hidden = Redactor::default();
        hidden.add([value]);
        for form in [
            value.to_owned(),
            value.trim().to_owned(),
            debug.to_owned(),
            debug.trim().to_owned(),
            twice[1..twice.len() - 1].to_owned(),
            crate::escape::terminal(value).into_owned(),
            crate::escape::json(value).into_owned(),
            json(value),
            json(value.trim()),
            json(value).replace('/', r"\/"),
            percent(value, ""),
            percent(value, "-._~/"),
            percent(value, "").replace("%20", "+"),
            octal,
            bytes,
            xml,
            value.replace('\\', r"\\").replace('$', r"\$").replace('`', r"\`").replace('"', r#"\""#),
        ] {
            let shown = hidden.scrub(&format!("login <{form}> failed"));
            let rest = shown.replace("***", "").replace(|c: char| c.is_whitespace(), "");
            assert_eq!(rest, "login<>failed", "{form}: {shown}");
        }
        // The lines of a value with several.
        let mut hidden = Redactor::default();
        hidden.add(["-----BEGIN KEY-----\nabcdefgh\n"]);
        assert_eq!(hidden.scrub("bad key abcdefgh"), "bad key ***");
    }

    #[test]
    fn text_without_the_value_stays() {
        let mut hidden = Redactor::default();
        hidden.add(["canary value", "x\u{1b}y\\z"]);
        for text in [
            r"can\ary \",
            "100% of a+b & c;",
            "%",
            r"\u{",
            r"\u{}",
            r"\ud83d",
            "&#;",
            "&amp",
            "ü👍",
            r"\u{110000}x",
        ] {
            assert_eq!(hidden.scrub(text), text);
        }
    }
}
