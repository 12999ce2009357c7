//! The pages of a list. Detects a list that never ends because a token repeats.

use std::collections::HashSet;

/// The largest number of consecutive pages without an entry. A driver that filters its list can return some.
const MAX_EMPTY_PAGES: u32 = 1000;

#[derive(Debug, Default)]
pub(crate) struct Pages {
    tokens: HashSet<String>,
    empty: u32,
}

impl Pages {
    pub(crate) fn after(starting_token: &str) -> Self {
        Self { tokens: HashSet::from([starting_token.to_owned()]), empty: 0 }
    }

    /// Takes the `next_token` of a page, and returns it unless this page is the last one.
    ///
    /// # Errors
    /// As text, when the list would not end: a token was repeated, or too many pages had no entry.
    pub(crate) fn next(&mut self, token: String, has_entries: bool) -> Result<Option<String>, String> {
        if token.is_empty() {
            return Ok(None);
        }
        self.empty = if has_entries { 0 } else { self.empty + 1 };
        if self.empty > MAX_EMPTY_PAGES {
            return Err(format!("stopped after {MAX_EMPTY_PAGES} pages without an entry"));
        }
        if self.tokens.insert(token.clone()) {
            Ok(Some(token))
        } else {
            Err("the driver repeated a next_token: the list would never end".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_by_itself_or_where_it_turns_in_a_circle() {
        let mut pages = Pages::default();
        assert_eq!(pages.next("a".into(), true), Ok(Some("a".into())));
        assert_eq!(pages.next("b".into(), false), Ok(Some("b".into())));
        assert_eq!(pages.next(String::new(), true), Ok(None));
        assert!(pages.next("a".into(), true).unwrap_err().contains("repeated a next_token"));
        let mut pages = Pages::default();
        let ended = (0..).find_map(|at| pages.next(format!("{at}"), false).err().map(|why| (at, why)));
        assert!(ended.is_some_and(|(at, why)| at == MAX_EMPTY_PAGES && why.contains("without an entry")));
    }
}
