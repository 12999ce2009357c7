//! Serde over a map of strings: each value is parsed into its field's type.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use csi_proto::escape;
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor, value::MapDeserializer};

use super::wire::Map;
use crate::error::{Error, Result};

/// What happens to keys that a driver's struct does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum UnknownKeys {
    #[default]
    Refused,
    Ignored,
    /// Ignored, with a warning in the log the first time that this process finds the key.
    Warned,
}

/// Parses the map into a `T`; `field` is the map's name for the error.
pub(crate) fn from_map<T: DeserializeOwned>(field: &str, map: &Map, unknown: UnknownKeys) -> Result<T> {
    from_rest(field, map, &[], unknown)
}

/// Parses a map from which these keys have been taken.
pub(super) fn from_rest<T: DeserializeOwned>(
    field: &str,
    map: &Map,
    taken: &[&'static str],
    unknown: UnknownKeys,
) -> Result<T> {
    T::deserialize(Values { map, taken, unknown }).map_err(|failure| failure.of(field))
}

/// The keys of a struct; none of another type.
pub(super) fn keys_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    // It only asks: a struct is never made.
    let _ = T::deserialize(Keys(&mut keys));
    keys
}

/// Why a map does not fit the driver's struct, and the key at fault, if any.
#[derive(Debug)]
struct Failure {
    key: Option<String>,
    reason: String,
}

impl Failure {
    fn of(self, field: &str) -> Error {
        let field = self.key.map_or_else(|| field.to_owned(), |key| format!("{field}[{key}]"));
        Error::invalid(field, self.reason)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Failure {}

impl de::Error for Failure {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self { key: None, reason: reason.to_string() }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { key: Some(field.to_owned()), reason: "is required and missing".to_owned() }
    }
}

struct Values<'a> {
    map: &'a Map,
    /// Keys that another struct has taken from the map.
    taken: &'a [&'static str],
    unknown: UnknownKeys,
}

impl<'a> Values<'a> {
    fn entries(&self) -> MapDeserializer<'a, impl Iterator<Item = (&'a str, Value<'a>)>, Failure> {
        MapDeserializer::new(self.map.iter().map(|(key, text)| (key.as_str(), Value { key, text })))
    }
}

impl<'de> Deserializer<'de> for Values<'de> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_map(self.entries())
    }

    /// A struct names the keys that it knows: any other key is a mistake.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        refuse_unknown(self.map, &[fields, self.taken].concat(), self.unknown)?;
        visitor.visit_map(self.entries())
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Reads the keys of a struct, and fails.
struct Keys<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Keys<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Failure> {
        Err(de::Error::custom("only its keys are asked for"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Refuses a map with keys other than these, or warns of it.
pub(super) fn check_keys(field: &str, map: &Map, known: &[&str]) -> Result<()> {
    refuse_unknown(map, known, UnknownKeys::Refused).map_err(|failure| failure.of(field))
}

fn refuse_unknown(map: &Map, known: &[&str], unknown: UnknownKeys) -> Result<(), Failure> {
    for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
        let near = nearest(key, known.iter().copied());
        let advice = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let reason = format!("is not a parameter of this driver; it knows: {known}{advice}");
        match unknown {
            // Sidecars add keys of their own to such a map, and none that looks like a key of the driver.
            UnknownKeys::Warned if near.is_none() => {
                if is_new(key) {
                    let key = escape::message(key);
                    tracing::warn!("parameters[{key}]: {reason}. It is ignored");
                }
            }
            UnknownKeys::Refused | UnknownKeys::Warned => {
                return Err(Failure { key: Some(key.clone()), reason });
            }
            UnknownKeys::Ignored => {}
        }
    }
    Ok(())
}

/// The known key that this one is a misspelling of, if any: it has the same letters apart from their case and from
/// dashes, or a third of them is wrong at most.
pub(super) fn nearest<'k>(key: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let plain = |text: &str| -> Vec<char> {
        text.chars().filter(|one| one.is_alphanumeric()).flat_map(char::to_lowercase).take(64).collect()
    };
    let key = plain(key);
    let distances = known.map(|known| {
        let other = plain(known);
        (distance(&key, &other), key.len().max(other.len()), known)
    });
    distances
        .filter(|(wrong, length, _)| wrong * 3 <= *length)
        .min_by_key(|(wrong, ..)| *wrong)
        .map(|found| found.2)
}

/// How many letters must be added, removed, replaced or exchanged with the next one to make one text of the other.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// Whether no warning names this key yet. At most 64 keys are remembered, and there is no warning for others.
fn is_new(key: &str) -> bool {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    warned.len() < 64 && warned.insert(key.to_owned())
}

/// One value, with its key for the error.
#[derive(Clone, Copy)]
struct Value<'a> {
    key: &'a str,
    text: &'a str,
}

