//! The path of a request: the record, hooks, faults, rules, and what it does.

use std::path::Path;

use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::request::{Answer, Call, Failure, Target, answer};
use super::{ApiServer, Fault, Hook, Link, kinds, watch};

impl ApiServer {
    /// Serves other processes over HTTP, without TLS, as long as the runtime lives. They find it by this kubeconfig,
    /// which is written here.
    ///
    /// # Panics
    ///
    /// If no port is free, or the file can't be written.
    pub async fn listen(&self, kubeconfig: &Path) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = server.clone();
                let link = Link::new();
                let service = service_fn(move |request: Request<Incoming>| {
                    let server = server.clone();
                    let link = link.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                        server.serve(Request::from_parts(head, Body::from(body)), "process", &link).await
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "test", "user": {} }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test", "namespace": "driver" } }],
        });
        std::fs::write(kubeconfig, config.to_string()).expect("a kubeconfig");
    }

    pub(super) async fn serve(
        &self,
        request: Request<Body>,
        client: &str,
        link: &Link,
    ) -> Result<Answer, std::io::Error> {
        let (head, body) = request.into_parts();
        if let Some(group) = kinds::discovered_group(head.uri.path()) {
            return Ok(self.discovery(group));
        }
        let body = body.collect_bytes().await.expect("a body");
        let mut target = Target::parse(&head, client);
        if !body.is_empty() {
            target.call.body = serde_json::from_slice(&body).expect("JSON");
        }
        // Events are written next to everything else, so they are no point of a crash.
        if !link.admits(target.call.is_write() && target.call.resource != "events") {
            std::future::pending::<()>().await;
        }
        if let Some(hook) = self.hook(&target.call) {
            hook(self);
        }
        let fault = {
            let mut state = self.state();
            state.calls.push(target.call.clone());
            let place = state.faults.iter().position(|(what, _)| target.call.matches(what));
            place.map(|place| state.faults.remove(place).1)
        };
        let injected = |code, reason, retry_seconds| {
            let failure = Failure { retry_seconds, ..Failure::new(code, reason, "injected") };
            Ok(answer(code, &failure.status()))
        };
        match fault {
            Some(Fault::Status(409)) => return injected(409, "Conflict", 0),
            Some(Fault::Status(code)) => return injected(code, "Injected", 0),
            Some(Fault::TooMany(seconds)) => return injected(429, "TooManyRequests", seconds),
            Some(Fault::NoAnswer) => std::future::pending().await,
            Some(Fault::Reset) => return Err(std::io::Error::other("connection reset")),
            Some(Fault::AnswerLost) | None => {}
        }
        let served = match self.refusal(&target.call) {
            Some(failure) => Err(failure),
            None if target.call.verb == "watch" => match target.refused_field() {
                Some(field) => Err(unsupported(&field)),
                None => return Ok(watch::open(self, target, link)),
            },
            None => self.execute(&target),
        };
        if let Some(Fault::AnswerLost) = fault {
            std::future::pending::<()>().await;
        }
        Ok(match served {
            Ok(object) => answer(if target.call.verb == "create" { 201 } else { 200 }, &object),
            Err(failure) => answer(failure.code, &failure.status()),
        })
    }

    /// The kinds of a group, of which only those of custom resources are known. Everybody is allowed to ask.
    fn discovery(&self, group: &str) -> Answer {
        let state = self.state();
        let is_served = |name: &str| !state.missing.contains(&format!("{group}/{name}"));
        let resources = kinds::custom_resources(group).iter().filter(|(name, _)| is_served(name));
        let resources: Vec<Value> = resources.map(|(name, kind)| kinds::discovered(name, kind)).collect();
        if kinds::custom_resources(group).is_empty() || state.missing.contains(group) {
            // Not an object but text: what serves the groups does not know this one.
            return answer(404, &json!("404 page not found"));
        }
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1"),
            "resources": resources,
        });
        answer(200, &list)
    }

    fn hook(&self, call: &Call) -> Option<Hook> {
        let mut state = self.state();
        let place = state.hooks.iter().position(|(what, _)| call.matches(what))?;
        Some(state.hooks.remove(place).1)
    }

    fn refusal(&self, call: &Call) -> Option<Failure> {
        let state = self.state();
        let own = format!("{}/{}", call.group, call.resource);
        if state.missing.contains(&call.group) || state.missing.contains(&own) {
            return Some(Failure::new(404, "NotFound", "the server could not find the requested resource"));
        }
        let resource = call.rule_resource();
        let is_allowed =
            state.rules.as_ref()?.iter().any(|(group, of, verbs)| {
                *group == call.group && *of == resource && verbs.contains(&call.verb)
            });
        let message = || format!("{resource} is forbidden: cannot {}", call.verb);
        (!is_allowed).then(|| Failure::new(403, "Forbidden", message()))
    }

    fn execute(&self, target: &Target) -> Result<Value, Failure> {
        let call = &target.call;
        let is_status = call.subresource.as_deref() == Some("status");
        let path = &call.path;
        match call.verb {
            "get" => self.state().objects.existing(path).map(|object| (*object).clone()),
            "list" => match target.refused_field() {
                Some(field) => Err(unsupported(&field)),
                None => self.state().objects.list(target),
            },
            "create" => {
                let namespace = &call.body["metadata"]["namespace"];
                if namespace.is_string() && namespace.as_str() != target.namespace.as_deref() {
                    let message = "the namespace of the object does not match the namespace of the request";
                    return Err(Failure::new(400, "BadRequest", message));
                }
                self.change(|objects| objects.create(path, call.body.clone()))
            }
            "update" => {
                // Kinds outside of the core group allow no update that overwrites whatever there is.
                if !call.group.is_empty() && !call.body["metadata"]["resourceVersion"].is_string() {
                    return Err(Failure::invalid(
                        "metadata.resourceVersion",
                        "must be specified for an update",
                    ));
                }
                self.change(|objects| objects.update(path, call.body.clone(), is_status))
            }
            "patch" => self.change(|objects| {
                let new = patched(&*objects.existing(path)?, target)?;
                objects.update(path, new, is_status)
            }),
            "delete" => self.change(|objects| objects.delete(path, &call.body)),
            other => panic!("{other}"),
        }
    }
}

fn patched(object: &Value, target: &Target) -> Result<Value, Failure> {
    let mut new = object.clone();
    match target.content_type.as_str() {
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_value(target.call.body.clone())
                .map_err(|error| Failure::new(400, "BadRequest", error.to_string()))?;
            json_patch::patch(&mut new, &patch)
                .map_err(|error| Failure::invalid("the server rejected the patch", &error.to_string()))?;
        }
        "application/apply-patch+yaml" => panic!("server-side apply is not simulated"),
        "application/strategic-merge-patch+json" => {
            let mut patch = target.call.body.clone();
            remove_finalizers(&mut new, &mut patch);
            json_patch::merge(&mut new, &patch);
        }
        _ => json_patch::merge(&mut new, &target.call.body),
    }
    Ok(new)
}

/// A strategic merge patch differs in lists only: of these, the removal of finalizers is simulated.
fn remove_finalizers(object: &mut Value, patch: &mut Value) {
    let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(Value::Array(removed)) = metadata.remove("$deleteFromPrimitiveList/finalizers") else { return };
    if let Some(Value::Array(finalizers)) = object.pointer_mut("/metadata/finalizers") {
        finalizers.retain(|finalizer| !removed.contains(finalizer));
    }
}

fn unsupported(field: &str) -> Failure {
    Failure::new(400, "BadRequest", format!("field label not supported: {field}"))
}
