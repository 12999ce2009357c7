//! Health and metrics over HTTP, and gRPC's own health.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_core::identity::Readiness;
use csi_core::{Error, Plugin};
use csi_proto::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::*;
use crate::driver::{TestDriver, plugin};

/// A driver's health.
#[derive(Debug, Clone, Copy)]
enum Health {
    Starting,
    Ready,
    Failed,
    Panics,
}

fn set(driver: &TestDriver, health: Health) {
    driver.probe.answers(move |()| match health {
        Health::Starting => Ok(Readiness::Starting),
        Health::Ready => Ok(Readiness::Ready),
        Health::Failed => Err(Error::Unhealthy("the array does not answer".into())),
        Health::Panics => panic!("as the test asked"),
    });
}

/// An address with a port that was free a moment ago.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub(super) async fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("somebody listens");
    let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(super) async fn served_with_http(plugin: Plugin) -> (Served, SocketAddr) {
    let address = free_address();
    (Served::start(plugin.http(address)).await, address)
}

#[tokio::test]
async fn health_has_three_values() {
    let driver = Arc::new(TestDriver::default());
    let (mut served, address) = served_with_http(plugin(&driver)).await;
    for (state, healthy, ready, word) in [
        (Health::Starting, 200, 503, "starting"),
        (Health::Ready, 200, 200, "ok"),
        (Health::Failed, 500, 503, "the array"),
        (Health::Panics, 500, 503, "panicked"),
    ] {
        set(&driver, state);
        let (status, body) = ask(address, "GET /healthz").await;
        assert_eq!(status, healthy, "{state:?}: {body}");
        assert!(body.contains(word), "{body}");
        assert_eq!(ask(address, "GET /readyz").await.0, ready, "{state:?}");
    }
    assert_eq!(ask(address, "POST /healthz").await.0, 405);
    assert_eq!(ask(address, "HEAD /metrics").await, (200, String::new()));
    assert_eq!(ask(address, "GET /").await.0, 404);

    drop(served.stop.take());
    served.server.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_plugin_that_stops_is_healthy_and_not_ready() {
    let driver = Arc::new(TestDriver::gated());
    let (mut served, address) = served_with_http(plugin(&driver)).await;
    let running = served.begin(stage("v"));
    driver.until_begun(1).await;
    assert_eq!(ask(address, "GET /readyz").await.0, 200);
    drop(served.stop.take());
    let mut answers = 0;
    let (status, body) = loop {
        match ask(address, "GET /readyz").await {
            (200, _) if answers < 2000 => answers += 1,
            answer => break answer,
        }
    };
    assert_eq!((status, body.as_str()), (503, "stopping\n"));
    assert_eq!(ask(address, "GET /healthz").await.0, 200, "a restart is not what it needs");
    driver.release(1);
    running.await.unwrap().expect("what runs is finished");
    served.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_address_that_is_taken_is_a_start_up_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("{}/csi.sock", directory.path().display()).parse().unwrap();
    let plugin = plugin(&Arc::default()).http(taken.local_addr().unwrap());
    let error = plugin.serve_until(&endpoint, std::future::pending()).await.unwrap_err();
    assert!(error.is_start_up() && error.to_string().contains("in use"), "{error}");
    assert!(!endpoint.path().exists());
}

#[tokio::test]
async fn a_prometheus_parser_reads_the_metrics() {
    let driver = Arc::new(TestDriver::gated());
    let (served, address) = served_with_http(plugin(&driver)).await;
    served.call(v1::ProbeRequest {}).await.unwrap();
    served.call(v1::NodeStageVolumeRequest::default()).await.unwrap_err();
    let running = served.begin(stage("v"));
    driver.until_begun(1).await;

    let (status, text) = ask(address, "GET /metrics").await;
    assert_eq!(status, 200);
    let families = parse(&text);
    let of = |method: &str, code: Option<&str>| {
        let mut labels = BTreeMap::from([("driver_name", "test.csi.example.org"), ("method_name", method)]);
        labels.extend(code.map(|code| ("grpc_status_code", code)));
        labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Labels>()
    };
    let seconds = &families["csi_plugin_operations_seconds"];
    assert_eq!(seconds.kind, "histogram");
    let count = |method, code| seconds.samples[&("_count".to_owned(), of(method, Some(code)))];
    assert_eq!(count("/csi.v1.Identity/Probe", "OK"), 1.0);
    assert_eq!(count("/csi.v1.Node/NodeStageVolume", "InvalidArgument"), 1.0);
    let mut bounds: Vec<f64> = seconds.samples.keys().filter_map(|(_, labels)| bound(labels)).collect();
    bounds.sort_by(f64::total_cmp);
    bounds.dedup();
    let due = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0, f64::INFINITY];
    assert_eq!(bounds, due);
    let in_flight = &families["csi_plugin_operations_in_flight"];
    assert_eq!(in_flight.samples[&(String::new(), of("/csi.v1.Node/NodeStageVolume", None))], 1.0);
    assert!(families.contains_key("csi_plugin_info"));
    if cfg!(target_os = "linux") {
        for name in ["process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"] {
            assert!(families.contains_key(name), "{name}");
        }
        let started = families["process_start_time_seconds"].samples.values().next().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - started).abs() < 3600.0, "began {started}, now {now}");
    }

    driver.release(1);
    running.await.unwrap().unwrap();
    let families = parse(&ask(address, "GET /metrics").await.1);
    let in_flight = &families["csi_plugin_operations_in_flight"];
    assert!(in_flight.samples.values().all(|value| *value == 0.0));
}

