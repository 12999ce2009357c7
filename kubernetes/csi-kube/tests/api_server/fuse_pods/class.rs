//! What a class sets: the memory of a pod, and which volumes share one.

use csi_core::Error;
use csi_core::kubernetes::{FUSE_POD_KEY, Quantity};
use csi_kube::FusePods;
use serde_json::{Value, json};
use test_support::kube_api::ApiServer;

use super::{Cluster, PODS, all_rows, attach_with, during, id, names, node, pods, server};

/// Also a pod that is made again has what the class sets: the volume context has it.
#[tokio::test(start_paused = true)]
async fn a_class_sets_the_memory_within_the_bounds() {
    let server = server();
    let within =
        |most: u64| pods(&server).memory_parameter("memory", Quantity::new(128 << 20)..=Quantity::new(most));
    let pods = within(4 << 30);
    for text in ["127Mi", "4097Mi", "much", "-1", ""] {
        let error = pods.of_class([("memory", text)]).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{text}: {error}");
        let error = error.to_string();
        assert!(
            error.contains("parameters[memory]") && error.contains("from 128Mi to 4Gi"),
            "{text}: {error}"
        );
    }
    let limit = || server.objects(PODS)[0]["spec"]["containers"][0]["resources"]["limits"]["memory"].clone();
    for (class, due) in [(None, "256Mi"), (Some("128Mi"), "128Mi"), (Some("4096Mi"), "4Gi")] {
        let of_class = pods.of_class(class.map(|memory| ("memory", memory))).unwrap();
        during(&server, Cluster::Works, of_class.publish(&id("v"), &node())).await.unwrap();
        assert_eq!(limit(), due);
        attach_with(&server, "v", true, class.map_or(json!({}), |memory| json!({ "memory": memory })));
        server.delete_all(PODS);
        pods.sweep().await.unwrap();
        assert_eq!(limit(), due, "it is made again");
        server.delete_all(PODS);
    }
    within(1 << 30).sweep().await.unwrap();
    assert_eq!(limit(), "256Mi", "a later version of the driver has other bounds");
}

/// The volumes that use each pod, as its annotations say.
fn users(server: &ApiServer) -> Vec<Vec<String>> {
    let of_pod = |pod: &Value| {
        let annotations = pod["metadata"]["annotations"].as_object().unwrap();
        let users = annotations.iter().filter(|(key, _)| key.starts_with("csi-kube/volume"));
        let mut users: Vec<String> = users.map(|(_, user)| user.as_str().unwrap().to_owned()).collect();
        users.sort();
        users
    };
    let mut all: Vec<_> = server.objects(PODS).iter().map(of_pod).collect();
    all.sort();
    all
}

pub(crate) fn sharing(server: &ApiServer) -> FusePods {
    let most = Quantity::new(4 << 30);
    pods(server).share_parameter("bucket").memory_parameter("memory", Quantity::new(128 << 20)..=most)
}

#[tokio::test(start_paused = true)]
async fn volumes_with_the_same_share_have_one_pod_until_the_last_one_is_detached() {
    let server = server();
    server.allow(&all_rows());
    let pods = sharing(&server);
    let publish = async |volume: &str, bucket: &str| {
        let pods = pods.of_class([("bucket", bucket), ("other", "b")]).unwrap();
        let published = during(&server, Cluster::Works, pods.publish(&id(volume), &node())).await.unwrap();
        attach_with(&server, volume, true, json!({ "bucket": bucket }));
        published.publish_context[FUSE_POD_KEY].clone()
    };
    let unpublish = async |volume: &str| {
        for _ in 0..2 {
            during(&server, Cluster::Works, pods.unpublish(&id(volume), Some(&node()))).await.unwrap();
        }
        server.delete(&format!("volumeattachments/pv-{volume}"));
    };
    let first = publish("v", "b").await;
    assert_eq!(first, "fuse-efd00de03d71d3c9", "a later version finds it");
    for _ in 0..2 {
        assert_eq!(publish("w", "b").await, first);
    }
    assert_ne!(publish("x", "c").await, first);
    for volume in ["b", "y"] {
        assert_ne!(publish(volume, "").await, first, "without a value it has its own");
    }
    assert_eq!(users(&server), [vec!["b"], vec!["v", "w"], vec!["x"], vec!["y"]]);
    pods.sweep().await.unwrap();

    unpublish("v").await;
    assert_eq!(users(&server), [["b"], ["w"], ["x"], ["y"]]);
    unpublish("w").await;
    assert_eq!(users(&server), [["b"], ["x"], ["y"]]);
}

