//! Secrets: read from a file, sent in the right calls, and never printed.

use std::collections::BTreeMap;
use std::fmt;

use csi_proto::redact::HIDDEN;
use csi_proto::{Pairs, Rpc, RpcRequest};

/// The secrets of calls, for every RPC or for one.
///
/// Its `Debug` shows only the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(Pairs);

impl Secrets {
    /// Parses the text form of [`Pairs`], or a JSON object whose values are strings.
    ///
    /// # Errors
    /// Names the line that is neither, and never shows its text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.trim_start().starts_with('{') {
            return Pairs::parse(text).map(Self).map_err(|error| error.to_string());
        }
        // The parser's own message can quote the input.
        let parsed: Result<BTreeMap<String, String>, serde_json::Error> = serde_json::from_str(text);
        let parsed = parsed
            .map_err(|error| format!("line {}: not a JSON object whose values are strings", error.line()))?;
        Ok(Self(parsed.into_iter().collect()))
    }

    /// Adds or replaces a secret for every RPC.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.set(key, value);
    }

    /// The secrets for this RPC: those for all RPCs, overridden by its own.
    pub fn of(&self, rpc: Rpc) -> BTreeMap<String, String> {
        self.0.of(rpc)
    }

    /// The request with the secrets of its RPC, if it has a field for them.
    pub(crate) fn added_to<R: RpcRequest>(&self, mut request: R) -> R {
        if let Some(secrets) = request.secrets_mut() {
            *secrets = self.of(R::RPC);
        }
        request
    }

    /// The values as a [`Hidden`].
    pub fn hidden(&self) -> Hidden {
        let mut hidden = Hidden::default();
        hidden.add(self.0.values());
        hidden
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Values that must not be printed.
#[derive(Default, Clone)]
pub struct Hidden(Vec<String>);

/// A value with fewer bytes is hidden only as a whole word, because any text can contain its letters.
const SHORTEST: usize = 4;

impl Hidden {
    /// Hides these values and their encoded forms from now on.
    pub fn add<V: AsRef<str>>(&mut self, values: impl IntoIterator<Item = V>) {
        let values: Vec<V> = values.into_iter().collect();
        let values = values.iter().map(AsRef::as_ref).flat_map(|value| [value, value.trim()]);
        self.0.extend(values.filter(|value| !value.is_empty()).flat_map(forms));
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

    /// The text without the hidden values: a driver can put what it was sent into its answers. A value is
    /// found in any case of ASCII letters, in hexadecimal, and in base64, alone or inside a longer encoded
    /// text. Other encodings are not found.
    pub fn scrub(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, value| without(&text, value))
    }
}

impl fmt::Debug for Hidden {
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
        let (first, end) = ([0, 2, 3][before], bytes.len() * 8 / 6);
        if end - first >= SHORTEST {
            let own = letters[first..end].to_owned();
            forms.extend([own.replace('+', "-").replace('/', "_"), own]);
        }
    }
    forms
}

/// Base64 without padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let letter = |start: usize| (start..start + 6).fold(0, |sum, at| sum * 2 + usize::from(bit(at)));
    (0..bytes.len() * 8).step_by(6).map(|start| char::from(ALPHABET[letter(start)])).collect()
}

/// The text without a value, in any case. A short value is removed only as a whole word.
fn without(text: &str, value: &str) -> String {
    let (lower, value) = (text.to_ascii_lowercase(), value.to_ascii_lowercase());
    let joins = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let (mut result, mut done) = (String::new(), 0);
    for (at, _) in lower.match_indices(&value) {
        let end = at + value.len();
        let is_within = joins(text[..at].chars().next_back()) || joins(text[end..].chars().next());
        result.push_str(&text[done..at]);
        result.push_str(if value.len() < SHORTEST && is_within { &text[at..end] } else { HIDDEN });
        done = end;
    }
    result + &text[done..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_headings_are_for_one_rpc() {
        let due =
            BTreeMap::from([("user".to_owned(), "ann".to_owned()), ("key".to_owned(), "a=b".to_owned())]);
        for text in [r#"{"user": "ann", "key": "a=b"}"#, "# comment\nuser = ann\n\nkey=a=b\n"] {
            assert_eq!(Secrets::parse(text).unwrap().of(Rpc::DeleteVolume), due);
        }
        let secrets = Secrets::parse("user=ann\n[CreateVolume]\nuser=bob\n").unwrap();
        assert_eq!(secrets.of(Rpc::CreateVolume)["user"], "bob");
        assert_eq!(secrets.of(Rpc::DeleteVolume)["user"], "ann");
        assert!(format!("{secrets:?}").contains("user") && !format!("{secrets:?}").contains("ann"));
    }

    #[test]
    fn errors_do_not_show_what_is_there() {
        for text in
            [r#"{"user": ["canary"]}"#, r#"{"user": canary"#, "canary\n", "[canary]", "{\"a\": \"b\"} canary"]
        {
            let error = Secrets::parse(text).unwrap_err();
            assert!(error.contains("line 1") && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn values_are_hidden_wherever_they_stand() {
        let secrets = Secrets::parse("a=canary\nb=canary-and-more\nc=abc\nd=").unwrap();
        let hidden = secrets.hidden();
        assert_eq!(hidden.scrub("xcanaryx canary-and-more"), "x***x ***");
        assert_eq!(hidden.scrub("abc 'abc' abcabc abcd"), "*** '***' abcabc abcd");
        assert!(!format!("{hidden:?}").contains("canary"));
    }

    #[test]
    fn cheap_forms_are_hidden_too() {
        let mut hidden = Hidden::default();
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
}
