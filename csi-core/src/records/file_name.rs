//! An id as the name of its record's file, and back.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Error, Result};
use crate::types::percent;

const SUFFIX: &str = ".json";
/// The longest name of a file on most filesystems is 255 bytes.
const MAX_BYTES: usize = 255 - SUFFIX.len();

/// The name of the file for this id.
pub(super) fn encode(id: &str) -> Result<String> {
    let is_escaped = |at, character: char| {
        matches!(character, '/' | '%')
            || character.is_ascii_control()
            || at == 0 && matches!(character, '.' | '=')
    };
    let mut name = percent::encode(id, is_escaped);
    if name.len() > MAX_BYTES {
        name = format!("={}", URL_SAFE_NO_PAD.encode(id));
    }
    match name.len() {
        0 => Err(Error::invalid("id", "of a record must not be empty")),
        1..=MAX_BYTES => Ok(name + SUFFIX),
        _ => Err(Error::invalid("id", format!("of a record has {} bytes, the limit is 186", id.len()))),
    }
}

/// The id of the file with this name; `None` if no id has it.
pub(super) fn decode(name: &str) -> Option<String> {
    let text = name.strip_suffix(SUFFIX)?;
    let id = match text.strip_prefix('=') {
        Some(encoded) => String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?,
        None => percent::decode(text)?,
    };
    // Another text that decodes to the same id.
    encode(&id).ok().filter(|canonical| canonical == name).map(|_| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_ids_stay_readable_and_no_id_leaves_the_directory() {
        for (id, name) in [
            ("pvc-1", "pvc-1.json"),
            ("名前", "名前.json"),
            ("..", "%2E..json"),
            ("../a", "%2E.%2Fa.json"),
            ("=a%", "%3Da%25.json"),
            ("a\nb\0", "a%0Ab%00.json"),
        ] {
            assert_eq!(encode(id).unwrap(), name);
        }
        for foreign in
            ["a", ".json", "a.txt", "a%2f.json", "a%41.json", "=YQ.json", "%.json", "..json", "=.json"]
        {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
        let error = encode("").unwrap_err().to_string();
        assert_eq!(error, "id: of a record must not be empty");
        assert!(encode(&"/".repeat(186)).is_ok());
        let error = encode(&"/".repeat(187)).unwrap_err().to_string();
        assert_eq!(error, "id: of a record has 187 bytes, the limit is 186");
    }

    proptest! {
        #[test]
        fn each_id_of_the_spec_has_one_file_and_comes_back(id in "(\\PC|[/%.=\\x00-\\x1f]){1,128}") {
            prop_assume!(id.len() <= 128);
            let name = encode(&id).unwrap();
            prop_assert!(name.len() <= 255 && !name.starts_with('.') && !name.contains(['/', '\0']), "{}", name);
            prop_assert_eq!(decode(&name), Some(id));
        }
    }
}
