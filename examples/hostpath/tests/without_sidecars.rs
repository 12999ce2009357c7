//! The driver without sidecars in a cluster with many volumes: how much memory it takes, and how long it starts. The
//! API server is this process's, so the driver's memory is counted alone.
//!
//! ```console
//! $ TMPDIR=/dev/shm CSI_TEST_VOLUMES=5000 cargo test --release -p hostpath --features controllers \
//!     --test without_sidecars -- --nocapture
//! ```

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::driver::Driver;
use test_support::kube_api::{ApiServer, Cluster};

const DRIVER: &str = "hostpath.csi.example.org";
const NODE: &str = "worker-1";
const VOLUMES: usize = 50;
const OFTEN: Duration = Duration::from_millis(1);
/// A look at all objects takes time, which the driver does not have then.
const RARELY: Duration = Duration::from_secs(1);
/// The most that the driver takes, in KiB. A debug build's program is larger, so only its private memory is compared.
const LIMIT: u64 = 30 << 10;

async fn until(what: &str, pause: Duration, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(900);
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within fifteen minutes");
        tokio::time::sleep(pause).await;
    }
}

/// Starts the driver with this data directory and these flags.
async fn start(directory: &TempDir, data: &str, flags: &[&str]) -> Driver {
    let file = |name: &str| directory.path().join(name);
    let socket = file("csi.sock");
    let mut program = Command::new(env!("CARGO_BIN_EXE_hostpath"));
    program.env("KUBECONFIG", file("kubeconfig")).arg(format!("--endpoint=unix://{}", socket.display()));
    program.arg(format!("--data={}", file(data).display())).arg(format!("--node-id={NODE}"));
    program.args(["--kind=directory", "--mode=controller", "--no-sidecars", "--log-level=warn"]);
    program.args(["--kube-api-qps=1000", "--kube-api-burst=1000"]).args(flags);
    Driver::start(program, socket).await
}

/// Makes claims and attachments, until the driver has created and attached all volumes.
async fn attach_volumes(server: &ApiServer, volumes: usize) {
    for at in 0..volumes {
        server.create_claim("team", &format!("data-web-{at}"), "1Mi", json!({}));
    }
    let is_bound = |claim: &Value| claim["status"]["phase"] == "Bound";
    until("all claims are bound", RARELY, || server.objects("persistentvolumeclaims/").iter().all(is_bound))
        .await;
    for volume in server.objects("persistentvolumes/") {
        let name = volume["metadata"]["name"].as_str().unwrap();
        // As long as Kubernetes' names.
        server.create_attachment(DRIVER, &format!("csi-{:0>64}", &name[4..]), name, NODE);
    }
    let attachments = || server.objects("volumeattachments/");
    until("all volumes are attached", RARELY, || {
        attachments().iter().all(|one| one["status"]["attached"] == true)
    })
    .await;
}

/// Gives each object what a real API server has of it, and the driver does not read.
fn add_managed_fields(server: &ApiServer) {
    let fields =
        json!({ "f:metadata": { "f:annotations": { ".": {}, "f:a.long/annotation-of-the-object": {} } } });
    let manager = |name: &str| json!({ "manager": name, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields });
    let managers =
        json!([manager("kube-controller-manager"), manager("hostpath"), manager("kube-scheduler")]);
    for kind in ["persistentvolumeclaims/", "persistentvolumes/", "volumeattachments/"] {
        for mut object in server.objects(kind) {
            let metadata = &object["metadata"];
            let namespace = metadata["namespace"].as_str().map(|name| format!("{name}/")).unwrap_or_default();
            let path = format!("{kind}{namespace}{}", metadata["name"].as_str().unwrap());
            object["metadata"]["managedFields"] = managers.clone();
            server.put(&path, object);
        }
    }
}

#[tokio::test]
async fn many_volumes_take_little_memory() {
    let volumes = std::env::var("CSI_TEST_VOLUMES").map_or(VOLUMES, |text| text.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let server = ApiServer::new();
    server.listen(&directory.path().join("kubeconfig")).await;
    server.create_node(DRIVER, NODE, &[]);
    server.create_class(DRIVER, "fast", json!({}));
    let mark = server.mark();
    {
        let _cluster = Cluster::start(&server);
        let _driver = start(&directory, "data", &[]).await;
        attach_volumes(&server, volumes).await;
    }
    let is_event = |resource: &str| ["events", "leases"].contains(&resource);
    let requests = server.requests_since(mark).into_iter().filter(|call| !is_event(&call.resource)).count();
    println!("{} requests per volume that is created and attached", requests as f64 / volumes as f64);
    // The sidecars create the object, write two finalizers, and the status.
    assert!(requests < 4 * volumes, "{requests}");
    add_managed_fields(&server);

    let mark = server.mark();
    // As a driver that remembers nothing of its volumes. This one's records of 5,000 volumes take 12 MiB.
    let forgets = ["--without=list", "--without=health", "--without=condition"];
    let driver = start(&directory, "nothing", &forgets).await;
    let idle = driver.status("VmRSS:");
    let is_seen = |verb: &str, resource: &str| {
        server.requests_since(mark).iter().any(|call| call.verb == verb && call.resource == resource)
    };
    // The lease of the killed process must run out first.
    until("the first cache is read", OFTEN, || is_seen("list", "persistentvolumeclaims")).await;
    let begin = Instant::now();
    until("the last cache is complete", OFTEN, || is_seen("watch", "volumegroupsnapshotclasses")).await;
    let synced = begin.elapsed();
    let field = if cfg!(debug_assertions) { "RssAnon:" } else { "VmRSS:" };
    let after_synced = driver.status(field);
    // What the lists took is given back with the memory of calls, as of the kubelet's liveness probe, after 20 s.
    driver.client().ready(Duration::from_secs(60)).await.unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end && driver.status(field) > LIMIT {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let least = driver.status(field);
    println!(
        "{volumes} volumes: caches complete after {synced:?}; {idle} KiB resident before, {after_synced} KiB ({field}) \
         then, {least} KiB in the end; {} KiB resident, {} KiB private, {} KiB at most",
        driver.status("VmRSS:"),
        driver.status("RssAnon:"),
        driver.status("VmHWM:"),
    );
    assert!(least <= LIMIT, "{least} KiB with {volumes} volumes");
}
