//! Which events are written, by the rules and numbers of client-go's event correlator.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

use super::{Report, Severity};

/// How many different texts one object and reason has in [`WINDOW`] before they are summarised.
const TEXTS: usize = 10;
/// After this time without an event of its kind, an event counts as new.
const WINDOW: Duration = Duration::from_secs(600);
/// How many writes an object has at once.
const BURST: f64 = 25.0;
/// How long until an object has one more.
const REFILL: Duration = Duration::from_secs(300);
/// How many objects are remembered. The one with the oldest event is forgotten first.
const OBJECTS: usize = 1024;

/// An object: its uid, kind, namespace and name.
type Object = [String; 4];

/// What makes two events the same: the severity, the reason and the text, or no text for a summary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    severity: Severity,
    reason: String,
    /// A hash of the text.
    text: Option<u64>,
}

/// The place of an event in the memory.
#[derive(Debug)]
pub(super) struct Key {
    object: Object,
    kind: Kind,
}

#[derive(Debug)]
pub(super) enum Verdict {
    /// Write a new event, which can stand for several texts.
    Create { key: Key, is_summary: bool },
    /// Count on this event.
    Count { key: Key, event: String, count: i32 },
    /// Write nothing.
    Drop,
}

#[derive(Debug)]
struct Known {
    /// The written events, and how often each has happened.
    events: HashMap<Kind, (String, i32, Instant)>,
    tokens: f64,
    refilled: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    objects: HashMap<Object, Known>,
}

impl Limits {
    pub(super) fn judge(&mut self, report: &Report, now: Instant) -> Verdict {
        let object = &report.regarding;
        let object: Object = [&object.uid, &object.kind, &object.namespace, &object.name]
            .map(|part| part.clone().unwrap_or_default());
        self.make_room(&object);
        let known = self.objects.entry(object.clone());
        let known = known.or_insert_with(|| Known { events: HashMap::new(), tokens: BURST, refilled: now });
        known.events.retain(|_, (.., last)| now.duration_since(*last) < WINDOW);
        let refill = now.duration_since(known.refilled).as_secs_f64() / REFILL.as_secs_f64();
        known.tokens = (known.tokens + refill).min(BURST);
        known.refilled = now;
        if known.tokens < 1.0 {
            return Verdict::Drop;
        }
        known.tokens -= 1.0;

        let mut kind =
            Kind { severity: report.severity, reason: report.reason.clone(), text: Some(hash(&report.note)) };
        let is_similar = |one: &&Kind| one.severity == kind.severity && one.reason == kind.reason;
        let texts = known.events.keys().filter(is_similar).filter(|one| one.text.is_some()).count();
        let is_summary = texts >= TEXTS && !known.events.contains_key(&kind);
        if is_summary {
            kind.text = None;
        }
        let key = Key { object, kind };
        match known.events.get(&key.kind) {
            Some((event, count, _)) => {
                Verdict::Count { event: event.clone(), count: count.saturating_add(1), key }
            }
            None => Verdict::Create { key, is_summary },
        }
    }

    /// Remembers an event that was created, or counted once more.
    pub(super) fn written(&mut self, Key { object, kind }: Key, event: String, now: Instant) {
        let Some(known) = self.objects.get_mut(&object) else { return };
        let count = match known.events.get(&kind) {
            Some((before, count, _)) if *before == event => count.saturating_add(1),
            _ => 1,
        };
        known.events.insert(kind, (event, count, now));
    }

    fn make_room(&mut self, object: &Object) {
        if self.objects.len() < OBJECTS || self.objects.contains_key(object) {
            return;
        }
        let oldest = self.objects.iter().min_by_key(|(_, known)| known.refilled);
        if let Some(oldest) = oldest.map(|(object, _)| object.clone()) {
            self.objects.remove(&oldest);
        }
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
