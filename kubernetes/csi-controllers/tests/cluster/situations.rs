//! Situations: what users and the driver do, and what the objects have then, as the sidecars write it. They are in the
//! YAML files of the directory `situations`, by part.
//!
//! Each is played without a fault, then with watches that are late, and then with crashes right before and right after
//! writes: every third of these moments, another third in the next situation, and with `CSI_CRASH_STRIDE=1` each of them.
//! Each time all objects must be the same in the end, and the driver must have the same volumes and snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use test_support::kube_api::{ApiServer, Call, Fault, Row};
use tokio::time::sleep;

use crate::bed::{Bed, apply, path};
use crate::driver;
use crate::rules::{self, Used};

const FILES: [&str; 10] = [
    include_str!("situations/provision.yaml"),
    include_str!("situations/source.yaml"),
    include_str!("situations/topology.yaml"),
    include_str!("situations/delete.yaml"),
    include_str!("situations/attach.yaml"),
    include_str!("situations/resize.yaml"),
    include_str!("situations/modify.yaml"),
    include_str!("situations/snapshot.yaml"),
    include_str!("situations/capacity.yaml"),
    include_str!("situations/health.yaml"),
];

/// The kinds that are compared in the end.
const KINDS: [&str; 7] = [
    "persistentvolumeclaims",
    "persistentvolumes",
    "volumeattachments",
    "volumesnapshots",
    "volumesnapshotcontents",
    "volumegroupsnapshotcontents",
    "csistoragecapacities",
];
/// Every how many of the moments of a crash a run takes.
const STRIDE: usize = 3;
/// Fields that differ from run to run: those with names, which stay the same in all of a run, and those with times.
const IDS: [&str; 4] = ["uid", "volumeHandle", "snapshotHandle", "volumeGroupSnapshotHandle"];
const TIMES: [&str; 8] = [
    "creationTime",
    "creationTimestamp",
    "deletionTimestamp",
    "lastProbeTime",
    "lastTransitionTime",
    "resourceVersion",
    "storage.kubernetes.io/csiProvisionerIdentity",
    "time",
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Situation {
    name: String,
    /// It is a table of cases, in which nothing depends on crashes.
    once: bool,
    /// Flags of the driver.
    driver: Vec<String>,
    /// Flags of this crate.
    flags: Vec<String>,
    /// What the driver answers all the time in the place of its own answers, by RPC.
    capabilities: Map<String, Value>,
    /// What exists before, and is complete.
    given: Map<String, Value>,
    /// The first [`Step`].
    #[serde(flatten)]
    first: Map<String, Value>,
    next: Vec<Step>,
    /// All events, and all writes but for events.
    events: Option<Vec<String>>,
    writes: Option<Vec<String>>,
    /// The requests for the driver by RPC: a list of all, their number, or one that is made at least once and is always
    /// the same.
    calls: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Step {
    /// What the driver answers from here on in the place of its own answers, by RPC.
    answers: Map<String, Value>,
    /// Requests such as `patch configmaps`: the next one's answer is lost, or it is refused, as by `403 patch configmaps`.
    lost: Vec<String>,
    refused: Vec<String>,
    /// What others do right before the next such request is served.
    before: BTreeMap<String, Map<String, Value>>,
    /// What others do with objects, by path.
    #[serde(rename = "do")]
    changes: Map<String, Value>,
    /// The seconds after which the rest holds; without them it must hold soon.
    after: Option<u64>,
    /// Fields of objects, by path. `*` stands for any text, and null for what does not exist.
    then: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Weather {
    Fair,
    LateWatches,
    CrashBefore(usize),
    CrashAfter(usize),
}

/// How a situation ended.
struct End {
    state: String,
    writes: usize,
    used: Used,
}

/// Plays the situations on all of the machine's processors, and names those that fail. `CSI_TEST_SITUATION` is a part of
/// the names of those that are played. All of them together use each of the rules in the manifests.
#[test]
fn the_objects_are_those_of_the_sidecars_whatever_fails() {
    let part = std::env::var("CSI_TEST_SITUATION").unwrap_or_default();
    let parse = |text| serde_saphyr::from_str::<Vec<Situation>>(text).unwrap();
    let mut situations: Vec<Situation> = FILES.into_iter().flat_map(parse).collect();
    situations.retain(|situation| situation.name.contains(&part));
    let waiting = Mutex::new(situations.iter().enumerate());
    let failed = Mutex::new(Vec::new());
    let used = Mutex::new(Used::new());
    let work = || {
        loop {
            let Some((number, situation)) = waiting.lock().unwrap().next() else { return };
            match catch_unwind(AssertUnwindSafe(|| situation.play_in_all_weathers(number))) {
                Ok(asked) => used.lock().unwrap().extend(asked),
                Err(_) => failed.lock().unwrap().push(&situation.name),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "of {} situations: {failed:#?}", situations.len());
    if part.is_empty() {
        rules::assert_used(&used.into_inner().unwrap());
    }
}

impl Situation {
    /// Returns what was asked for in fair weather.
    fn play_in_all_weathers(&self, number: usize) -> Used {
        let flags: Vec<&str> = self.driver.iter().map(String::as_str).collect();
        let rules = rules::of(&flags);
        let fair = self.play(&rules, Weather::Fair, None);
        let crashes = (1..=fair.writes).flat_map(|at| [Weather::CrashBefore(at), Weather::CrashAfter(at)]);
        let stride = std::env::var("CSI_CRASH_STRIDE").map_or(STRIDE, |text| text.parse().unwrap());
        let crashes = crashes.skip(number % stride).step_by(stride);
        for weather in [Weather::LateWatches].into_iter().chain(crashes).filter(|_| !self.once) {
            self.play(&rules, weather, Some(&fair.state));
        }
        fair.used
    }

    /// `due` is the state in the end. Without it, the calls, writes and events are compared.
    fn play(&self, rules: &[Row], weather: Weather, due: Option<&str>) -> End {
        println!("{}: {weather:?}", self.name);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(self.run(rules, weather, due))
    }

    async fn run(&self, rules: &[Row], weather: Weather, due: Option<&str>) -> End {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let driver: Vec<&str> = self.driver.iter().map(String::as_str).collect();
        let bed = Bed::new(&driver).await;
        bed.server.allow(rules);
        bed.calls.fail_all(faults(&bed, &self.capabilities));
        let process = bed.start_with(&flags);
        // Others need these.
        let is_early = |path: &&String| !KINDS.contains(&path.split('/').next().unwrap());
        let early = self.given.iter().filter(|(path, _)| is_early(path));
        for (path, change) in early.chain(self.given.iter().filter(|(path, _)| !is_early(path))) {
            bed.apply(path, filled(&bed.server, change));
            bed.until(path, || bed.is_settled()).await;
        }
        // Records of creations that are over stay for five minutes.
        sleep(Duration::from_secs(310)).await;
        let mark = bed.server.mark();
        let calls = bed.calls.mark();
        let known = events(&bed);
        match weather {
            Weather::Fair => {}
            Weather::LateWatches => {
                KINDS.iter().for_each(|kind| bed.server.delay_watch(kind, Duration::from_secs(2)));
            }
            Weather::CrashBefore(writes) => process.link.cut_before(writes),
            Weather::CrashAfter(writes) => process.link.cut_after(writes),
        }
        let first: Step = serde_json::from_value(json!(self.first)).unwrap();
        let steps = [&first].into_iter().chain(&self.next);
        let script = async {
            for step in steps.clone() {
                step.play(&bed, weather, &self.capabilities).await;
            }
            if let Some(due) = due {
                assert!(bed.holds_soon(|| state(&bed) == due).await, "{} is not {due}", state(&bed));
                return;
            }
            sleep(Duration::from_secs(60)).await;
            assert_eq!(steps.last().and_then(|step| step.differs(&bed)), None, "it does not stay");
            self.compare(&bed, &writes(&bed, mark), calls, &known);
        };
        let crash = async {
            process.link.crashed().await;
            drop(process);
            let _next = bed.start_with(&flags);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = script => {}
            () = crash => {}
        }
        End { state: state(&bed), writes: writes(&bed, mark).len(), used: rules::used(&bed) }
    }

    fn compare(&self, bed: &Bed, writes: &[String], calls: usize, known: &BTreeSet<String>) {
        if let Some(expected) = &self.writes {
            assert_eq!(writes, expected);
        }
        for (rpc, expected) in &self.calls {
            let seen = bed.calls.requests(rpc, calls);
            let expected = match filled(&bed.server, expected) {
                Value::Array(expected) => expected,
                Value::Number(count) => vec![json!({}); usize::try_from(count.as_u64().unwrap()).unwrap()],
                one => vec![one; seen.len().max(1)],
            };
            assert_eq!(differs(&json!(expected), &json!(seen), rpc), None);
        }
        let Some(expected) = &self.events else { return };
        let found: Vec<String> = events(bed).difference(known).cloned().collect();
        let missing = expected.iter().find(|due| !found.iter().any(|event| fits(due, event)));
        let more = found.iter().find(|event| !expected.iter().any(|due| fits(due, event)));
        assert_eq!((missing, more), (None, None), "{found:#?}");
    }
}

impl Step {
    async fn play(&self, bed: &Bed, weather: Weather, capabilities: &Map<String, Value>) {
        let answers = [&self.answers, capabilities].map(|answers| faults(bed, answers));
        bed.calls.fail_all(answers.into_iter().flatten().collect());
        self.lost.iter().for_each(|what| bed.server.fail(what, Fault::AnswerLost));
        for (code, what) in self.refused.iter().filter_map(|refused| refused.split_once(' ')) {
            bed.server.fail(what, Fault::Status(code.parse().unwrap()));
        }
        for (what, changes) in self.before.clone() {
            bed.server.before(&what, move |server| apply_all(server, &changes));
        }
        apply_all(&bed.server, &self.changes);
        sleep(Duration::from_secs(self.after.unwrap_or_default())).await;
        // What fails takes longer.
        if self.after.is_none() || weather != Weather::Fair {
            bed.holds_soon(|| self.differs(bed).is_none()).await;
        }
        assert_eq!(self.differs(bed), None);
    }

    /// What is not as it should be.
    fn differs(&self, bed: &Bed) -> Option<String> {
        self.then.iter().find_map(|(pattern, expected)| {
            let pattern = named(&bed.server, pattern);
            let kind = &pattern[..=pattern.find('/').unwrap()];
            let mut found = bed.server.objects(kind);
            found.retain(|object| fits(&pattern, &path(kind, object)));
            match found.as_slice() {
                [found] if !expected.is_null() => differs(&filled(&bed.server, expected), found, &pattern),
                [] if expected.is_null() => None,
                _ => Some(format!("{pattern}: there are {}", found.len())),
            }
        })
    }
}

/// With the names of volumes in the place of `<claim>`, their handles in that of `<claim.handle>` and those of snapshots in
/// that of `<snapshot.handle>`, and the uids of both in that of `<claim.uid>`.
fn named(server: &ApiServer, text: &str) -> String {
    let mut text = text.to_owned();
    if !text.contains('<') {
        return text;
    }
    let mut fill = |name: &Value, field: &str, value: &Value| {
        if let (Some(name), Some(value)) = (name.as_str(), value.as_str()) {
            text = text.replace(&format!("<{name}{field}>"), value);
        }
    };
    for claim in server.objects("persistentvolumeclaims/") {
        fill(&claim["metadata"]["name"], ".uid", &claim["metadata"]["uid"]);
        fill(&claim["metadata"]["name"], "", &claim["spec"]["volumeName"]);
    }
    for snapshot in server.objects("volumesnapshots/") {
        fill(&snapshot["metadata"]["name"], ".uid", &snapshot["metadata"]["uid"]);
    }
    for volume in server.objects("persistentvolumes/") {
        let claim = &volume["spec"]["claimRef"]["name"];
        fill(claim, ".handle", &volume["spec"]["csi"]["volumeHandle"]);
        fill(claim, "", &volume["metadata"]["name"]);
    }
    for content in server.objects("volumesnapshotcontents/") {
        fill(&content["spec"]["volumeSnapshotRef"]["name"], ".handle", &content["status"]["snapshotHandle"]);
    }
    text
}

fn filled(server: &ApiServer, value: &Value) -> Value {
    serde_json::from_str(&named(server, &value.to_string())).unwrap()
}

fn faults(bed: &Bed, answers: &Map<String, Value>) -> BTreeMap<String, driver::Fault> {
    let fault = |(rpc, answer): (&String, &Value)| (rpc.clone(), (&filled(&bed.server, answer)).into());
    answers.iter().map(fault).collect()
}

fn apply_all(server: &ApiServer, changes: &Map<String, Value>) {
    for (path, change) in changes {
        apply(server, &named(server, path), filled(server, change));
    }
}

/// Type, reason and text of each event.
fn events(bed: &Bed) -> BTreeSet<String> {
    let text =
        |event: &Value| ["type", "reason", "note"].map(|field| event[field].as_str().unwrap().to_owned());
    bed.server.objects("events/").iter().map(|event| text(event).join(" ")).collect()
}

fn writes(bed: &Bed, mark: usize) -> Vec<String> {
    let is_counted = |call: &Call| call.is_write() && call.resource != "events";
    let calls = bed.server.requests_since(mark).into_iter().filter(is_counted);
    calls.map(|call| format!("{} {}", call.verb, call.rule_resource())).collect()
}

/// What the cluster and the driver have, without what differs from run to run.
fn state(bed: &Bed) -> String {
    let mut ids = Vec::new();
    let mut all = BTreeMap::new();
    for kind in KINDS {
        let mut objects = json!(bed.server.objects(&format!("{kind}/")));
        clear(&mut objects, &mut ids);
        all.insert(kind, objects);
    }
    for kind in ["volumes", "snapshots"] {
        let stored = bed.stored(kind);
        // Without an object of the cluster it is null.
        let mut known: Vec<_> = stored.iter().map(|id| ids.iter().position(|one| one == id)).collect();
        known.sort_unstable();
        all.insert(kind, json!(known));
    }
    let mut text = serde_json::to_string_pretty(&all).unwrap();
    for (number, id) in ids.iter().enumerate() {
        text = text.replace(id, &format!("id {number}"));
    }
    text
}

fn clear(value: &mut Value, ids: &mut Vec<String>) {
    let Value::Object(fields) = value else {
        return value.as_array_mut().into_iter().flatten().for_each(|value| clear(value, ids));
    };
    let is_generated = fields.contains_key("generateName");
    for (field, value) in fields {
        let is_id = IDS.contains(&field.as_str()) || (is_generated && field == "name");
        match value {
            Value::Array(values) if field == "finalizers" => values.sort_unstable_by_key(Value::to_string),
            Value::String(id) if is_id && !id.is_empty() && !ids.contains(id) => ids.push(id.clone()),
            _ if TIMES.contains(&field.as_str()) => *value = json!("a time"),
            _ => clear(value, ids),
        }
    }
}

/// Where the fields of `expected` are not those of `found`.
fn differs(expected: &Value, found: &Value, at: &str) -> Option<String> {
    let below = |field: &str, due: &Value, found: &Value| differs(due, found, &format!("{at}/{field}"));
    match (expected, found) {
        (Value::Object(fields), Value::Object(_) | Value::Null) => {
            fields.iter().find_map(|(field, expected)| below(field, expected, &found[field]))
        }
        (Value::Array(values), Value::Array(others)) if at.ends_with("/finalizers") => {
            let set = |values: &[Value]| values.iter().map(Value::to_string).collect::<BTreeSet<_>>();
            (set(values) != set(others)).then(|| format!("{at}: {found}"))
        }
        (Value::Array(values), Value::Array(others)) if values.len() == others.len() => {
            let mut pairs = values.iter().zip(others);
            pairs.find_map(|(expected, found)| below("", expected, found))
        }
        (Value::String(pattern), Value::String(text)) if fits(pattern, text) => None,
        (Value::String(pattern), Value::Number(number)) if fits(pattern, &number.to_string()) => None,
        (expected, found) if expected == found => None,
        (expected, found) => Some(format!("{at}: it should be {expected}, and is {found}")),
    }
}

/// Whether the text is the pattern, in which each `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| fits(rest, &text[at..]))
}
