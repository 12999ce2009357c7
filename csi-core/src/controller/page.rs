//! Pages of a listing, and the spec's rules for each.

use crate::{Error, Result, Token};

/// A page of a listing, and where the next one starts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<T> {
    /// The entries, at most as many as the caller requested.
    pub entries: Vec<T>,
    /// Where the next page starts; `None` after the last page.
    pub next_token: Option<Token>,
}

impl<T> Page<T> {
    /// Creates a page of these entries. `next_token` says where the next page starts; `None` after the last
    /// page.
    pub fn new(entries: Vec<T>, next_token: Option<Token>) -> Self {
        Self { entries, next_token }
    }

    /// The entries and the token on the wire, after a check of the rules: no more entries than requested,
    /// and a token that differs from the one in the request.
    // spec: list-volumes.max-entries, controller-list-volume-health.pages, list-snapshots.max-entries
    pub(crate) fn answer<W>(
        self,
        max_entries: i32,
        starting_token: &str,
        entry: impl FnMut(T) -> Result<W>,
    ) -> Result<(Vec<W>, String)> {
        let count = self.entries.len();
        if max_entries > 0 && i32::try_from(count).is_ok_and(|count| count > max_entries) {
            return Err(Error::broken(format!("entries: {count} of them, max_entries is {max_entries}")));
        }
        let next_token = self.next_token.map_or_else(String::new, String::from);
        if !next_token.is_empty() && next_token == starting_token {
            return Err(Error::broken("next_token is the starting_token: the listing would never end"));
        }
        let entries = self.entries.into_iter().map(entry).collect::<Result<_>>()?;
        Ok((entries, next_token))
    }
}
