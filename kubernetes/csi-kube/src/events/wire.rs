use csi_core::proto::escape;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Report, Severity};

/// The limits of the API server.
const NOTE: usize = 1024;
const REASON: usize = 128;
/// Of the name of an event, with room for the time after that of its object.
const NAME: usize = 253 - 17;

/// Events are in the namespace of their object; those of objects without one are in `default`.
pub(super) fn namespace(regarding: &ObjectReference) -> &str {
    regarding.namespace.as_deref().unwrap_or("default")
}

pub(super) fn event(report: &Report, driver: &str, instance: &str, is_summary: bool) -> Event {
    let now = Timestamp::now();
    let note = if is_summary {
        format!("(one of several similar events) {}", report.note)
    } else {
        report.note.clone()
    };
    let object = cut(report.regarding.name.as_deref().unwrap_or(driver), NAME);
    let object = object.trim_end_matches(['-', '.']);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{object}.{:x}", now.as_nanosecond())),
            namespace: Some(namespace(&report.regarding).to_owned()),
            ..ObjectMeta::default()
        },
        // Required; what the driver did is in the reason.
        action: Some("Report".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(cut(&note, NOTE)),
        reason: Some(cut(&report.reason, REASON)),
        regarding: Some(report.regarding.clone()),
        reporting_controller: Some(driver.to_owned()),
        reporting_instance: Some(cut(instance, REASON)),
        type_: Some(match report.severity {
            Severity::Normal => "Normal".to_owned(),
            Severity::Warning => "Warning".to_owned(),
        }),
        ..Event::default()
    }
}

/// The change of an event that has happened `count` times.
pub(super) fn series(count: i32) -> Value {
    json!({ "series": { "count": count, "lastObservedTime": MicroTime(Timestamp::now()) } })
}

/// Escapes a text, which `kubectl` prints as it is, and cuts it after this many bytes, between two characters.
fn cut(text: &str, most: usize) -> String {
    let mut text = escape::terminal(text).into_owned();
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}