/// The others are users of the pod at once: each of them can be the last one that is detached.
#[tokio::test(start_paused = true)]
async fn a_shared_pod_that_is_made_again_has_all_its_volumes_and_the_largest_memory() {
    let server = server();
    let pods = sharing(&server);
    let classes = [("v", json!({ "bucket": "b", "memory": "1Gi" })), ("w", json!({ "bucket": "b" }))];
    let attach =
        || classes.iter().for_each(|(volume, class)| attach_with(&server, volume, true, class.clone()));
    attach();
    let check = |by: &str| {
        assert_eq!(users(&server), [["v", "w"]], "{by}");
        let pod = server.objects(PODS).remove(0);
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], json!("1Gi"), "{by}");
    };
    let of_bucket = pods.of_class([("bucket", "b")]).unwrap();
    during(&server, Cluster::Works, of_bucket.publish(&id("w"), &node())).await.unwrap();
    check("a publish");
    attach();
    server.delete_all(PODS);
    pods.sweep().await.unwrap();
    check("a sweep");
    // An earlier controller did not know that the other one was attached.
    let path = format!("{PODS}{}", names(&server)[0]);
    server.edit(&path, |pod| {
        pod["metadata"]["annotations"].as_object_mut().unwrap().retain(|_, value| value != "v");
    });
    assert_eq!(users(&server), [["w"]]);
    pods.sweep().await.unwrap();
    check("a sweep of a pod without one of them");
}

/// Each change of a pod is made before another controller's, which has seen the pod as it was.
#[tokio::test(start_paused = true)]
async fn a_shared_pod_is_not_deleted_under_a_volume_that_joins_it() {
    let pods_of = |server: &ApiServer| sharing(server).of_class([("bucket", "b")]).unwrap();
    let join = |server: &ApiServer| {
        let path = format!("{PODS}{}", names(server)[0]);
        server.edit(&path, |pod| pod["metadata"]["annotations"]["csi-kube/volume-w"] = json!("w"));
    };
    let by_unpublish = server();
    let pods = pods_of(&by_unpublish);
    during(&by_unpublish, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    by_unpublish.before("delete pods", join);
    during(&by_unpublish, Cluster::Works, pods.unpublish(&id("v"), Some(&node()))).await.unwrap();
    assert_eq!(users(&by_unpublish), [["w"]]);

    let by_sweep = server();
    let pods = pods_of(&by_sweep);
    during(&by_sweep, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    by_sweep.before("delete pods", join);
    pods.sweep().await.unwrap();
    assert_eq!(users(&by_sweep), [["v", "w"]]);
}

#[tokio::test(start_paused = true)]
async fn the_last_of_volumes_that_leave_a_shared_pod_at_once_deletes_it() {
    let server = server();
    let pods = sharing(&server).of_class([("bucket", "b")]).unwrap();
    for volume in ["v", "w"] {
        during(&server, Cluster::Works, pods.publish(&id(volume), &node())).await.unwrap();
    }
    let [v, w] = ["v", "w"].map(id);
    let both = async { tokio::join!(pods.unpublish(&v, None), pods.unpublish(&w, None)) };
    let (first, second) = during(&server, Cluster::Works, both).await;
    first.and(second).unwrap();
    assert!(names(&server).is_empty());
}
