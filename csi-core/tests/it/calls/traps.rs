//! Places where the text of the spec and its callers differ: the framework does what the callers need.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use csi_core::controller::GetCapacityRequest;
use csi_core::node::{AtTarget, NodePublishVolumeRequest, NodeStageVolumeRequest, PublishedTargets};
use csi_core::types::Topology;
use csi_core::*;
use csi_proto::internal::TOKENS_KEY;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::*;
use crate::driver::{TestDriver, plugin};

// spec: node-get-volume-stats.missing
#[cfg(all(feature = "mount", target_os = "linux"))]
#[tokio::test]
async fn trap_1_stats_of_a_relative_or_unknown_path_are_not_found() {
    struct One(PathBuf);

    #[async_trait]
    impl Directories for One {
        async fn directory(&self, _: &VolumeId) -> Result<PathBuf> {
            Ok(self.0.clone())
        }
    }

    let directory = tempfile::tempdir().unwrap();
    let node = DirectoryNode::service(Arc::new(One(directory.path().to_owned())));
    let served = Served::start(Plugin::new("one.csi.example.org", "1").node(node)).await;
    // The root directory is a mount point, but no volume's place.
    let due = [("here", Code::NotFound), ("./here", Code::NotFound), ("/no/such/path", Code::NotFound)];
    for (path, code) in due.into_iter().chain([("/", Code::InvalidArgument)]) {
        let status = served.call(stats("v", path)).await.expect_err(path);
        assert_eq!(status.code(), code, "{path}: {status}");
    }
}

// spec: node-publish-volume.needs-staging-path
#[tokio::test]
async fn trap_2_an_inline_volume_has_no_staging_path() {
    let served = Served::start(plugin(&Arc::default())).await;
    let mut request = publish("v", "/target");
    request.staging_target_path.clear();
    refused(served.call(request.clone()).await, Code::FailedPrecondition);
    request.volume_context.insert("csi.storage.k8s.io/ephemeral".into(), "false".into());
    served.call(request.clone()).await.unwrap_err();
    request.volume_context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
    served.call(request).await.expect("inline volumes are never staged");
}

#[test]
fn capacity_is_asked_for_a_place_or_for_all() {
    let asks = |place: Option<v1::Topology>, here: &Topology| {
        let request = v1::GetCapacityRequest { accessible_topology: place, ..Default::default() };
        GetCapacityRequest::try_from(request).unwrap().is_for(here)
    };
    let node =
        |name: &str| v1::Topology { segments: map(&[("a.example.org/node", name)]).into_iter().collect() };
    let here = Topology::new("a.example.org/node", "n-1");
    assert!(asks(None, &here) && asks(Some(node("n-1")), &here));
    assert!(!asks(Some(node("n-2")), &here));
}

#[test]
fn trap_3_capacity_is_asked_with_a_storage_class_s_raw_parameters() {
    #[derive(serde::Deserialize)]
    struct Params {
        pool: String,
    }
    let raw = map(&[
        ("pool", "fast"),
        ("csi.storage.k8s.io/fstype", "xfs"),
        ("csi.storage.k8s.io/provisioner-secret-name", "s"),
        ("fstype", "xfs"),
    ]);
    let request = v1::GetCapacityRequest { parameters: raw.clone(), ..Default::default() };
    let request = GetCapacityRequest::try_from(request).expect("no capabilities are no mistake");
    assert_eq!(request.parameters.parse_known::<Params>().unwrap().pool, "fast");

    let created = |parameters| {
        let request =
            CreateVolumeRequest::try_from(v1::CreateVolumeRequest { parameters, ..create("v") }).unwrap();
        request.parameters.parse::<Params>().map(|params| params.pool).map_err(|error| error.to_string())
    };
    assert_eq!(created(map(&[("pool", "fast"), ("csi.storage.k8s.io/pvc/name", "p")])).unwrap(), "fast");
    assert!(created(raw).unwrap_err().starts_with("parameters[fstype]: is not a parameter of this driver"));
}

