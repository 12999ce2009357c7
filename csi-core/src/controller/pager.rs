//! Pages of any ordered entries.

use std::num::NonZeroU32;
use std::ops::Bound;

use super::page::{Page, VERSION, token_between};
use crate::error::{Error, Result};
use crate::types::Token;

/// Cuts pages from entries that are sorted by key.
///
/// A token names a point between two keys, not a position. When entries are added or removed between two
/// pages, the next page neither repeats nor omits an entry that stayed. A token stays valid as long as the
/// driver's keys do, across restarts and on other instances.
///
/// ```
/// use csi_core::controller::Pager;
/// use std::collections::BTreeMap;
///
/// let mut volumes = BTreeMap::from([("a", 1), ("b", 2), ("c", 3)]);
/// let pager = Pager::new(2.try_into().ok(), None)?;
/// let first = pager.page(volumes.range::<str, _>(pager.range()).map(|(key, size)| (*key, *size)))?;
/// assert_eq!(first.entries, [1, 2]);
///
/// volumes.remove("a");
/// let pager = Pager::new(None, first.next_token.as_ref())?;
/// let last = pager.page(volumes.range::<str, _>(pager.range()).map(|(key, size)| (*key, *size)))?;
/// assert_eq!((last.entries, last.next_token), (vec![3], None));
/// # Ok::<(), csi_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pager {
    most: usize,
    from: Option<String>,
}

impl Pager {
    /// Creates the pager for a request, from its `max_entries` and its `starting_token`.
    ///
    /// - spec: `list-volumes.bad-token`, `list-snapshots.bad-token`
    ///
    /// # Errors
    /// [`Error::InvalidToken`] (ABORTED) for a token that no pager issued, or one of another version: the
    /// caller starts from the beginning.
    pub fn new(max_entries: Option<NonZeroU32>, starting_token: Option<&Token>) -> Result<Self> {
        let from =
            starting_token.map(|token| token.as_str().strip_prefix(VERSION).ok_or(Error::InvalidToken));
        Ok(Self { most: max_entries.map_or(usize::MAX, size), from: from.transpose()?.map(str::to_owned) })
    }

    /// Limits the page to this many entries, even if the caller accepts more: for drivers whose entries are
    /// large or expensive.
    #[must_use]
    pub fn at_most(mut self, entries: NonZeroU32) -> Self {
        self.most = self.most.min(size(entries));
        self
    }

    /// The page starts at the first key that is not less than this one; `None` means the beginning. For a
    /// source that is queried by key.
    pub fn from(&self) -> Option<&str> {
        self.from.as_deref()
    }

    /// The same limit as a range of a `BTreeMap` with text keys.
    pub fn range(&self) -> (Bound<&str>, Bound<&str>) {
        (self.from().map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded)
    }

    /// Cuts the page from keys and entries. They must be sorted by key, bytewise, each key once. They can
    /// begin before the page: earlier entries are skipped.
    ///
    /// It takes one entry more than the page holds from the source, to know whether another page follows. Where the
    /// page has more bytes than gRPC's callers accept (4 MiB), the framework cuts it and sends the token of the rest.
    ///
    /// # Errors
    /// [`Error::Internal`] for unsorted keys, or for keys that differ only after their first 124 bytes,
    /// which is too late for a token. Both are faults of the driver.
    pub fn page<K: AsRef<str>, T>(&self, entries: impl IntoIterator<Item = (K, T)>) -> Result<Page<T>> {
        let mut page = Vec::new();
        let mut keys = Vec::new();
        let mut last: Option<K> = None;
        for (key, entry) in entries {
            if let Some(before) = last.as_ref().filter(|before| before.as_ref() >= key.as_ref()) {
                let before = before.as_ref();
                let key = key.as_ref();
                return Err(Error::Internal(
                    format!(
                        "a listing gives {key:?} after {before:?}: sort it by key, bytewise, each key once"
                    )
                    .into(),
                ));
            }
            if page.len() == self.most {
                let before = last.as_ref().map_or("", AsRef::as_ref);
                let next_token = token_between(before, key.as_ref())?;
                return Ok(Page::new(page, Some(next_token)).with_keys(keys));
            }
            if self.from().is_none_or(|from| key.as_ref() >= from) {
                keys.push(key.as_ref().to_owned());
                page.push(entry);
            }
            last = Some(key);
        }
        Ok(Page::new(page, None).with_keys(keys))
    }
}