#[tokio::test]
async fn the_driver_s_own_metrics_are_served_too_and_the_plugin_s_can_be_written_alone() {
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::{metrics::counter::Counter, registry::Registry};
    let rebuilds = Counter::<u64>::default();
    let mut own = Registry::default();
    own.register("example_rebuilds", "Rebuilds of volumes", rebuilds.clone());
    let plugin = plugin(&Arc::default()).metrics(move |out| encode_registry(out, &own));
    let metrics = plugin.plugin_metrics();
    let (served, address) = served_with_http(plugin).await;
    rebuilds.inc_by(3);
    served.call(v1::ProbeRequest {}).await.unwrap();

    let families = parse(&ask(address, "GET /metrics").await.1);
    let count = &families["example_rebuilds"].samples;
    assert_eq!(count.values().copied().collect::<Vec<_>>(), [3.0]);
    assert!(families.contains_key("csi_plugin_operations_seconds"));

    let families = parse(&format!("{metrics}# EOF\n"));
    assert!(families["csi_plugin_operations_seconds"].samples.values().any(|value| *value == 1.0));
    assert!(!families.contains_key("process_open_fds"), "the driver's text can have its own");
}

#[tokio::test]
async fn metrics_that_the_driver_can_not_write_are_an_error_and_not_half_a_page() {
    let plugin = plugin(&Arc::default()).metrics(|_| Err(std::fmt::Error));
    let (_served, address) = served_with_http(plugin).await;
    let (status, body) = ask(address, "GET /metrics").await;
    assert_eq!(status, 500);
    assert!(body.contains("the driver's own metrics can't be written"), "{body}");
}

type Labels = BTreeMap<String, String>;

#[derive(Default)]
struct Family {
    kind: String,
    /// Samples by the suffix after the family's name, and by labels.
    samples: BTreeMap<(String, Labels), f64>,
}

fn bound(labels: &Labels) -> Option<f64> {
    labels.get("le").map(|bound| bound.parse().expect("a bound is a number, +Inf too"))
}

