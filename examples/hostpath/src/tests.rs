//! Tests: the plugin as its flags configure it.

use clap::{Parser as _, ValueEnum as _};

use csi_core::controller::GetCapacity as _;
use csi_core::proto::v1;
use csi_core::{CreateDeleteVolume as _, Error};

use crate::host::Driver;
use crate::{Args, Feature, plugin};

#[test]
fn no_two_pools_have_one_name() {
    let data = tempfile::tempdir().unwrap();
    let args = |pools: &[&str]| {
        let data = format!("--data={}", data.path().display());
        let flags = ["hostpath", "--node-id=n1", "--endpoint=/csi.sock", &data];
        Args::parse_from(flags.iter().chain(pools))
    };
    plugin(&args(&["--pool=a=1Gi", "--pool=b=1Gi"])).unwrap();
    let refused = plugin(&args(&["--pool=a=1Gi", "--pool=b=1Gi", "--pool=a=2Gi,zone=z"])).unwrap_err();
    assert_eq!(refused.to_string(), "--pool: a is the name of two pools");
}

/// Checks that a plugin without these features can be served.
#[track_caller]
pub(crate) fn starts(off: &[Feature]) {
    let data = tempfile::tempdir().unwrap();
    let socket = data.path().join("csi.sock");
    let mut flags = vec!["hostpath".to_owned(), "--node-id=n1".to_owned()];
    flags.push(format!("--endpoint={}", socket.display()));
    flags.push(format!("--data={}", data.path().join("data").display()));
    for feature in off {
        flags.push(format!("--without={}", feature.to_possible_value().unwrap().get_name()));
    }
    let args = Args::parse_from(flags);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = args.driver.endpoint().unwrap();
    let served = runtime.block_on(plugin(&args).unwrap().serve_until(&endpoint, async {}));
    assert!(served.is_ok(), "{off:?}: {served:?}");
}

/// A capability of a single writer: mounted with this filesystem, or as a raw device.
fn used_as(fs_type: Option<&str>) -> v1::VolumeCapability {
    use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
    let mounted = |fs_type: &str| MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: 1 }),
        access_type: Some(match fs_type {
            Some(fs_type) => AccessType::Mount(mounted(fs_type)),
            None => AccessType::Block(BlockVolume {}),
        }),
    }
}

/// Creates a volume of at least this size, and deletes it again.
async fn create_and_delete(driver: &Driver, class: &v1::GetCapacityRequest, bytes: u64) -> Result<(), Error> {
    let request = v1::CreateVolumeRequest {
        name: "v".to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 }),
        volume_capabilities: class.volume_capabilities.clone(),
        parameters: class.parameters.clone(),
        ..Default::default()
    };
    let volume = driver.create_volume(request.try_into()?).await?;
    let volume_id = volume.volume_id.to_string();
    let request = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
    driver.delete_volume(request.try_into()?).await
}

// spec: get-capacity.for-what-is-asked, get-capacity.sizes
#[tokio::test]
async fn a_reported_capacity_can_be_created_for_every_class_and_pool() {
    const MIB: u64 = 1 << 20;
    let data = tempfile::tempdir().unwrap();
    let mut creatable = 0;
    for bytes in [MIB - 1, 10_500_000, 109 * MIB, 300 * MIB - 1, (3 << 30) + 7] {
        for most in [None, Some(150_000_000)] {
            let mut flags = vec!["hostpath".to_owned(), "--node-id=n1".to_owned()];
            flags.push("--endpoint=/csi.sock".to_owned());
            flags.push(format!("--data={}", data.path().display()));
            flags.push(format!("--pool=a={bytes}"));
            flags.push(format!("--pool=b={}", bytes / 3 + 1));
            flags.extend(most.map(|most| format!("--max-volume-size={most}")));
            let driver = Driver::open(&Args::parse_from(flags)).unwrap();
            for fs_type in [None, Some(""), Some("ext4"), Some("xfs"), Some("btrfs")] {
                for parameters in
                    [&[][..], &[("kind", "directory")], &[("pool", "b")], &[("pool", "c")], &[("pol", "a")]]
                {
                    let class = v1::GetCapacityRequest {
                        volume_capabilities: vec![used_as(fs_type)],
                        parameters: parameters
                            .iter()
                            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                            .collect(),
                        ..Default::default()
                    };
                    let what = format!("pool {bytes}, limit {most:?}, {fs_type:?}, {parameters:?}");
                    let found = driver.capacity(class.clone().try_into().unwrap()).await.unwrap();
                    let largest = found.maximum_volume_size.unwrap_or(found.available_capacity);
                    if largest == 0 {
                        let created = create_and_delete(&driver, &class, 1).await;
                        assert!(created.is_err(), "{what}: it can be created, and no capacity is reported");
                        continue;
                    }
                    let least = found.minimum_volume_size.unwrap_or(1);
                    assert!(least <= largest, "{what}: {found:?}");
                    for size in [least, largest, least + (largest - least) / 2] {
                        let created = create_and_delete(&driver, &class, size).await;
                        assert!(created.is_ok(), "{what}: {size} of {found:?}: {created:?}");
                        creatable += 1;
                    }
                    if found.maximum_volume_size.is_some() {
                        assert!(
                            create_and_delete(&driver, &class, largest + 1).await.is_err(),
                            "{what}: {found:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(creatable > 100, "{creatable}");
}

// spec: topology.keys, topology.values
#[test]
fn a_node_or_pool_that_kubernetes_can_not_carry_is_refused_at_the_start() {
    let data = tempfile::tempdir().unwrap();
    let long = format!("--node-id={}", "n".repeat(64));
    for (bad, mode) in [
        ("--node-id=node one", "all"),
        ("--node-id=rack/7", "node"),
        ("--node-id=fe80::1", "controller"),
        (&long, "all"),
        ("--peer=node two", "controller"),
        ("--topology=zone=a b", "node"),
        ("--topology=a/b=c", "all"),
        ("--pool=p=1Gi,rack/7=a", "controller"),
        ("--pool=p=1Gi,rack=", "all"),
    ] {
        let node = if bad.contains("node-id") { bad } else { "--node-id=n1" };
        let socket = format!("--endpoint={}", data.path().join("csi.sock").display());
        let mode = format!("--mode={mode}");
        let data = format!("--data={}", data.path().join("data").display());
        let mut flags = vec!["hostpath", &socket, &data, &mode, node];
        flags.extend((node != bad).then_some(bad));
        let refused = plugin(&Args::parse_from(flags)).map(drop).unwrap_err().to_string();
        let (flag, _) = bad.split_once('=').unwrap();
        assert!(
            refused.starts_with(&format!("{flag}: ")) && refused.contains("1 to 63 of"),
            "{bad}: {refused}"
        );
    }
}
