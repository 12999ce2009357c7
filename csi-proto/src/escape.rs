//! Makes text from outside safe to show: on a terminal, in JSON, as one word of a shell command.
//!
//! A name, an id or a message from a driver, the kubelet or a caller can contain any Unicode. Printed
//! unchanged, it can clear the screen, set the clipboard (OSC 52), overwrite the line before it, imitate
//! another line of a log, or reverse the text after it (U+202E). All functions escape the same characters and
//! leave all others unchanged:
//!
//! | general category | for example |
//! |---|---|
//! | Cc, control | ESC, BEL, CR, LF, TAB, backspace, U+007F, U+009B |
//! | Cf, format | U+200B to U+200F, U+202A to U+202E, U+2066 to U+2069, U+FEFF, the tags at U+E0000 |
//! | Zl and Zp, line and paragraph separators | U+2028, U+2029 |
//! | Zs, spaces other than U+0020 | U+00A0, U+3000 |
//! | Co and Cn, private use and not assigned | U+E000, U+FFFF |
//!
//! Cs, the surrogates, can't occur in a `str`. The categories are those of the Unicode Character Database
//! (Unicode Standard Annex 44, "General Category Values"), in the version of the standard library: the
//! escaped characters are those that `Debug` of a `str` escapes, except quotes, the backslash and combining
//! marks, which stay unchanged.

use std::borrow::Cow;
use std::fmt::Write as _;

fn is_escaped(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    // After another character `escape_debug` does not escape combining marks.
    let mut buffer = [b'x'; 5];
    let end = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..end]).unwrap_or_default();
    text.escape_debug().nth(1) != Some(c)
}

/// Escapes text for a terminal, a table or a log: one line without terminal control characters.
///
/// The escapes are Rust's: `\n`, `\r`, `\t`, otherwise `\u{…}`. A backslash is not escaped, so a second call
/// changes nothing, and an id with a backslash can be copied. Use JSON if the exact text is needed.
///
/// ```
/// use csi_proto::escape;
///
/// assert_eq!(escape::terminal("pool\x1b[2J is\nfull"), r"pool\u{1b}[2J is\nfull");
/// assert_eq!(escape::terminal("größe naïve 大 👍"), "größe naïve 大 👍");
/// ```
pub fn terminal(text: &str) -> Cow<'_, str> {
    escaped(text, |c, into| into.extend(c.escape_default()))
}

/// The longest text that [`message`] returns, in bytes.
///
/// gRPC sends a status message as a header in percent-encoding: three bytes for each byte outside ASCII. Clients
/// refuse header lists above 8 KiB (gRPC's C core) or 16 KiB (hyper).
const MESSAGE_MAX: usize = 2048;

/// The bytes that stay of the end of a longer text, where an error has its cause and how to fix it.
const MESSAGE_END: usize = 512;

/// Escapes text as [`terminal`] does, and shortens it to 2,048 bytes: for the message of a status, and for
/// a log line.
///
/// A longer text keeps its beginning and its end. A second call changes nothing.
///
/// ```
/// use csi_proto::escape;
///
/// assert_eq!(escape::message("pool:\nfull"), r"pool:\nfull");
/// let long = escape::message(&format!("name: {}: is too long", "x".repeat(5000))).into_owned();
/// assert!(long.starts_with("name: xxx") && long.ends_with("xxx: is too long"));
/// assert!(long.contains("bytes left out") && long.len() <= 2048);
/// ```
pub fn message(text: &str) -> Cow<'_, str> {
    let text = terminal(text);
    if text.len() <= MESSAGE_MAX {
        return text;
    }
    // Room for the words between both parts.
    let mut start_length = MESSAGE_MAX - MESSAGE_END - 64;
    while !text.is_char_boundary(start_length) {
        start_length -= 1;
    }
    let mut end_start = text.len() - MESSAGE_END;
    while !text.is_char_boundary(end_start) {
        end_start += 1;
    }
    let left_out = end_start - start_length;
    Cow::Owned(format!("{} [… {left_out} bytes left out …] {}", &text[..start_length], &text[end_start..]))
}

/// Escapes text in encoded JSON: the same values, without terminal control characters.
///
/// The characters become `\uXXXX`, above U+FFFF a surrogate pair (RFC 8259, section 7). In JSON they can
/// occur only inside strings, except for line feeds and tabs between values. These are kept: inside a string
/// every encoder has escaped them.
///
/// ```
/// use csi_proto::escape;
///
/// assert_eq!(escape::json("{\n  \"id\": \"a\u{202e}b\"\n}"), "{\n  \"id\": \"a\\u202eb\"\n}");
/// ```
pub fn json(written: &str) -> Cow<'_, str> {
    escaped(written, |c, into| match c {
        '\n' | '\t' => into.push(c),
        c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
            let _ = write!(into, "\\u{unit:04x}");
        }),
    })
}