/// A strict parser of the Prometheus text format: panics at everything that a scraper would refuse.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'));
    let (mut families, mut helped) = (BTreeMap::<String, Family>::new(), BTreeSet::new());
    let mut current = String::new();
    let text = text.strip_suffix("# EOF\n").expect("the end of OpenMetrics");
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(helped.insert(help.split_once(' ').expect("a help text").0), "{line}");
        } else if let Some(of_type) = line.strip_prefix("# TYPE ") {
            let (name, kind) = of_type.split_once(' ').expect("a type");
            assert!(helped.contains(name) && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{line}");
            current = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = match series.split_once('{') {
                Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}').expect("a brace"))),
                None => (series, Labels::new()),
            };
            let part = name.strip_prefix(current.as_str()).unwrap_or_else(|| panic!("{line}"));
            let family = families.get_mut(&current).expect("its type stands above it");
            match family.kind.as_str() {
                "counter" => assert_eq!(part, "_total", "{line}"),
                kind => assert!(part.is_empty() != (kind == "histogram"), "{line}"),
            }
            let sample = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(family.samples.insert((part.to_owned(), labels), sample).is_none(), "twice: {line}");
        }
    }
    families.values().filter(|family| family.kind == "histogram").for_each(check_histogram);
    families
}

fn parse_labels(mut text: &str) -> Labels {
    let mut labels = Labels::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").expect("a quoted value");
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name}");
        let (value, rest) = rest.split_once('"').expect("a closing quote");
        assert!(!value.contains('\\'), "nothing here needs escaping");
        assert!(labels.insert(name.to_owned(), value.to_owned()).is_none(), "{name} twice");
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}

fn check_histogram(family: &Family) {
    let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for ((part, labels), value) in &family.samples {
        if part == "_bucket" {
            let mut others = labels.clone();
            others.remove("le").expect("a bound");
            series.entry(others).or_default().push((bound(labels).unwrap(), *value));
        }
    }
    for (labels, mut buckets) in series {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{labels:?}: not cumulative");
        let (last, count) = buckets.last().unwrap();
        assert_eq!(*last, f64::INFINITY);
        assert_eq!(*count, family.samples[&("_count".to_owned(), labels.clone())], "{labels:?}");
        assert!(family.samples.contains_key(&("_sum".to_owned(), labels)));
    }
}

#[tokio::test]
async fn grpc_health_is_the_plugins_probe() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let driver = Arc::new(TestDriver::default());
    let served = Served::start(plugin(&driver)).await;
    let mut health = HealthClient::new(served.client.channel());
    let of = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for (state, due) in [(Health::Starting, 2), (Health::Ready, 1), (Health::Failed, 2), (Health::Panics, 2)]
    {
        set(&driver, state);
        for service in ["", "csi.v1.Node"] {
            let status = health.check(of(service)).await.unwrap().into_inner().status;
            assert_eq!(status, due, "{state:?} {service}");
        }
    }
    assert_eq!(health.check(of("csi.v1.Other")).await.unwrap_err().code(), tonic::Code::NotFound);
    let mut watched = health.watch(of("")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
}

/// The time limit of a probe: one second, as the kubelet's. On a machine that has other work it is longer, by
/// what probes take there while nothing disturbs them.
async fn probe_limit(address: SocketAddr) -> Duration {
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(ask(address, "GET /healthz").await.0, 200);
    }
    Duration::from_secs(1) + begun.elapsed()
}

async fn probes_succeed(address: SocketAddr, limit: Duration) {
    for nth in 0..20 {
        let probe = tokio::time::timeout(limit, ask(address, "GET /healthz")).await;
        let (status, _) = probe.unwrap_or_else(|_| panic!("probe {nth}: no answer within {limit:?}"));
        assert_eq!(status, 200, "probe {nth}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_no_answers_keeps_no_probe_out() {
    let (_served, address) = served_with_http(plugin(&Arc::default())).await;
    let limit = probe_limit(address).await;
    let mut unread = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
        // The server is allowed to close before it has read all requests.
        let send = tokio::spawn(async move {
            drop(stream.write_all(requests.as_bytes()).await);
            std::future::pending::<TcpStream>().await
        });
        unread.push(send);
    }
    probes_succeed(address, limit).await;
    unread.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_keeps_no_probe_out() {
    let (_served, address) = served_with_http(plugin(&Arc::default())).await;
    let limit = probe_limit(address).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    probes_succeed(address, limit).await;
    // A request head that never ends is treated like silence.
    for stream in &mut silent {
        drop(stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await);
    }
    probes_succeed(address, limit).await;
}