impl Value<'_> {
    fn name_field(&self, reason: String) -> Failure {
        Failure { key: Some(self.key.to_owned()), reason }
    }
}

impl<'de> IntoDeserializer<'de, Failure> for Value<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parse {
    ($($method:ident => $visit:ident: $type:ty, $what:literal;)+) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            // The value stays out of the message: a secret can be parsed this way too.
            match self.text.trim().parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(self.name_field(concat!("must be ", $what).to_owned())),
            }
        }
    )+ };
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_borrowed_str(self.text).map_err(|Failure { reason, .. }| self.name_field(reason))
    }

    parse! {
        deserialize_bool => visit_bool: bool, "true or false";
        deserialize_i8 => visit_i8: i8, "a whole number";
        deserialize_i16 => visit_i16: i16, "a whole number";
        deserialize_i32 => visit_i32: i32, "a whole number";
        deserialize_i64 => visit_i64: i64, "a whole number";
        deserialize_u8 => visit_u8: u8, "a whole number from 0 to 255";
        deserialize_u16 => visit_u16: u16, "a whole number from 0 to 65535";
        deserialize_u32 => visit_u32: u32, "a whole number, not negative";
        deserialize_u64 => visit_u64: u64, "a whole number, not negative";
        deserialize_f32 => visit_f32: f32, "a number";
        deserialize_f64 => visit_f64: f64, "a number";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor
            .visit_enum(self.text.into_deserializer())
            .map_err(|_: Failure| self.name_field(format!("must be one of: {}", variants.join(", "))))
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        pool: String,
        replicas: Option<u8>,
        #[serde(default)]
        thin: bool,
        tier: Option<Tier>,
    }

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Tier {
        Gold,
        Silver,
    }

    fn parse(pairs: &[(&str, &str)]) -> Result<Params> {
        let map = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        from_map("parameters", &map, UnknownKeys::Refused)
    }

    #[test]
    fn values_become_the_types_of_the_fields() {
        let params = parse(&[("pool", "p1"), ("replicas", "3"), ("thin", "true"), ("tier", "gold")]).unwrap();
        let due = Params { pool: "p1".into(), replicas: Some(3), thin: true, tier: Some(Tier::Gold) };
        assert_eq!(params, due);
        assert_eq!(parse(&[("pool", "p")]).unwrap().replicas, None);
    }

    #[test]
    fn errors_name_the_key_and_not_the_value() {
        let message = |pairs: &[(&str, &str)]| parse(pairs).unwrap_err().to_string();
        assert_eq!(message(&[]), "parameters[pool]: is required and missing");
        assert_eq!(
            message(&[("pool", "p"), ("replicas", "canary")]),
            "parameters[replicas]: must be a whole number from 0 to 255"
        );
        assert_eq!(
            message(&[("pool", "p"), ("tier", "canary")]),
            "parameters[tier]: must be one of: gold, silver"
        );
        assert_eq!(
            message(&[("pool", "p"), ("fsTyp", "canary")]),
            "parameters[fsTyp]: is not a parameter of this driver; it knows: pool, replicas, thin, tier"
        );
    }

    #[test]
    fn a_misspelt_key_is_refused_with_the_nearest_one_in_every_map() {
        let map = |key: &str| {
            Map::from([("pool".to_owned(), "p".to_owned()), (key.to_owned(), "canary".to_owned())])
        };
        for (key, near) in [
            ("replica", "replicas"),
            ("Replicas", "replicas"),
            ("repilcas", "replicas"),
            ("re-plicas", "replicas"),
            ("thinn", "thin"),
            ("teir", "tier"),
            ("pol", "pool"),
        ] {
            for unknown in [UnknownKeys::Refused, UnknownKeys::Warned] {
                let error = from_map::<Params>("secrets", &map(key), unknown).unwrap_err().to_string();
                let due = format!(
                    "secrets[{key}]: is not a parameter of this driver; it knows: pool, replicas, \
                                   thin, tier; did you mean {near}?"
                );
                assert_eq!(error, due);
            }
            let error = check_keys("secrets", &map(key), &["pool", near]).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("did you mean {near}?")) && !error.contains("canary"),
                "{error}"
            );
        }
        let error = check_keys("parameters", &map("x"), &[]).unwrap_err().to_string();
        assert!(error.ends_with("it knows: none"), "{error}");
        // Nothing near: the sidecars' own keys are ignored where they are added.
        from_map::<Params>("parameters", &map("deletionPolicy"), UnknownKeys::Warned).unwrap();
        let error =
            from_map::<Params>("parameters", &map("deletionPolicy"), UnknownKeys::Refused).unwrap_err();
        assert!(!error.to_string().contains("did you mean"), "{error}");
        from_map::<Params>("parameters", &map("replica"), UnknownKeys::Ignored).unwrap();
    }
}
