//! An API server at the level of HTTP requests: objects with versions, watches, access rules and faults.
//!
//! Each client has its own link to it, which can be slow, cut, or hold everything back as if the process were
//! frozen. Time is tokio's, so tests pause it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use csi_kube::rules::Rule;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

type Hook = Box<dyn FnOnce(&ApiServer) + Send>;

#[derive(Clone)]
pub(crate) struct ApiServer {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    /// All changes: version, kind of change, path, object.
    changes: Vec<(u64, &'static str, String, Value)>,
    /// Watches before this version get 410.
    oldest_watch: u64,
    rules: Option<Vec<Rule>>,
    /// Group, resource and verb of each request.
    requests: Vec<(String, String, String)>,
    faults: VecDeque<(&'static str, Fault)>,
    hook: Option<(&'static str, Hook)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// This status instead of an answer; nothing is changed.
    Status(u16),
    /// 429, with the time after which the client should repeat the request, in seconds.
    TooMany(u32),
    /// The request is not read, and has no answer.
    NoAnswer,
    /// The request is served, but its answer is lost.
    AnswerLost,
    Reset,
}

/// The way from one client to the server.
#[derive(Clone)]
pub(crate) struct Link(watch::Sender<LinkState>);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LinkState {
    /// Everything arrives after this time, in each direction.
    Delay(Duration),
    Cut,
    /// Requests arrive, and answers do not.
    AnswersLost,
    /// Nothing arrives until the state changes.
    Held,
}

impl Link {
    pub(crate) fn set(&self, state: LinkState) {
        self.0.send_replace(state);
    }

    /// Passes the link in one direction.
    async fn pass(&self, is_answer: bool) -> Result<(), std::io::Error> {
        let mut state = self.0.subscribe();
        loop {
            let now = *state.borrow_and_update();
            match now {
                LinkState::Delay(delay) => {
                    tokio::time::sleep(delay).await;
                    return Ok(());
                }
                LinkState::Cut => return Err(std::io::Error::other("connection refused")),
                LinkState::AnswersLost if !is_answer => return Ok(()),
                LinkState::AnswersLost => std::future::pending().await,
                LinkState::Held => drop(state.changed().await),
            }
        }
    }
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default(), changed: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Allows what these rules allow, and nothing else.
    pub(crate) fn allow(&self, rules: &[Rule]) {
        self.state().rules = Some(rules.to_vec());
    }

    /// Panics unless each verb of the rules was used.
    pub(crate) fn assert_rules_used(&self, rules: &[Rule]) {
        let used: BTreeSet<_> = self.state().requests.iter().cloned().collect();
        for rule in rules {
            for verb in rule.verbs {
                let row = (rule.group.to_owned(), rule.resource.to_owned(), (*verb).to_owned());
                assert!(used.contains(&row), "{row:?} is not needed: {used:?}");
            }
        }
    }

    pub(crate) fn verbs(&self, resource: &str) -> Vec<String> {
        let state = self.state();
        let of_it = state.requests.iter().filter(|(_, one, _)| one == resource);
        of_it.map(|(.., verb)| verb.clone()).collect()
    }

    /// The next request with this verb has this fault.
    pub(crate) fn fail(&self, verb: &'static str, fault: Fault) {
        self.state().faults.push_back((verb, fault));
    }

    /// Does this right before the next request with this verb is served.
    pub(crate) fn before(&self, verb: &'static str, hook: impl FnOnce(&Self) + Send + 'static) {
        self.state().hook = Some((verb, Box::new(hook)));
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    /// The objects whose paths begin like this.
    pub(crate) fn objects(&self, prefix: &str) -> Vec<Value> {
        let state = self.state();
        let found = state.objects.iter().filter(|(path, _)| path.starts_with(prefix));
        found.map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn delete_all(&self, prefix: &str) {
        self.state().objects.retain(|path, _| !path.starts_with(prefix));
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        let mut state = self.state();
        let kind = if state.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        state.write(kind, path, object);
        drop(state);
        self.wake();
    }

    pub(crate) fn delete(&self, path: &str) {
        let mut state = self.state();
        let object = state.objects.get(path).cloned().expect("an object");
        state.write("DELETED", path, object);
        state.objects.remove(path);
        drop(state);
        self.wake();
    }

    /// Ends each watch with 410 at its next change, as after a compaction.
    pub(crate) fn expire_watches(&self) {
        let mut state = self.state();
        state.version += 1;
        state.oldest_watch = state.version;
        drop(state);
        self.wake();
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn client(&self) -> Client {
        self.linked_client().0
    }

    pub(crate) fn linked_client(&self) -> (Client, Link) {
        let link = Link(watch::Sender::new(LinkState::Delay(Duration::from_millis(1))));
        let server = self.clone();
        let way = link.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            let way = way.clone();
            async move {
                way.pass(false).await?;
                let answer = server.serve(request).await?;
                way.pass(true).await?;
                Ok::<_, std::io::Error>(answer)
            }
        });
        (Client::new(service, "driver"), link)
    }

    async fn serve(&self, request: Request<Body>) -> Result<Answer, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("a body");
        let target = Target::parse(&head);
        let hook = {
            let mut state = self.state();
            let is_due = state.hook.as_ref().is_some_and(|(verb, _)| *verb == target.verb);
            if is_due { state.hook.take() } else { None }
        };
        if let Some((_, hook)) = hook {
            hook(self);
        }
        let fault = {
            let mut state = self.state();
            let row = (target.group.clone(), target.resource.clone(), target.verb.to_owned());
            state.requests.push(row);
            let place = state.faults.iter().position(|(verb, _)| *verb == target.verb);
            place.and_then(|place| state.faults.remove(place)).map(|(_, fault)| fault)
        };
        match fault {
            Some(Fault::Status(code)) => return Ok(status(code, "Injected", "injected", 0)),
            Some(Fault::TooMany(seconds)) => {
                return Ok(status(429, "TooManyRequests", "injected", seconds));
            }
            Some(Fault::NoAnswer) => std::future::pending().await,
            Some(Fault::Reset) => return Err(std::io::Error::other("connection reset")),
            Some(Fault::AnswerLost) | None => {}
        }
        let answer = self.answer(&target, &body);
        if let Some(Fault::AnswerLost) = fault {
            std::future::pending::<()>().await;
        }
        Ok(answer)
    }

    fn answer(&self, target: &Target, body: &[u8]) -> Answer {
        let mut state = self.state();
        if let Some(rules) = &state.rules {
            let is_allowed = rules.iter().any(|rule| {
                rule.group == target.group
                    && rule.resource == target.resource
                    && rule.verbs.contains(&target.verb)
            });
            if !is_allowed {
                let text = format!("{} is forbidden: cannot {}", target.resource, target.verb);
                return status(403, "Forbidden", &text, 0);
            }
        }
        let body = || -> Value { serde_json::from_slice(body).expect("JSON") };
        match target.verb {
            "get" => match state.objects.get(&target.path) {
                Some(object) => json_answer(200, object),
                None => missing(target),
            },
            "list" => {
                let items: Vec<&Value> = state.selected(target).map(|(_, object)| object).collect();
                let list =
                    json!({ "metadata": { "resourceVersion": state.version.to_string() }, "items": items });
                json_answer(200, &list)
            }
            "watch" => {
                drop(state);
                self.watch(target)
            }
            "create" => {
                let object = body();
                let name = object["metadata"]["name"].as_str().expect("a name");
                let path = format!("{}/{name}", target.path);
                if state.objects.contains_key(&path) {
                    return status(409, "AlreadyExists", &format!("{path} exists"), 0);
                }
                let written = state.write("ADDED", &path, object);
                drop(state);
                self.wake();
                json_answer(201, &written)
            }
            "update" | "patch" => {
                let Some(old) = state.objects.get(&target.path).cloned() else { return missing(target) };
                let change = body();
                let version = &change["metadata"]["resourceVersion"];
                if version.is_string() && *version != old["metadata"]["resourceVersion"] {
                    return status(409, "Conflict", "the object has been modified", 0);
                }
                let new = if target.verb == "update" {
                    change
                } else {
                    let mut new = old;
                    merge(&mut new, change);
                    new
                };
                let written = state.write("MODIFIED", &target.path, new);
                drop(state);
                self.wake();
                json_answer(200, &written)
            }
            "delete" => {
                let Some(mut object) = state.objects.get(&target.path).cloned() else {
                    return missing(target);
                };
                let options = body();
                let uid = &options["preconditions"]["uid"];
                if uid.is_string() && *uid != object["metadata"]["uid"] {
                    return status(409, "Conflict", "the object has another uid", 0);
                }
                if options["gracePeriodSeconds"] == 0 {
                    state.write("DELETED", &target.path, object.clone());
                    state.objects.remove(&target.path);
                } else {
                    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                    object = state.write("MODIFIED", &target.path, object);
                }
                drop(state);
                self.wake();
                json_answer(200, &object)
            }
            other => panic!("{other}"),
        }
    }

    fn watch(&self, target: &Target) -> Answer {
        let (sender, receiver) = mpsc::channel(16);
        let server = self.clone();
        let target = target.clone();
        let mut changed = self.changed.subscribe();
        tokio::spawn(async move {
            let mut from = target.version;
            loop {
                let mut lines = Vec::new();
                let is_expired = {
                    let state = server.state();
                    let prefix = format!("{}/", target.path);
                    for (version, kind, path, object) in &state.changes {
                        if *version > from && path.starts_with(&prefix) && target.selects(object) {
                            lines.push(json!({ "type": kind, "object": object }));
                        }
                    }
                    let is_expired = from < state.oldest_watch;
                    from = state.version;
                    is_expired
                };
                if is_expired {
                    lines = vec![
                        json!({ "type": "ERROR", "object": status_object(410, "Expired", "too old", 0) }),
                    ];
                }
                for line in lines {
                    let line = Bytes::from(format!("{line}\n"));
                    if sender.send(Ok::<_, Infallible>(Frame::data(line))).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    changed = changed.changed() => if is_expired || changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Response::new(StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync())
    }
}

impl State {
    fn write(&mut self, kind: &'static str, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        self.changes.push((self.version, kind, path.to_owned(), object.clone()));
        object
    }

    fn selected(&self, target: &Target) -> impl Iterator<Item = (&String, &Value)> {
        let prefix = format!("{}/", target.path);
        let objects = self.objects.iter().filter(move |(path, _)| path.starts_with(&prefix));
        objects.filter(|(_, object)| target.selects(object))
    }
}

#[derive(Debug, Clone)]
struct Target {
    group: String,
    resource: String,
    verb: &'static str,
    /// The path of the object or collection, with all namespaces in one collection.
    path: String,
    version: u64,
    /// `spec.nodeName`, if the request selects by it.
    node: Option<String>,
}

impl Target {
    fn parse(head: &http::request::Parts) -> Self {
        let mut parts = head.uri.path().trim_matches('/').split('/');
        let group = match parts.next() {
            Some("api") => "",
            _ => parts.next().expect("a group"),
        };
        let _version = parts.next();
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = None;
        if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            namespace = Some(rest[1]);
            rest.drain(..2);
        }
        let resource = rest[0].to_owned();
        let name = rest.get(1);
        let query = head.uri.query().unwrap_or_default();
        let pairs: BTreeMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let verb = match (head.method.as_str(), name) {
            ("GET", Some(_)) => "get",
            ("GET", None) if pairs.get("watch") == Some(&"true") => "watch",
            ("GET", None) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", Some(_)) => "delete",
            other => panic!("{other:?}"),
        };
        let path = [Some(resource.as_str()), namespace, name.copied()];
        let selector = pairs.get("fieldSelector").map(|text| text.replace("%3D", "="));
        Self {
            group: group.to_owned(),
            path: path.into_iter().flatten().collect::<Vec<_>>().join("/"),
            resource,
            verb,
            version: pairs.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default(),
            node: selector.and_then(|text| text.strip_prefix("spec.nodeName=").map(str::to_owned)),
        }
    }

    fn selects(&self, object: &Value) -> bool {
        self.node.as_ref().is_none_or(|node| object["spec"]["nodeName"] == json!(node))
    }
}

fn merge(old: &mut Value, change: Value) {
    match change {
        Value::Object(change) => {
            if !old.is_object() {
                *old = json!({});
            }
            for (key, value) in change {
                match value {
                    Value::Null => drop(old.as_object_mut().and_then(|old| old.remove(&key))),
                    value => merge(&mut old[key], value),
                }
            }
        }
        other => *old = other,
    }
}

fn json_answer(code: u16, object: &Value) -> Answer {
    let body = Full::new(Bytes::from(object.to_string())).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).expect("an answer")
}

fn status_object(code: u16, reason: &str, message: &str, retry: u32) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code, "details": { "retryAfterSeconds": retry },
    })
}

fn status(code: u16, reason: &str, message: &str, retry: u32) -> Answer {
    json_answer(code, &status_object(code, reason, message, retry))
}

fn missing(target: &Target) -> Answer {
    status(404, "NotFound", &format!("{} not found", target.path), 0)
}
