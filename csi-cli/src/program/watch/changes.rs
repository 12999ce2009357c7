//! The known health, and what of it begins, changes and ends.

use std::collections::BTreeMap;
use std::fmt;

use csi_proto::escape;
use serde_json::json;
use tonic::{Code, Status};

use super::sources::Source;
use crate::lifecycle::Hidden;
use crate::program::output::code_name;

/// One problem. The message for people is not part of it, because it can change while the problem lasts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Trouble {
    /// Who reports it: the plugin, its controller or its node.
    pub(crate) seen_by: &'static str,
    /// The volume's id, or another name of what is unhealthy.
    pub(crate) subject: String,
    pub(crate) status: String,
    pub(crate) reason: String,
}

/// All problems that one source reports, with their messages for people.
pub(crate) type Troubles = BTreeMap<Trouble, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Begins,
    Changes,
    Ends,
    /// No problem is left, or there was none from the start.
    AllWell,
}

/// A line of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    what: What,
    trouble: Option<Trouble>,
    message: String,
}

/// The last report of each source.
#[derive(Debug, Default)]
pub(crate) struct Known {
    told: BTreeMap<Source, Troubles>,
    /// The calls that failed.
    unanswered: BTreeMap<Source, Troubles>,
    said_well: bool,
}

impl Known {
    /// Whether there is no problem.
    pub(crate) fn is_well(&self) -> bool {
        self.told.values().chain(self.unanswered.values()).all(BTreeMap::is_empty)
    }

    /// Takes an answer or a failure. After a failure the earlier report stays valid.
    pub(crate) fn learn(&mut self, source: &Source, answer: Result<Troubles, Status>) -> Vec<Event> {
        let (told, unanswered) = match answer {
            Ok(troubles) => (Some(troubles), Troubles::new()),
            Err(status) => {
                // The text of a connection error differs between tries, so it is replaced by a fixed one.
                let (code, reason, message) = match std::error::Error::source(&status) {
                    Some(_) => (Code::Unavailable, "NotReached", "no process answers on the socket"),
                    None => (status.code(), "NotAnswered", status.message()),
                };
                let trouble = Trouble {
                    seen_by: "csi",
                    subject: source.to_string(),
                    status: code_name(code),
                    reason: reason.to_owned(),
                };
                (None, Troubles::from([(trouble, message.to_owned())]))
            }
        };
        let mut events = replace(&mut self.unanswered, source, unanswered);
        events.extend(told.into_iter().flat_map(|told| replace(&mut self.told, source, told)));
        events
    }

    /// Called after a round. Returns an event if all has become well.
    pub(crate) fn rounded(&mut self) -> Option<Event> {
        let is_new = self.is_well() && !self.said_well;
        self.said_well = self.is_well();
        is_new.then(|| Event { what: What::AllWell, trouble: None, message: "no problems".to_owned() })
    }
}

fn replace(all: &mut BTreeMap<Source, Troubles>, source: &Source, new: Troubles) -> Vec<Event> {
    let old = all.get(source).cloned().unwrap_or_default();
    let event = |what, trouble: &Trouble, message: &str| Event {
        what,
        trouble: Some(trouble.clone()),
        message: message.to_owned(),
    };
    let ended = old.iter().filter(|(trouble, _)| !new.contains_key(*trouble));
    let mut events: Vec<Event> =
        ended.map(|(trouble, message)| event(What::Ends, trouble, message)).collect();
    for (trouble, message) in &new {
        match old.get(trouble) {
            None => events.push(event(What::Begins, trouble, message)),
            Some(before) if before != message => events.push(event(What::Changes, trouble, message)),
            Some(_) => {}
        }
    }
    all.insert(source.clone(), new);
    events
}

impl Event {
    /// The event without these values.
    pub(crate) fn scrubbed(&self, hidden: &Hidden) -> Self {
        let clean = |text: &str| hidden.scrub(text);
        let trouble = self.trouble.as_ref().map(|trouble| Trouble {
            seen_by: trouble.seen_by,
            subject: clean(&trouble.subject),
            status: trouble.status.clone(),
            reason: clean(&trouble.reason),
        });
        Self { what: self.what, trouble, message: clean(&self.message) }
    }

