//! Watches: the changes of a collection as a stream of lines.

use std::convert::Infallible;
use std::time::Duration;

use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval_at, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use super::ApiServer;
use super::link::{Link, LinkState};
use super::request::{Answer, Failure, Target};
use super::state::Change;

const BOOKMARKS: Duration = Duration::from_secs(60);

/// What a watch sends next.
#[derive(Default)]
struct Batch {
    lines: Vec<String>,
    /// When the next change is shown, if watches are delayed.
    due: Option<Instant>,
    is_expired: bool,
}

struct Watch {
    server: ApiServer,
    target: Target,
    prefix: String,
    /// The version up to which changes are sent.
    sent: u64,
    lines: mpsc::Sender<Result<Frame<Bytes>, Infallible>>,
    link: Link,
}

pub(super) fn open(server: &ApiServer, target: Target, link: &Link) -> Answer {
    let (lines, receiver) = mpsc::channel(16);
    let prefix = format!("{}/", target.call.path);
    let watch = Watch { server: server.clone(), target, prefix, sent: 0, lines, link: link.clone() };
    tokio::spawn(watch.run());
    Response::new(StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync())
}

impl Watch {
    async fn run(mut self) {
        let mut changed = self.server.changed.subscribe();
        let mut link = self.link.subscribe();
        let has_bookmarks = self.target.query.get("allowWatchBookmarks").is_some_and(|value| value == "true");
        let mut bookmarks = interval_at(Instant::now() + BOOKMARKS, BOOKMARKS);
        let end = Instant::now() + Duration::from_secs(self.target.number("timeoutSeconds").unwrap_or(3600));
        // Without a version it begins with the objects as they are.
        match self.target.number("resourceVersion").filter(|version| *version > 0) {
            Some(version) => self.sent = version,
            None => {
                let lines = self.present();
                self.send(lines).await;
            }
        }
        loop {
            let batch = self.batch();
            if !self.send(batch.lines).await || batch.is_expired {
                return;
            }
            let due = batch.due;
            tokio::select! {
                changed = changed.changed() => if changed.is_err() { return },
                () = sleep_until(due.unwrap_or(end)), if due.is_some() => {}
                _ = bookmarks.tick(), if has_bookmarks => {
                    let lines = vec![self.bookmark()];
                    self.send(lines).await;
                }
                () = sleep_until(end) => return,
                () = cut(&mut link) => return,
                () = self.lines.closed() => return,
            }
        }
    }

    fn present(&mut self) -> Vec<String> {
        let state = self.server.state();
        let objects = state.objects.below(&self.prefix, "").map(|(_, object)| object);
        self.sent = state.objects.version;
        objects.filter(|object| self.target.selects(object)).map(|object| line("ADDED", object)).collect()
    }

    fn batch(&mut self) -> Batch {
        let state = self.server.state();
        let objects = &state.objects;
        if self.sent < objects.oldest_watch {
            let failure = Failure::new(410, "Expired", "too old resource version");
            return Batch { lines: vec![line("ERROR", &failure.status())], is_expired: true, due: None };
        }
        let delay = objects.watch_delays.get(&self.target.call.resource);
        let mut batch = Batch::default();
        for change in objects.changes_after(self.sent).filter(|change| change.path.starts_with(&self.prefix))
        {
            match delay {
                Some(None) => return batch,
                Some(Some(delay)) if change.at + *delay > Instant::now() => {
                    batch.due = Some(change.at + *delay);
                    return batch;
                }
                _ => {}
            }
            self.sent = change.version;
            batch.lines.extend(event(&self.target, change));
        }
        self.sent = objects.version;
        batch
    }

    fn bookmark(&self) -> String {
        let object = json!({
            "kind": self.target.call.resource,
            "apiVersion": self.target.api_version,
            "metadata": { "resourceVersion": self.sent.to_string() },
        });
        line("BOOKMARK", &object)
    }

    /// Sends lines as the link allows; false if the watch is at its end.
    async fn send(&mut self, lines: Vec<String>) -> bool {
        let mut link = self.link.subscribe();
        for line in lines {
            tokio::select! {
                is_cut = passes(&mut link) => if is_cut { return false },
                () = self.lines.closed() => return false,
            }
            if self.lines.send(Ok(Frame::data(Bytes::from(line)))).await.is_err() {
                return false;
            }
        }
        true
    }
}

/// Waits until events pass the link, and says whether it is cut instead.
async fn passes(link: &mut watch::Receiver<LinkState>) -> bool {
    let passes = |state: &LinkState| matches!(state, LinkState::Delay(_) | LinkState::Cut);
    link.wait_for(passes).await.map_or(true, |state| *state == LinkState::Cut)
}

/// Waits until the link is cut.
async fn cut(link: &mut watch::Receiver<LinkState>) {
    drop(link.wait_for(|state| *state == LinkState::Cut).await);
}

/// An object that begins or ceases to be selected is added or deleted.
fn event(target: &Target, change: &Change) -> Option<String> {
    let was_selected = change.old.as_ref().is_some_and(|old| target.selects(old));
    let is_selected = !change.is_deletion && target.selects(&change.object);
    let kind = match (was_selected, is_selected) {
        (false, false) => return None,
        (false, true) => "ADDED",
        (true, true) => "MODIFIED",
        (true, false) => "DELETED",
    };
    Some(line(kind, &change.object))
}

fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}
