//! What a daemon must not print into a log: each secret that it was ever given, whole and in parts.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A word of this length of a secret, or a longer one, is hidden. Shorter words are found in any text.
const MIN_WORD: usize = 4;
/// Values of the environment are mostly no secrets: `RUST_LOG=info`.
const MIN_VALUE: usize = 8;
/// A part of this length of a secret's word, or a longer one, is hidden too.
const PART: usize = 8;
/// When words have more bytes, those that were added first are no longer hidden.
const MOST_BYTES: usize = 1 << 20;

/// The words that must not be in a log line or an error. What is added is hidden by all copies of this value.
#[derive(Clone, Default)]
pub(super) struct Secrets(Arc<Mutex<Hidden>>);

impl Secrets {
    /// A secret is hidden as a whole, and so are each word in it (`user:password`, JSON) and parts of the words. A value is
    /// hidden as a whole only.
    pub(super) fn new<'s>(
        secrets: impl Iterator<Item = &'s [u8]>,
        values: impl Iterator<Item = &'s [u8]>,
    ) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let is_between = |letter: char| !letter.is_alphanumeric() && !"+/_-.~=".contains(letter);
        let mut hidden = Hidden::default();
        for whole in secrets.map(text) {
            let words = whole.split(is_between).chain([whole.trim()]);
            words.filter(|word| word.len() >= MIN_WORD).for_each(|word| hidden.add(word, true));
        }
        let values = values.map(text).filter(|value| value.len() >= MIN_VALUE);
        values.for_each(|value| hidden.add(&value, false));
        Self(Arc::new(Mutex::new(hidden)))
    }

    /// Hides those of another one too.
    pub(super) fn add(&self, other: &Self) {
        let words = other.hidden().words.clone();
        let mut own = self.hidden();
        words.iter().for_each(|word| own.add(&word.text, word.has_parts));
    }

    pub(super) fn hide(&self, line: &str) -> String {
        self.hidden().hide(line)
    }

    fn hidden(&self) -> MutexGuard<'_, Hidden> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[derive(Default)]
struct Hidden {
    /// In the order in which they were added.
    words: VecDeque<Word>,
    /// Those of the words that have parts.
    parts: HashSet<[u8; PART]>,
}

#[derive(Clone)]
struct Word {
    text: String,
    has_parts: bool,
}

impl Word {
    fn parts(&self) -> impl Iterator<Item = [u8; PART]> {
        let windows = self.text.as_bytes().windows(if self.has_parts { PART } else { usize::MAX });
        windows.filter_map(|part| part.try_into().ok())
    }
}

impl Hidden {
    fn add(&mut self, text: &str, has_parts: bool) {
        if self.words.iter().any(|known| known.text == text && known.has_parts >= has_parts) {
            return;
        }
        let word = Word { text: text.to_owned(), has_parts };
        self.parts.extend(word.parts());
        self.words.push_back(word);
        let mut bytes: usize = self.words.iter().map(|word| word.text.len()).sum();
        if bytes > MOST_BYTES {
            while bytes > MOST_BYTES
                && let Some(first) = self.words.pop_front()
            {
                bytes -= first.text.len();
            }
            self.parts = self.words.iter().flat_map(Word::parts).collect();
        }
    }

    fn hide(&self, line: &str) -> String {
        let mut is_hidden = vec![false; line.len()];
        // The others are among the parts.
        for word in self.words.iter().filter(|word| !word.has_parts || word.text.len() < PART) {
            for (at, found) in line.match_indices(&word.text) {
                is_hidden[at..at + found.len()].fill(true);
            }
        }
        for (at, part) in line.as_bytes().windows(PART).enumerate() {
            if self.parts.contains(part) {
                is_hidden[at..at + PART].fill(true);
            }
        }
        let mut shown = String::new();
        let mut was_hidden = false;
        for (at, letter) in line.char_indices() {
            let is_hidden = is_hidden[at..at + letter.len_utf8()].contains(&true);
            match (was_hidden, is_hidden) {
                (_, false) => shown.push(letter),
                (false, true) => shown.push_str("***"),
                (true, true) => {}
            }
            was_hidden = is_hidden;
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_whole_and_in_parts() {
        let values = [&b"from the environment"[..], b"info"];
        let given = [&b"AKIA123:pa/ss+word\n"[..], b"eyJhbGciOiJIUzI1NiJ9.eyJ"];
        let secrets = Secrets::new(given.into_iter(), values.into_iter());
        for (line, shown) in [
            ("login AKIA123:pa/ss+word failed", "login *** failed"),
            ("no such key: AKIA123", "no such key: ***"),
            ("password='pa/ss+word'", "password='***'"),
            ("got from the environment, info", "got ***, info"),
            ("the environment is not all of it", "the environment is not all of it"),
            ("signed with eyJhbGciOiJIUz…", "signed with ***…"),
            ("è rest: JIUzI1NiJ9.eyJ!", "è rest: ***!"),
        ] {
            assert_eq!(secrets.hide(line), shown);
        }
        assert_eq!(Secrets::new([].into_iter(), [].into_iter()).hide("line"), "line");
        assert_eq!(Secrets::new([&b""[..]].into_iter(), [].into_iter()).hide("line"), "line");
    }
}