#[tokio::test]
async fn trap_4_what_the_caller_adds_to_a_context_is_not_the_volume_s() {
    let context = |added: &[(&str, &str)]| {
        let mut wire = map(added);
        wire.insert("made".into(), "here".into());
        let request = v1::NodePublishVolumeRequest { volume_context: wire, ..publish("v", "/target") };
        NodePublishVolumeRequest::try_from(request).unwrap().volume_context
    };
    for added in [
        ("storage.kubernetes.io/csiProvisionerIdentity", "1-8081-x"),
        ("csi.storage.k8s.io/pod.name", "web-0"),
        ("csi.storage.k8s.io/pod.uid", "u"),
        ("csi.storage.k8s.io/serviceAccount.name", "default"),
        ("csi.storage.k8s.io/ephemeral", "false"),
        (TOKENS_KEY, "{}"),
    ] {
        assert_eq!(context(&[added]).iter().collect::<Vec<_>>(), [("made", "here")], "{added:?}");
    }

    // A token for each of four audiences has more than the 4 KiB of a map.
    let tokens = "t".repeat(5000);
    let request = |key: &str| v1::NodePublishVolumeRequest {
        volume_context: map(&[("made", "here"), (key, &tokens)]),
        secrets: map(&[(TOKENS_KEY, &tokens)]),
        ..publish("v", "/target")
    };
    let taken = NodePublishVolumeRequest::try_from(request(TOKENS_KEY)).unwrap();
    assert_eq!(taken.volume_context.pod("serviceAccount.tokens"), Some(&*tokens));
    let error = NodePublishVolumeRequest::try_from(request("own")).unwrap_err();
    assert!(error.to_string().starts_with("volume_context: is 5011 bytes"), "{error}");

    // It is also the same volume for ValidateVolumeCapabilities.
    let served = Served::start(plugin(&Arc::default())).await;
    let validate = |volume_context| v1::ValidateVolumeCapabilitiesRequest {
        volume_id: "v".into(),
        volume_context,
        volume_capabilities: vec![mount_capability(1)],
        ..Default::default()
    };
    let added = map(&[
        ("made", "here"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
        ("csi.storage.k8s.io/pod.uid", "u"),
    ]);
    let answer = served.call(validate(added)).await.unwrap();
    assert!(answer.confirmed.is_some(), "{answer:?}");
    let other = served.call(validate(map(&[("made", "there")]))).await.unwrap();
    assert!(other.confirmed.is_none());
}

#[test]
fn trap_5_a_mount_flag_with_commas_is_one_flag() {
    let context = r#"context="system_u:object_r:container_file_t:s0:c1,c2""#;
    let mount_flags = vec!["noatime".into(), context.into()];
    let capability = mount_with(1, MountVolume { mount_flags, ..Default::default() });
    let request = v1::NodeStageVolumeRequest { volume_capability: Some(capability), ..stage("v") };
    let request = NodeStageVolumeRequest::try_from(request).unwrap();
    let flags: Vec<&str> = request.volume_capability.mount_flags().collect();
    assert_eq!(flags, ["noatime", context]);
    #[cfg(all(feature = "mount", target_os = "linux"))]
    {
        let options = csi_core::mount::MountOptions::parse(flags).unwrap();
        let [option] = options.filesystem() else { panic!("{options:?}") };
        assert_eq!(
            (option.key(), option.value()),
            ("context", Some("system_u:object_r:container_file_t:s0:c1,c2"))
        );
    }
    let wire = v1::VolumeCapability::from(&request.volume_capability);
    assert!(wire == request.raw().volume_capability.clone().unwrap(), "and it goes back as it came");
}

#[tokio::test]
async fn trap_6_a_republish_of_a_live_target_reaches_the_driver_with_its_fresh_token() {
    let driver = Arc::new(TestDriver::default());
    let tokens = Arc::new(Mutex::new(Vec::new()));
    driver.node_publish_volume.answers({
        let tokens = tokens.clone();
        move |request| {
            let token = request.volume_context.pod("serviceAccount.tokens").unwrap_or_default().to_owned();
            tokens.lock().unwrap().push(token);
            Ok(())
        }
    });
    let served = Served::start(plugin(&driver)).await;
    for token in ["one", "two", "three"] {
        let mut request = publish("v", "/target");
        request.staging_target_path.clear();
        request.volume_context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
        request.volume_context.insert(TOKENS_KEY.into(), token.into());
        served.call(request).await.unwrap();
        // From now on the driver finds its volume at the target.
        driver.published.answers(|()| Ok(PublishedTargets::new(AtTarget::Same, vec![])));
    }
    assert_eq!(*tokens.lock().unwrap(), ["one", "two", "three"]);
}

#[tokio::test]
async fn a_republish_while_the_first_runs_joins_it_whatever_its_token() {
    let driver = Arc::new(TestDriver::gated());
    let served = Served::start(plugin(&driver)).await;
    let with_token = |token: &str| {
        let mut request = publish("v", "/target");
        request.volume_context.insert(TOKENS_KEY.into(), token.into());
        served.begin(request)
    };
    let first = with_token("one");
    driver.until_begun(1).await;
    let second = with_token("two");
    // If it counted as another request, it would be refused at once.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!second.is_finished());
    driver.release(2);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(driver.begun.load(Ordering::SeqCst), 1);
}
