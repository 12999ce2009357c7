//! Metadata, patches, the status, checks and deletion.

use serde_json::{Value, json};
use test_support::kube_api::ApiServer;

use crate::{ATTACHMENTS, CLAIMS, NODES, VOLUMES, claim, named, send, volume};

#[tokio::test(start_paused = true)]
async fn a_new_object_has_what_the_server_adds() {
    let server = ApiServer::new();
    let client = server.client();
    let mut sent = claim("a", "fast");
    sent["metadata"]["uid"] = json!("mine");
    sent["status"] = json!({ "phase": "Bound" });
    let first = send(&client, "POST", CLAIMS, sent).await.unwrap();
    assert_eq!(first["metadata"]["namespace"], "ns");
    assert_eq!(first["metadata"]["creationTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(first["status"], json!({ "phase": "Pending" }));
    let second = send(&client, "POST", CLAIMS, claim("b", "fast")).await.unwrap();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_ne!(first["metadata"]["uid"], "mine");
    assert_ne!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    assert_eq!(send(&client, "POST", CLAIMS, claim("a", "fast")).await, Err(409));
    let generated = json!({ "metadata": { "generateName": "event-" } });
    let [one, other] = [
        send(&client, "POST", NODES, generated.clone()).await,
        send(&client, "POST", NODES, generated).await,
    ];
    assert_ne!(one.unwrap()["metadata"]["name"], other.unwrap()["metadata"]["name"]);
    for name in ["", "A", "a_b", "-a", "a..b"] {
        assert_eq!(send(&client, "POST", CLAIMS, claim(name, "fast")).await, Err(422), "{name}");
    }
    let mut incomplete = claim("c", "fast");
    incomplete["spec"]["resources"] = json!({});
    assert_eq!(send(&client, "POST", CLAIMS, incomplete).await, Err(422));
    let mut elsewhere = claim("c", "fast");
    elsewhere["metadata"]["namespace"] = json!("other");
    assert_eq!(send(&client, "POST", CLAIMS, elsewhere).await, Err(400));
}

#[tokio::test(start_paused = true)]
async fn patches_change_what_they_name() {
    let server = ApiServer::new();
    let client = server.client();
    server.create("nodes", json!({ "metadata": { "name": "a", "labels": { "x": "1", "y": "2" } } }));
    let path = format!("{NODES}/a");
    let merge = json!({ "metadata": { "labels": { "x": null, "z": "3" } } });
    let merged = send(&client, "PATCH", &path, merge.clone()).await.unwrap();
    assert_eq!(merged["metadata"]["labels"], json!({ "y": "2", "z": "3" }));
    let again = send(&client, "PATCH", &path, merge).await.unwrap();
    assert_eq!(again, merged, "a patch that changes nothing makes no version");
    let empty = json!({ "metadata": { "finalizers": [], "annotations": {} } });
    assert_eq!(send(&client, "PATCH", &path, empty).await.unwrap(), merged);
    let operations = json!([
        { "op": "test", "path": "/metadata/labels/y", "value": "2" },
        { "op": "replace", "path": "/metadata/labels/y", "value": "4" },
        { "op": "remove", "path": "/metadata/labels/z" },
        { "op": "add", "path": "/metadata/finalizers", "value": ["example.org/f"] },
    ]);
    let patched = send(&client, "PATCH", &path, operations.clone()).await.unwrap();
    assert_eq!(patched["metadata"]["labels"], json!({ "y": "4" }));
    assert_eq!(patched["metadata"]["finalizers"], json!(["example.org/f"]));
    assert_eq!(send(&client, "PATCH", &path, operations).await, Err(422), "the test fails");
    let stale =
        json!({ "metadata": { "resourceVersion": merged["metadata"]["resourceVersion"], "labels": null } });
    assert_eq!(send(&client, "PATCH", &path, stale).await, Err(409));
    let other = json!({ "metadata": { "uid": "other", "labels": null } });
    assert_eq!(send(&client, "PATCH", &path, other).await, Err(409));
    assert_eq!(server.get("nodes/a").unwrap(), patched);
    assert_eq!(send(&client, "PATCH", &format!("{NODES}/b"), json!({})).await, Err(404));
}

#[tokio::test(start_paused = true)]
async fn the_status_is_written_apart() {
    let server = ApiServer::new();
    let client = server.client();
    let attachment =
        json!({ "metadata": { "name": "a" }, "spec": { "attacher": "d", "nodeName": "n", "source": {} } });
    let created = server.create("volumeattachments", attachment);
    let change = json!({ "metadata": { "labels": { "x": "1" } }, "status": { "attached": true } });
    let path = format!("{ATTACHMENTS}/a");
    let main = send(&client, "PATCH", &path, change.clone()).await.unwrap();
    assert_eq!(main["status"], Value::Null);
    let change = json!({ "metadata": { "labels": { "x": "2" } }, "status": { "attached": true } });
    let status = send(&client, "PATCH", &format!("{path}/status"), change).await.unwrap();
    assert_eq!(status["status"]["attached"], true);
    assert_eq!(status["metadata"]["labels"]["x"], "1");
    // An update outside of the core group is never unconditional.
    let mut update = status.clone();
    update["metadata"]["resourceVersion"] = Value::Null;
    assert_eq!(send(&client, "PUT", &path, update.clone()).await, Err(422));
    update["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"].clone();
    assert_eq!(send(&client, "PUT", &path, update).await, Err(409));
    assert_eq!(
        send(&client, "PATCH", "/apis/storage.k8s.io/v1/csinodes/a/status", json!({})).await,
        Err(404)
    );
}

#[tokio::test(start_paused = true)]
async fn fields_that_cannot_change_do_not() {
    let server = ApiServer::new();
    let client = server.client();
    let created = server.create("persistentvolumeclaims/ns", claim("a", "fast"));
    server.create("persistentvolumes", volume("v", &created));
    server.edit_status("persistentvolumeclaims/ns/a", |status| {
        *status = json!({ "phase": "Bound", "capacity": { "storage": "1Gi" } });
    });
    let claim = format!("{CLAIMS}/a");
    let volume = format!("{VOLUMES}/v");
    let size = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
    for (path, change, due) in [
        (&claim, size("2Gi"), None),
        (&claim, size("1500Mi"), None),
        (&claim, size("1000M"), Some(422)),
        (&claim, json!({ "spec": { "volumeAttributesClassName": "gold" } }), None),
        (&claim, json!({ "spec": { "storageClassName": "slow" } }), Some(422)),
        (&claim, json!({ "spec": { "volumeName": "v" } }), None),
        (&claim, json!({ "spec": { "volumeName": "w" } }), Some(422)),
        (&volume, json!({ "spec": { "capacity": { "storage": "2Gi" } } }), None),
        (&volume, json!({ "spec": { "csi": { "controllerExpandSecretRef": { "name": "s" } } } }), None),
        (&volume, json!({ "spec": { "csi": { "volumeHandle": "other" } } }), Some(422)),
        (&volume, json!({ "spec": { "capacity": null } }), Some(422)),
    ] {
        assert_eq!(send(&client, "PATCH", path, change.clone()).await.err(), due, "{change}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_stays_until_its_last_finalizer_is_removed() {
    let server = ApiServer::new();
    let client = server.client();
    let object = json!({ "metadata": { "name": "a", "finalizers": ["example.org/f", "example.org/g"] } });
    let created = server.create("nodes", object);
    let path = format!("{NODES}/a");
    for key in ["uid", "resourceVersion"] {
        let other = json!({ "preconditions": { key: "other" } });
        assert_eq!(send(&client, "DELETE", &path, other).await, Err(409), "{key}");
    }
    let right = json!({ "preconditions": { "uid": created["metadata"]["uid"] } });
    let deleting = send(&client, "DELETE", &path, right).await.unwrap();
    assert!(deleting["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(send(&client, "DELETE", &path, Value::Null).await.unwrap(), deleting, "it changes nothing");
    let finalizers = |names: Value| json!({ "metadata": { "finalizers": names, "deletionTimestamp": null } });
    let added = finalizers(json!(["example.org/f", "example.org/h"]));
    assert_eq!(send(&client, "PATCH", &path, added).await, Err(422));
    send(&client, "PATCH", &path, finalizers(json!(["example.org/g"]))).await.unwrap();
    assert!(server.get("nodes/a").unwrap()["metadata"]["deletionTimestamp"].is_string());
    send(&client, "PATCH", &path, finalizers(json!([]))).await.unwrap();
    assert_eq!(server.get("nodes/a"), None);
    server.create("nodes", named("b"));
    send(&client, "DELETE", &format!("{NODES}/b"), Value::Null).await.unwrap();
    assert_eq!(send(&client, "GET", &format!("{NODES}/b"), Value::Null).await, Err(404));
}

#[tokio::test(start_paused = true)]
async fn lists_have_pages_and_selectors() {
    let server = ApiServer::new();
    let client = server.client();
    for name in ["a", "b", "c", "d", "e"] {
        server.create("nodes", json!({ "metadata": { "name": name, "labels": { "of": name, "all": "x" } } }));
    }
    let names = |list: &Value| -> String {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect()
    };
    let mut pages = Vec::new();
    let mut next = String::new();
    loop {
        let page =
            send(&client, "GET", &format!("{NODES}?limit=2&continue={next}"), Value::Null).await.unwrap();
        pages.push(names(&page));
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        next = token.to_owned();
    }
    assert_eq!(pages, ["ab", "cd", "e"]);
    server.expire_watches();
    assert_eq!(send(&client, "GET", &format!("{NODES}?continue={next}"), Value::Null).await, Err(410));
    for (query, due) in [
        ("labelSelector=of%3Dc", "c"),
        ("labelSelector=all%3Dx%2Cof%21%3Dc", "abde"),
        ("labelSelector=of", "abcde"),
        ("labelSelector=%21of", ""),
        ("fieldSelector=metadata.name%3Dd", "d"),
    ] {
        let list = send(&client, "GET", &format!("{NODES}?{query}"), Value::Null).await.unwrap();
        assert_eq!(names(&list), due, "{query}");
    }
    let by_spec = format!("{ATTACHMENTS}?fieldSelector=spec.nodeName%3Dn");
    assert_eq!(send(&client, "GET", &by_spec, Value::Null).await, Err(400));
}
