//! What a request asks for, and the answers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;

use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct Call {
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, as `volumeattachments`.
    pub resource: String,
    /// The subresource, as `status`.
    pub subresource: Option<String>,
    /// The verb as access rules have it.
    pub verb: &'static str,
    /// The path of the object or the collection, as [`ApiServer::get`](super::ApiServer::get) takes it.
    pub path: String,
    /// The body, or null.
    pub body: Value,
    /// The user agent, or the name of the client if it sent none.
    pub user_agent: String,
}

impl Call {
    /// The resource as access rules have it: `volumeattachments/status`.
    pub fn rule_resource(&self) -> String {
        let slash = if self.subresource.is_some() { "/" } else { "" };
        format!("{}{slash}{}", self.resource, self.subresource.as_deref().unwrap_or_default())
    }

    /// Whether it changes an object.
    pub fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb)
    }

    /// Whether this is a verb, or a verb and a resource, that the request has.
    pub(super) fn matches(&self, what: &str) -> bool {
        match what.split_once(' ') {
            Some((verb, resource)) => verb == self.verb && resource == self.rule_resource(),
            None => what == self.verb,
        }
    }
}

/// Verb, path and subresource: `patch volumeattachments/va-1/status`.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.path)?;
        self.subresource.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

/// A request without its body.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) call: Call,
    pub(super) api_version: String,
    pub(super) namespace: Option<String>,
    pub(super) content_type: String,
    pub(super) query: BTreeMap<String, String>,
}

impl Target {
    pub(super) fn parse(head: &http::request::Parts, client: &str) -> Self {
        let mut parts = head.uri.path().trim_matches('/').split('/');
        let group = match parts.next() {
            Some("api") => "",
            _ => parts.next().expect("a group"),
        };
        let version = parts.next().expect("a version");
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = None;
        if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            namespace = Some(rest[1]);
            rest.drain(..2);
        }
        let name = rest.get(1).copied();
        let query = head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let query: BTreeMap<_, _> = query.map(|(key, value)| (key.to_owned(), decoded(value))).collect();
        let verb = match (head.method.as_str(), name) {
            ("GET", Some(_)) => "get",
            ("GET", None) if query.get("watch").is_some_and(|value| value == "true") => "watch",
            ("GET", None) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", Some(_)) => "delete",
            other => panic!("{other:?} is not simulated"),
        };
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let path: Vec<&str> = [Some(rest[0]), namespace, name].into_iter().flatten().collect();
        let call = Call {
            group: group.to_owned(),
            resource: rest[0].to_owned(),
            subresource: rest.get(2).map(|name| (*name).to_owned()),
            verb,
            path: path.join("/"),
            body: Value::Null,
            user_agent: header("user-agent").unwrap_or(client).to_owned(),
        };
        Self {
            call,
            api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
            namespace: namespace.map(str::to_owned),
            content_type: header("content-type").unwrap_or_default().to_owned(),
            query,
        }
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.query.get(key).and_then(|text| text.parse().ok())
    }

    /// Whether an object is in the collection and has what the selectors ask for.
    pub(super) fn selects(&self, object: &Value) -> bool {
        let labels = self.query.get("labelSelector").map_or("", String::as_str);
        let fields = self.query.get("fieldSelector").map_or("", String::as_str);
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        let field = |key: &str| object.pointer(&format!("/{}", key.replace('.', "/")))?.as_str();
        terms(labels).all(|term| holds(term, label)) && terms(fields).all(|term| holds(term, field))
    }

    /// The field of a selector that the real server refuses for this resource.
    pub(super) fn refused_field(&self) -> Option<String> {
        let fields = self.query.get("fieldSelector").map_or("", String::as_str);
        let names = terms(fields).map(|term| term.split(['=', '!']).next().unwrap_or_default());
        let is_known = |name: &&str| name.starts_with("metadata.") || self.call.resource == "pods";
        names.filter(|name| !is_known(name)).map(str::to_owned).next()
    }
}

fn terms(selector: &str) -> impl Iterator<Item = &str> {
    assert!(!selector.contains('('), "sets in selectors are not simulated: {selector}");
    selector.split(',').filter(|term| !term.is_empty())
}

fn holds<'a>(term: &str, value: impl Fn(&str) -> Option<&'a str>) -> bool {
    if let Some((key, due)) = term.split_once("!=") {
        return value(key) != Some(due);
    }
    match term.split_once('=') {
        Some((key, due)) => value(key) == Some(due.trim_start_matches('=')),
        None => match term.strip_prefix('!') {
            Some(key) => value(key).is_none(),
            None => value(term).is_some(),
        },
    }
}

fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().replace('+', " ").into_bytes();
    for part in parts {
        let (code, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(code, 16).expect("two hexadecimal digits"));
        bytes.extend(rest.replace('+', " ").bytes());
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Why a request fails.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) retry_seconds: u32,
}

impl Failure {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), retry_seconds: 0 }
    }

    pub(super) fn invalid(field: &str, message: &str) -> Self {
        Self::new(422, "Invalid", format!("{field}: {message}"))
    }

    pub(super) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
            "details": { "retryAfterSeconds": self.retry_seconds },
        })
    }
}

pub(super) fn answer(code: u16, object: &Value) -> Answer {
    let body = Full::new(Bytes::from(object.to_string())).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).expect("an answer")
}