/// Quotes text for a command that people paste into a shell: always one word. Returns `None` for a text with
/// a NUL, which no argument of a program can contain.
///
/// Plain text is put in single quotes, for any POSIX shell. Text with an escaped character is written as
/// `$'…'` (bash, ksh, zsh; POSIX.1-2024, section 2.2.4) with three octal digits for each byte of such a
/// character, for each quote and for each backslash. A shell that does not know `$'…'` still reads one word,
/// but a different one.
///
/// ```
/// use csi_proto::escape;
///
/// assert_eq!(escape::shell_word("pvc 1").as_deref(), Some("'pvc 1'"));
/// assert_eq!(escape::shell_word("it's").as_deref(), Some(r"'it'\''s'"));
/// assert_eq!(escape::shell_word("a\n'; reboot").as_deref(), Some(r"$'a\012\047; reboot'"));
/// assert_eq!(escape::shell_word("a\0b"), None);
/// ```
pub fn shell_word(text: &str) -> Option<String> {
    if text.contains('\0') {
        return None;
    }
    if !text.contains(is_escaped) {
        return Some(format!("'{}'", text.replace('\'', r"'\''")));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        if is_escaped(c) || c == '\'' || c == '\\' {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| {
                let _ = write!(word, "\\{byte:03o}");
            });
        } else {
            word.push(c);
        }
    }
    Some(word + "'")
}

fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut into = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) { escape(c, &mut into) } else { into.push(c) }
    }
    Cow::Owned(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cc, Cf, Zl, Zp and Co of Unicode 16.0, `extracted/DerivedGeneralCategory.txt`, with Cn's
    /// noncharacters.
    const RAW: &[(u32, u32)] = &[
        (0x0000, 0x001f),
        (0x007f, 0x009f),
        (0x00ad, 0x00ad),
        (0x0600, 0x0605),
        (0x061c, 0x061c),
        (0x06dd, 0x06dd),
        (0x070f, 0x070f),
        (0x0890, 0x0891),
        (0x08e2, 0x08e2),
        (0x180e, 0x180e),
        (0x200b, 0x200f),
        (0x2028, 0x202e),
        (0x2060, 0x2064),
        (0x2066, 0x206f),
        (0xe000, 0xf8ff),
        (0xfdd0, 0xfdef),
        (0xfeff, 0xfeff),
        (0xfff9, 0xfffb),
        (0xfffe, 0xffff),
        (0x110bd, 0x110bd),
        (0x110cd, 0x110cd),
        (0x13430, 0x1343f),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0001, 0xe0001),
        (0xe0020, 0xe007f),
        (0xf0000, 0x0010_ffff),
    ];

    #[test]
    fn every_character_of_these_categories_is_escaped() {
        for c in RAW.iter().flat_map(|&(first, last)| first..=last).filter_map(char::from_u32) {
            assert!(is_escaped(c), "{c:?}");
        }
    }

    #[test]
    fn what_people_write_stays() {
        for text in [
            (' '..='~').collect::<String>().as_str(),
            "äöüß é e\u{301} Ω ж א ع ไทย 한국어 日本語 ½ €",
            "👍🏽 ❤\u{fe0f}",
            r"C:\volumes\1 'a' \u{1b}",
        ] {
            assert_eq!(terminal(text), text);
            assert_eq!(json(text), text);
        }
    }

    #[test]
    fn escaping_twice_changes_nothing() {
        for c in (char::MIN..=char::MAX).filter(|c| is_escaped(*c)).step_by(7) {
            let text = c.to_string();
            let once = terminal(&text);
            assert!(once.is_ascii() && once.len() > 1);
            assert_eq!(terminal(&once), once);
        }
    }

    #[test]
    fn a_message_is_one_line_within_the_limit() {
        for piece in ["x", "é", "大", "👍", "\n", "\u{202e}", "a\u{1b}[2J大"] {
            for count in [1, 100, 680, 700, 2047, 2048, 2049, 100_000] {
                let text = piece.repeat(count);
                let once = message(&text).into_owned();
                assert!(once.len() <= MESSAGE_MAX, "{piece:?} {count}: {}", once.len());
                assert!(!once.contains(is_escaped), "{piece:?}");
                assert_eq!(message(&once), once, "{piece:?} {count}");
                let is_whole = terminal(&text).len() <= MESSAGE_MAX;
                assert_eq!(once == terminal(&text), is_whole, "{piece:?} {count}");
            }
        }
    }

    #[test]
    fn above_the_first_plane_json_has_a_pair() {
        assert_eq!(json("\"\u{e0001}\u{7f}\""), r#""\udb40\udc01\u007f""#);
    }

    #[test]
    fn a_word_has_no_bare_quote_in_a_shell_that_does_not_know_the_form() {
        let word = shell_word("\x1b'\\';reboot\u{202e}").unwrap();
        assert_eq!(word, r"$'\033\047\134\047;reboot\342\200\256'");
        assert_eq!(shell_word("").unwrap(), "''");
    }

    #[test]
    fn shells_read_the_word_back() {
        let of_shell = |shell: &str, script: String| {
            let output = std::process::Command::new(shell).args(["-c", &script]).output().unwrap();
            assert!(output.status.success(), "{shell}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let firsts = RAW[1..].iter().filter_map(|(first, _)| char::from_u32(*first));
        let controls = ('\x01'..='\x1f').chain(firsts);
        let text: String = controls.flat_map(|c| [c, '7', '\'', '\\', '$', '"', '`', ' ']).collect();
        let word = shell_word(&text).unwrap();
        assert_eq!(of_shell("bash", format!("printf %s {word}")), text);
        // In any POSIX shell it is one word, and no part of it is executed.
        assert_eq!(of_shell("sh", format!("set -- {word}; printf %s $#")), "1");
    }
}
