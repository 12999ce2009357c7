//! Pages of a listing, and the spec's rules for each.

use prost::Message;
use prost::encoding::encoded_len_varint;

use crate::call::MAX_ANSWER_BYTES;
use crate::error::{Error, Result};
use crate::types::Token;

/// The prefix of the tokens that this module makes; it identifies their format.
pub(super) const VERSION: &str = "k1:";
/// More than the bytes of a message beside its entries: its token has at most 128.
const BYTES_WITHOUT_ENTRIES: usize = 256;

/// A page of a listing, and where the next one starts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<T> {
    /// The entries, at most as many as the caller requested.
    pub entries: Vec<T>,
    /// Where the next page starts; `None` after the last page.
    pub next_token: Option<Token>,
    /// The keys of a [`Pager`](crate::controller::Pager)'s entries, by which the page can be cut; empty if
    /// they are not known.
    keys: Vec<String>,
}

impl<T> Page<T> {
    /// Creates a page of these entries. `next_token` says where the next page starts; `None` after the last
    /// page.
    pub fn new(entries: Vec<T>, next_token: Option<Token>) -> Self {
        Self { entries, next_token, keys: Vec::new() }
    }

    pub(super) fn with_keys(self, keys: Vec<String>) -> Self {
        Self { keys, ..self }
    }

    /// Converts the entries, one by one. A page of a [`Pager`](crate::controller::Pager) can still be cut
    /// where it has more bytes than callers accept, unlike a page that is built again by [`new`](Self::new).
    ///
    /// # Errors
    /// The first of `convert`.
    pub fn try_map<U>(self, convert: impl FnMut(T) -> Result<U>) -> Result<Page<U>> {
        let entries = self.entries.into_iter().map(convert).collect::<Result<_>>()?;
        Ok(Page { entries, next_token: self.next_token, keys: self.keys })
    }

    /// The entries and the token on the wire, after a check of the rules: no more entries than requested,
    /// and a token that differs from the one in the request. A page with more bytes than callers accept is cut if its
    /// keys are known, and an error otherwise.
    // spec: list-volumes.max-entries, controller-list-volume-health.pages, list-snapshots.max-entries
    pub(crate) fn answer<W: Message>(
        self,
        max_entries: i32,
        starting_token: &str,
        mut entry: impl FnMut(T) -> Result<W>,
    ) -> Result<(Vec<W>, String)> {
        let count = self.entries.len();
        if max_entries > 0 && i32::try_from(count).is_ok_and(|count| count > max_entries) {
            return Err(Error::broken(format!("entries: {count} of them, max_entries is {max_entries}")));
        }
        let mut next_token = self.next_token;
        let mut entries = Vec::new();
        let mut bytes = BYTES_WITHOUT_ENTRIES;
        for found in self.entries {
            let found = entry(found)?;
            let length = found.encoded_len();
            bytes += 1 + encoded_len_varint(length as u64) + length;
            if bytes > MAX_ANSWER_BYTES {
                next_token = Some(token_before(entries.len(), &self.keys, length)?);
                break;
            }
            entries.push(found);
        }
        let next_token = next_token.map_or_else(String::new, String::from);
        if !next_token.is_empty() && next_token == starting_token {
            return Err(Error::broken("next_token is the starting_token: the listing would never end"));
        }
        Ok((entries, next_token))
    }
}

/// The token of a page that is cut before this entry, which has so many bytes.
fn token_before(index: usize, keys: &[String], bytes: usize) -> Result<Token> {
    if index == 0 {
        let text =
            format!("entries[0]: has {bytes} bytes, and callers accept {MAX_ANSWER_BYTES} in an answer");
        return Err(Error::Internal(text.into()));
    }
    match (keys.get(index - 1), keys.get(index)) {
        (Some(last), Some(next)) => token_between(last, next),
        _ => Err(Error::Internal(
            format!(
                "entries: the first {index} have as many bytes as callers accept in an answer ({MAX_ANSWER_BYTES}): \
                 return a shorter page, or the page of a Pager, which is cut here"
            )
            .into(),
        )),
    }
}

/// The token for a page that ends with `last` and is followed by `next`: the shortest start of `next` that
/// differs from `last`, so that long keys make short tokens.
pub(super) fn token_between(last: &str, next: &str) -> Result<Token> {
    let alike = next.chars().zip(last.chars()).take_while(|(one, other)| one == other);
    let alike: usize = alike.map(|(character, _)| character.len_utf8()).sum();
    // `next` is greater, so it has a character after the common prefix.
    let end = alike + next[alike..].chars().next().map_or(0, char::len_utf8);
    Token::new(format!("{VERSION}{}", &next[..end])).map_err(|_| {
        Error::Internal(format!(
            "the keys {last:?} and {next:?} differ too late for a token of 128 bytes: page by shorter ones"
        ).into())
    })
}