fn size(entries: NonZeroU32) -> usize {
    usize::try_from(entries.get()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn page(keys: &BTreeSet<String>, most: u32, token: Option<&Token>) -> Page<String> {
        let pager = Pager::new(NonZeroU32::new(most), token).unwrap();
        pager.page(keys.range::<str, _>(pager.range()).map(|key| (key, key.clone()))).unwrap()
    }

    // spec: list-volumes.bad-token, list-snapshots.bad-token
    #[test]
    fn foreign_and_old_tokens_are_invalid() {
        for token in ["7", "k0:a", "invalid-token", "K1:a", "k1"] {
            let refused = Pager::new(None, Some(&Token::new(token).unwrap()));
            assert!(matches!(refused, Err(Error::InvalidToken)), "{token}");
        }
    }

    #[test]
    fn keys_of_125_bytes_always_fit() {
        let keys: BTreeSet<String> = ["a", "b"].map(|end| "é".repeat(62) + end).into();
        let first = page(&keys, 1, None);
        assert_eq!(first.next_token.as_ref().unwrap().as_str().len(), 128);
        assert_eq!(page(&keys, 1, first.next_token.as_ref()).entries, ["é".repeat(62) + "b"]);
        let long = ["a", "b"].map(|end| ("k".repeat(125) + end, ()));
        let error = Pager::new(NonZeroU32::new(1), None).unwrap().page(long).unwrap_err();
        assert!(error.to_string().contains("page by shorter ones"), "{error}");
    }

    // spec: list-volumes.max-entries, list-snapshots.max-entries
    #[test]
    fn a_page_is_no_larger_than_the_driver_wants() {
        let pager = Pager::new(NonZeroU32::new(9), None).unwrap().at_most(NonZeroU32::new(2).unwrap());
        assert_eq!(pager.page([("a", 1), ("b", 2), ("c", 3)]).unwrap().entries, [1, 2]);
    }

    #[test]
    fn a_source_out_of_order_is_an_error() {
        let pager = Pager::new(None, None).unwrap();
        assert!(pager.page([("b", 1), ("a", 2)]).is_err());
        assert!(pager.page([("a", 1), ("a", 2)]).is_err());
    }

    proptest! {
        // spec: list-volumes.all, list-snapshots.all
        #[test]
        fn what_stays_is_listed_once_whatever_comes_and_goes(
            stay in btree_set("[ab/é]{0,6}", 0..30),
            churn in vec(btree_set("[ab/é]{0,6}", 0..8), 1..40),
            most in 1_u32..5,
        ) {
            let mut listed = Vec::new();
            let mut token = None;
            for round in 0.. {
                let passing = &churn[round % churn.len()];
                let now: BTreeSet<String> = stay.union(passing).cloned().collect();
                let page = page(&now, most, token.as_ref());
                prop_assert!(page.entries.len() <= most as usize);
                listed.extend(page.entries);
                match page.next_token {
                    Some(next) => token = Some(next),
                    None => break,
                }
            }
            prop_assert!(listed.windows(2).all(|pair| pair[0] < pair[1]), "{listed:?}");
            let listed: BTreeSet<String> = listed.into_iter().collect();
            prop_assert!(stay.is_subset(&listed));
        }

        #[test]
        fn a_source_that_begins_too_early_gives_the_same_page(
            keys in btree_set("[a-c]{0,4}", 0..20), most in 1_u32..5, from in "[a-c]{0,3}",
        ) {
            let token = Token::new(format!("{VERSION}{from}")).unwrap();
            let whole = Pager::new(NonZeroU32::new(most), Some(&token)).unwrap();
            let whole = whole.page(keys.iter().map(|key| (key, key.clone()))).unwrap();
            prop_assert_eq!(whole, page(&keys, most, Some(&token)));
        }
    }
}
