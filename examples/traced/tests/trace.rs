//! The spans of a call, as they are exported.

use std::time::Duration;

use csi_core::client::Client;
use csi_core::proto::{escape, v1};
use csi_core::testing;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt as _;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// The spans of this thread.
fn exported() -> (InMemorySpanExporter, DefaultGuard) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("traced"));
    (exporter, tracing::subscriber::set_default(tracing_subscriber::registry().with(spans)))
}

async fn driver(directory: &tempfile::TempDir) -> Client {
    let plugin = dirs::plugin(directory.path().join("volumes"))
        .layer(tower::layer::layer_fn(traced::in_callers_trace));
    testing::serve(plugin, directory).await
}

/// The spans about this RPC, once both have ended: that of the operation ends after the answer.
async fn spans_of(exporter: &InMemorySpanExporter, rpc: &str) -> [SpanData; 2] {
    let is_of_rpc = |span: &&SpanData| span.attributes.iter().any(|one| one.value.as_str().ends_with(rpc));
    let both = async {
        loop {
            let spans = exporter.get_finished_spans().unwrap();
            let named = |name| spans.iter().filter(is_of_rpc).find(|span| span.name == name).cloned();
            if let (Some(grpc), Some(csi)) = (named("grpc"), named("csi")) {
                return [grpc, csi];
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("both spans end")
}

/// What runs for the call, on its own task too, is in the caller's trace.
#[tokio::test(flavor = "current_thread")]
async fn a_call_is_a_part_of_its_callers_trace() {
    let (exporter, _guard) = exported();
    let directory = tempfile::tempdir().unwrap();
    let client = driver(&directory).await;
    let capability = v1::VolumeCapability {
        access_mode: Some(v1::volume_capability::AccessMode { mode: 1 }),
        access_type: Some(v1::volume_capability::AccessType::Mount(Default::default())),
    };
    let mut request = tonic::Request::new(v1::CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![capability],
        ..Default::default()
    });
    let parent = format!("00-{TRACE}-{PARENT}-01");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    client.call::<v1::CreateVolumeRequest>(request).await.unwrap();

    let [grpc, csi] = spans_of(&exporter, "CreateVolume").await;
    assert_eq!(grpc.parent_span_id.to_string(), PARENT);
    assert_eq!(csi.parent_span_id, grpc.span_context.span_id());
    for span in [grpc, csi] {
        assert_eq!(span.span_context.trace_id().to_string(), TRACE);
    }
}

/// A caller's text is one line in each span and event, and is escaped once.
#[tokio::test(flavor = "current_thread")]
async fn no_span_has_a_control_character_of_a_request() {
    let (exporter, _guard) = exported();
    let directory = tempfile::tempdir().unwrap();
    let client = driver(&directory).await;
    let hostile = "a\nERROR forged\u{1b}[2J\u{202e}";
    let volume_id = hostile.to_owned();
    let create = v1::CreateVolumeRequest { name: hostile.to_owned(), ..Default::default() };
    client.call(create).await.unwrap_err();
    client
        .call(v1::DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() })
        .await
        .unwrap();
    let target_path = directory.path().join(hostile).display().to_string();
    client.call(v1::NodeUnpublishVolumeRequest { volume_id, target_path }).await.unwrap();

    for rpc in ["CreateVolume", "DeleteVolume", "NodeUnpublishVolume"] {
        let spans = spans_of(&exporter, rpc).await;
        for span in &spans {
            let events = span.events.iter();
            let of_events = events.clone().flat_map(|event| &event.attributes);
            let values = span.attributes.iter().chain(of_events).map(|one| one.value.to_string());
            for text in values.chain(events.map(|event| event.name.to_string())) {
                assert_eq!(escape::terminal(&text), text, "{rpc}");
            }
        }
        let subject = spans[1].attributes.iter().find(|one| one.key.as_str() == "subject");
        let subject = subject.map(|one| one.value.to_string());
        // A name with a control character is refused before the call has a subject.
        let due = (rpc != "CreateVolume").then(|| r"a\nERROR forged\u{1b}[2J\u{202e}".to_owned());
        assert_eq!(subject, due, "{rpc}");
    }
}