    pub(crate) fn json(&self, time: &str) -> serde_json::Value {
        let Some(trouble) = &self.trouble else {
            return json!({ "time": time, "event": self.what.to_string() });
        };
        json!({
            "time": time,
            "event": self.what.to_string(),
            "seenBy": trouble.seen_by,
            "subject": trouble.subject,
            "status": trouble.status,
            "reason": trouble.reason,
            "message": self.message,
        })
    }

    pub(crate) fn line(&self, time: &str) -> String {
        let mark = match self.what {
            What::Begins => '+',
            What::Changes => '~',
            What::Ends => '-',
            What::AllWell => '=',
        };
        let Some(trouble) = &self.trouble else { return format!("{time} {mark} {}", self.message) };
        let Trouble { seen_by, subject, status, reason } = trouble;
        // Escaped before the columns are aligned.
        let (subject, reason) = (escape::terminal(subject), escape::terminal(reason));
        let line = format!("{time} {mark} {seen_by:<10} {subject:<20} {status:<12} {reason}");
        match self.message.as_str() {
            "" => line.trim_end().to_owned(),
            message => format!("{line}: {message}"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begins => "begins",
            Self::Changes => "changes",
            Self::Ends => "ends",
            Self::AllWell => "well",
        })
    }
}

/// The time in the form of RFC 3339, in UTC and whole seconds.
pub(crate) fn now() -> String {
    let now = prost_types::Timestamp::from(std::time::SystemTime::now());
    prost_types::Timestamp { nanos: 0, ..now }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn troubles(all: &[(&str, &str)]) -> Troubles {
        let one = |(reason, message): &(&str, &str)| {
            let trouble = Trouble {
                seen_by: "node",
                subject: "pvc-1".to_owned(),
                status: "DEGRADED".to_owned(),
                reason: (*reason).to_owned(),
            };
            (trouble, (*message).to_owned())
        };
        all.iter().map(one).collect()
    }

    fn lines(events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let short = |event: Event| event.line("T").split_whitespace().collect::<Vec<_>>().join(" ");
        events.into_iter().map(short).collect()
    }

    #[test]
    fn what_begins_changes_and_ends_is_told_once() {
        let (mut known, source) = (Known::default(), Source::Storage);
        assert_eq!(lines(known.learn(&source, Ok(troubles(&[])))), [""; 0]);
        assert_eq!(lines(known.rounded()), ["T = no problems"]);
        assert_eq!(lines(known.rounded()), [""; 0]);
        let begun = known.learn(&source, Ok(troubles(&[("Slow", "a"), ("Full", "b")])));
        assert_eq!(lines(begun), ["T + node pvc-1 DEGRADED Full: b", "T + node pvc-1 DEGRADED Slow: a"]);
        assert!(!known.is_well() && known.rounded().is_none());
        let changed = known.learn(&source, Ok(troubles(&[("Slow", "c")])));
        assert_eq!(lines(changed), ["T - node pvc-1 DEGRADED Full: b", "T ~ node pvc-1 DEGRADED Slow: c"]);
        assert_eq!(lines(known.learn(&source, Ok(troubles(&[("Slow", "c")])))), [""; 0]);
        assert_eq!(lines(known.learn(&source, Ok(troubles(&[])))), ["T - node pvc-1 DEGRADED Slow: c"]);
        assert_eq!(lines(known.rounded()), ["T = no problems"]);
    }

    #[test]
    fn who_does_not_answer_ends_nothing() {
        let (mut known, source) = (Known::default(), Source::Storage);
        known.learn(&source, Ok(troubles(&[("Slow", "a")])));
        let failed = known.learn(&source, Err(Status::unavailable("gone")));
        assert_eq!(lines(failed), ["T + csi NodeGetStorageHealth UNAVAILABLE NotAnswered: gone"]);
        assert!(known.learn(&source, Err(Status::unavailable("gone"))).is_empty());
        let back = known.learn(&source, Ok(troubles(&[("Slow", "a")])));
        assert_eq!(lines(back), ["T - csi NodeGetStorageHealth UNAVAILABLE NotAnswered: gone"]);
    }

    #[test]
    fn secrets_are_not_told() {
        let (mut known, source) = (Known::default(), Source::Storage);
        let mut hidden = Hidden::default();
        hidden.add(["canary"]);
        let events = known.learn(&source, Ok(troubles(&[("Slow", "canary\x1b[2J")])));
        let event = events[0].scrubbed(&hidden);
        for text in [event.line("T"), event.json("T").to_string()] {
            assert!(!text.contains("canary") && text.contains("***"), "{text}");
        }
    }
}
