//! The suite's report of one run, and what of it is accepted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::modes::{Mode, PENDING, Release};
use crate::Failure;

/// A spec of the report.
#[derive(Debug, Deserialize)]
struct Spec {
    #[serde(rename = "ContainerHierarchyTexts", default)]
    containers: Option<Vec<String>>,
    #[serde(rename = "LeafNodeText", default)]
    leaf: String,
    #[serde(rename = "State", default)]
    state: String,
    #[serde(rename = "Failure", default)]
    failure: Reason,
}

/// Why a spec failed or was skipped.
#[derive(Debug, Default, Deserialize)]
struct Reason {
    #[serde(rename = "Message", default)]
    message: String,
}

#[derive(Debug, Deserialize)]
struct Suite {
    #[serde(rename = "SpecReports")]
    specs: Vec<Spec>,
}

/// What one mode's run showed.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) passed: BTreeSet<String>,
    /// The suite's own defects that this run met.
    pub(crate) defects: BTreeSet<&'static str>,
    /// The number of skipped specs for each reason.
    pub(crate) skipped: BTreeMap<&'static str, usize>,
    /// What is not accepted, ready to print.
    pub(crate) problems: Vec<String>,
    /// The messages with which specs were skipped.
    pub(crate) skips: BTreeSet<String>,
    /// All specs of the suite that are not pending.
    pub(crate) specs: BTreeSet<String>,
}

impl Spec {
    fn name(&self) -> String {
        let containers = self.containers.iter().flatten().map(String::as_str);
        containers.chain([self.leaf.as_str()]).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

/// Reads ginkgo's JSON report of a run in this mode.
pub(crate) fn judge(release: &Release, mode: &Mode, report: &str) -> Result<Outcome, Failure> {
    let suites: Vec<Suite> = serde_json::from_str(report)?;
    let mut outcome = Outcome::default();
    for spec in suites.iter().flat_map(|suite| &suite.specs) {
        let name = spec.name();
        let message = spec.failure.message.as_str();
        if spec.state != "pending" {
            outcome.specs.insert(name.clone());
        }
        let defect = release.defects.iter().find(|defect| defect.spec == name);
        match (spec.state.as_str(), defect) {
            ("passed", _) => drop(outcome.passed.insert(name)),
            ("pending", _) if PENDING.contains(&name.as_str()) => {}
            ("pending", _) => outcome.problems.push(format!("{name}\n  pending, and not listed as such")),
            ("skipped", _) => {
                match mode.skips.iter().find(|skip| skip.messages.contains(&message)) {
                    Some(skip) => *outcome.skipped.entry(skip.why).or_default() += 1,
                    None => outcome.problems.push(format!("{name}\n  skipped without a reason: {message}")),
                }
                outcome.skips.insert(message.to_owned());
            }
            (_, Some(defect)) if message.contains(defect.message) => {
                outcome.defects.insert(defect.spec);
            }
            (state, _) => {
                outcome.problems.push(format!("{name}\n  {state}: {}", message.replace('\n', "\n  ")));
            }
        }
    }
    Ok(outcome)
}

/// The release's defects that no run showed.
pub(crate) fn mended<'r>(release: &'r Release, outcomes: &[Outcome]) -> Vec<&'r str> {
    let is_shown = |spec: &str| outcomes.iter().any(|outcome| outcome.defects.contains(spec));
    release.defects.iter().map(|defect| defect.spec).filter(|spec| !is_shown(spec)).collect()
}

/// The messages for which the mode has a reason, and which no spec was skipped with.
pub(crate) fn unused<'m>(mode: &'m Mode, skips: &BTreeSet<String>) -> Vec<&'m str> {
    let messages = mode.skips.iter().flat_map(|skip| skip.messages).copied();
    messages.filter(|message| !skips.contains(*message)).collect()
}

/// The specs that no mode passed, except those that the suite fails by itself.
pub(crate) fn passed_nowhere<'o>(release: &Release, outcomes: &'o [Outcome]) -> Vec<&'o str> {
    let all: BTreeSet<&str> =
        outcomes.iter().flat_map(|outcome| &outcome.specs).map(String::as_str).collect();
    let is_passed = |spec: &str| outcomes.iter().any(|outcome| outcome.passed.contains(spec));
    let is_defect = |spec: &str| release.defects.iter().any(|defect| defect.spec == spec);
    all.into_iter().filter(|spec| !is_passed(spec) && !is_defect(spec)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::modes::{RELEASES, Skip};
    use super::*;

    const MODE: Mode = Mode {
        driver: "d",
        name: "m",
        flags: &[],
        suite: &[],
        skips: &[Skip { messages: &["Lists not supported"], why: "short" }],
    };

    fn release() -> &'static Release {
        &RELEASES[1]
    }

    fn judged(specs: &[(&str, &str, &str)]) -> Outcome {
        let specs: Vec<String> = specs
            .iter()
            .map(|(leaf, state, message)| {
                format!(
                    r#"{{"ContainerHierarchyTexts":null,"LeafNodeText":"{leaf}","State":"{state}","Failure":{{"Message":"{message}"}}}}"#
                )
            })
            .collect();
        judge(release(), &MODE, &format!(r#"[{{"SpecReports":[{}]}}]"#, specs.join(","))).expect("a report")
    }

    const LISTS: (&str, &str, &str) = ("lists", "skipped", "Lists not supported");

    #[test]
    fn a_skip_needs_a_reason_and_a_reason_needs_a_skip() {
        let outcome = judged(&[("a", "passed", ""), LISTS]);
        assert_eq!((outcome.problems.len(), outcome.passed.len(), outcome.skipped["short"]), (0, 1, 1));
        assert_eq!(judged(&[LISTS, ("b", "skipped", "Clones not supported")]).problems.len(), 1);
        assert_eq!(unused(&MODE, &outcome.skips), Vec::<&str>::new());
        assert_eq!(unused(&MODE, &judged(&[("a", "passed", "")]).skips), ["Lists not supported"]);
    }

    #[test]
    fn only_the_known_failure_of_a_known_spec_is_accepted() {
        let [defect, ..] = release().defects else { panic!("no defects") };
        let known = judged(&[LISTS, (defect.spec, "failed", defect.message)]);
        assert_eq!((known.problems.len(), known.defects.len()), (0, 1));
        assert!(!mended(release(), &[known]).contains(&defect.spec));
        let passed = judged(&[LISTS, (defect.spec, "passed", "")]);
        assert_eq!(passed.problems, Vec::<String>::new());
        assert!(mended(release(), &[passed]).contains(&defect.spec));
        let another = judged(&[LISTS, (defect.spec, "failed", "another")]);
        assert_eq!((another.problems.len(), another.defects.len()), (1, 0));
        for state in ["failed", "panicked", "timedout", "interrupted", "aborted", "pending"] {
            assert_eq!(judged(&[LISTS, ("a", state, "")]).problems.len(), 1, "{state}");
        }
    }

    #[test]
    fn a_spec_that_no_driver_passes_is_found() {
        let one = judged(&[LISTS, ("a", "passed", "")]);
        assert_eq!(passed_nowhere(release(), &[one]), ["lists"]);
        let both = [judged(&[LISTS]), judged(&[("lists", "passed", "")])];
        assert_eq!(passed_nowhere(release(), &both), Vec::<&str>::new());
    }
}
