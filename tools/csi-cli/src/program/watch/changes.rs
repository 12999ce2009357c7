//! The known health, and what of it begins, changes and ends.

use std::collections::BTreeMap;

use csi_proto::escape;
use serde_json::json;
use tonic::{Code, Status};

use super::sources::{Problem, Problems, Source};
use crate::program::output::code_name;
use csi_proto::internal::Redactor;

/// What happens: its mark on a line, and its name in JSON.
type Change = (char, &'static str);
const BEGINS: Change = ('+', "begins");
const CHANGES: Change = ('~', "changes");
const ENDS: Change = ('-', "ends");
/// No problem is left, or there was none from the start.
const ALL_WELL: Change = ('=', "well");

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    change: Change,
    problem: Option<Problem>,
    message: String,
}

#[derive(Debug, Default)]
pub(crate) struct CurrentProblems {
    reported: BTreeMap<Source, Problems>,
    unanswered: BTreeMap<Source, Problems>,
    reported_no_problems: bool,
}

impl CurrentProblems {
    pub(crate) fn has_none(&self) -> bool {
        self.reported.values().chain(self.unanswered.values()).all(BTreeMap::is_empty)
    }

    /// Takes an answer or a failure. After a failure the earlier report stays valid.
    pub(crate) fn update(&mut self, source: &Source, answer: Result<Problems, Status>) -> Vec<Event> {
        let (reported, unanswered) = match answer {
            Ok(problems) => (Some(problems), Problems::new()),
            Err(status) => {
                // The text of a connection error differs between tries, so it is replaced by a fixed one.
                let (code, reason, message) = match std::error::Error::source(&status) {
                    Some(_) => (Code::Unavailable, "NotReached", "no process answers on the socket"),
                    None => (status.code(), "NotAnswered", status.message()),
                };
                let problem = Problem {
                    seen_by: "csi",
                    subject: source.to_string(),
                    status: code_name(code),
                    reason: reason.to_owned(),
                };
                (None, Problems::from([(problem, message.to_owned())]))
            }
        };
        let mut events = replace(&mut self.unanswered, source, unanswered);
        events
            .extend(reported.into_iter().flat_map(|reported| replace(&mut self.reported, source, reported)));
        events
    }

    /// Called after a round. Returns an event if all has become well.
    pub(crate) fn end_round(&mut self) -> Option<Event> {
        let is_new = self.has_none() && !self.reported_no_problems;
        self.reported_no_problems = self.has_none();
        is_new.then(|| Event { change: ALL_WELL, problem: None, message: "no problems".to_owned() })
    }
}

/// The list of all volumes and a volume that is watched by its id can report one problem: it is printed once.
fn replace(all: &mut BTreeMap<Source, Problems>, source: &Source, new: Problems) -> Vec<Event> {
    let elsewhere = |problem: &Problem| {
        all.iter().filter(|(other, _)| *other != source).find_map(|(_, problems)| problems.get(problem))
    };
    let old = all.get(source).cloned().unwrap_or_default();
    let event = |change, problem: &Problem, message: &str| Event {
        change,
        problem: Some(problem.clone()),
        message: message.to_owned(),
    };
    let ended = old.iter().filter(|(problem, _)| !new.contains_key(*problem) && elsewhere(problem).is_none());
    let mut events: Vec<Event> = ended.map(|(problem, message)| event(ENDS, problem, message)).collect();
    for (problem, message) in &new {
        match old.get(problem) {
            None if elsewhere(problem).is_none() => events.push(event(BEGINS, problem, message)),
            Some(before) if before != message && elsewhere(problem) != Some(message) => {
                events.push(event(CHANGES, problem, message));
            }
            _ => {}
        }
    }
    all.insert(source.clone(), new);
    events
}

impl Event {
    pub(crate) fn scrubbed(&self, hidden: &Redactor) -> Self {
        let clean = |text: &str| hidden.scrub(text);
        let problem = self.problem.as_ref().map(|problem| Problem {
            seen_by: problem.seen_by,
            subject: clean(&problem.subject),
            status: problem.status.clone(),
            reason: clean(&problem.reason),
        });
        Self { change: self.change, problem, message: clean(&self.message) }
    }

    pub(crate) fn json(&self, time: &str) -> serde_json::Value {
        let Some(problem) = &self.problem else {
            return json!({ "time": time, "event": self.change.1 });
        };
        json!({
            "time": time,
            "event": self.change.1,
            "seenBy": problem.seen_by,
            "subject": problem.subject,
            "status": problem.status,
            "reason": problem.reason,
            "message": self.message,
        })
    }

