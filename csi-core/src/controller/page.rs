//! Pages of a listing, and what the spec asks of each.

use crate::{Error, Result, Token};

/// A page of a listing, and where the next one starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// At most as many as the caller asked for.
    pub entries: Vec<T>,
    /// Where to go on; `None` after the last page.
    pub next_token: Option<Token>,
}

impl<T> Page<T> {
    /// The entries and the token on the wire, once the page keeps the rules: no more entries than were asked for,
    /// where a number was; and a token that leads on.
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