    pub(crate) fn line(&self, time: &str) -> String {
        let (mark, _) = self.change;
        let Some(problem) = &self.problem else { return format!("{time} {mark} {}", self.message) };
        let Problem { seen_by, subject, status, reason } = problem;
        // Escaped before the columns are aligned.
        let subject = escape::terminal(subject);
        let reason = escape::terminal(reason);
        let line = format!("{time} {mark} {seen_by:<10} {subject:<20} {status:<12} {reason}");
        match self.message.as_str() {
            "" => line.trim_end().to_owned(),
            message => format!("{line}: {message}"),
        }
    }
}

/// The time in the form of RFC 3339, in UTC and whole seconds.
pub(crate) fn now() -> String {
    let now = prost_types::Timestamp::from(std::time::SystemTime::now());
    prost_types::Timestamp { nanos: 0, ..now }.to_string()
}

#[cfg(test)]
mod tests {
    use csi_proto::Rpc;

    use super::*;

    fn problems(all: &[(&str, &str)]) -> Problems {
        let one = |(reason, message): &(&str, &str)| {
            let problem = Problem {
                seen_by: "node",
                subject: "pvc-1".to_owned(),
                status: "DEGRADED".to_owned(),
                reason: (*reason).to_owned(),
            };
            (problem, (*message).to_owned())
        };
        all.iter().map(one).collect()
    }

    fn lines(events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let short = |event: Event| event.line("T").split_whitespace().collect::<Vec<_>>().join(" ");
        events.into_iter().map(short).collect()
    }

    #[test]
    fn what_begins_changes_and_ends_is_told_once() {
        let mut known = CurrentProblems::default();
        let source = Source::of_all(Rpc::NodeGetStorageHealth);
        assert_eq!(lines(known.update(&source, Ok(problems(&[])))), [""; 0]);
        assert_eq!(lines(known.end_round()), ["T = no problems"]);
        assert_eq!(lines(known.end_round()), [""; 0]);
        let undo_log = known.update(&source, Ok(problems(&[("Slow", "a"), ("Full", "b")])));
        assert_eq!(lines(undo_log), ["T + node pvc-1 DEGRADED Full: b", "T + node pvc-1 DEGRADED Slow: a"]);
        assert!(!known.has_none() && known.end_round().is_none());
        let changed = known.update(&source, Ok(problems(&[("Slow", "c")])));
        assert_eq!(lines(changed), ["T - node pvc-1 DEGRADED Full: b", "T ~ node pvc-1 DEGRADED Slow: c"]);
        assert_eq!(lines(known.update(&source, Ok(problems(&[("Slow", "c")])))), [""; 0]);
        assert_eq!(lines(known.update(&source, Ok(problems(&[])))), ["T - node pvc-1 DEGRADED Slow: c"]);
        assert_eq!(lines(known.end_round()), ["T = no problems"]);
    }

    #[test]
    fn who_does_not_answer_ends_nothing() {
        let mut known = CurrentProblems::default();
        let source = Source::of_all(Rpc::NodeGetStorageHealth);
        known.update(&source, Ok(problems(&[("Slow", "a")])));
        let failed = known.update(&source, Err(Status::unavailable("gone")));
        assert_eq!(lines(failed), ["T + csi NodeGetStorageHealth UNAVAILABLE NotAnswered: gone"]);
        assert!(known.update(&source, Err(Status::unavailable("gone"))).is_empty());
        let back = known.update(&source, Ok(problems(&[("Slow", "a")])));
        assert_eq!(lines(back), ["T - csi NodeGetStorageHealth UNAVAILABLE NotAnswered: gone"]);
    }

    #[test]
    fn what_two_sources_report_is_told_once() {
        let mut known = CurrentProblems::default();
        let sources = [Rpc::ControllerListVolumeHealth, Rpc::ControllerGetVolumeHealth].map(Source::of_all);
        let mut told = |all: &[(&str, &str)]| {
            lines(
                sources.iter().flat_map(|source| known.update(source, Ok(problems(all)))).collect::<Vec<_>>(),
            )
        };
        assert_eq!(told(&[("Slow", "a")]), ["T + node pvc-1 DEGRADED Slow: a"]);
        assert_eq!(told(&[("Slow", "b")]), ["T ~ node pvc-1 DEGRADED Slow: b"]);
        assert_eq!(told(&[]), ["T - node pvc-1 DEGRADED Slow: b"]);
    }

    #[test]
    fn secrets_are_not_told() {
        let mut known = CurrentProblems::default();
        let source = Source::of_all(Rpc::NodeGetStorageHealth);
        let mut hidden = Redactor::default();
        hidden.add(["canary"]);
        let events = known.update(&source, Ok(problems(&[("Slow", "canary\x1b[2J")])));
        let event = events[0].scrubbed(&hidden);
        for text in [event.line("T"), event.json("T").to_string()] {
            assert!(!text.contains("canary") && text.contains("***"), "{text}");
        }
    }
}
