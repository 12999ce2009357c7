//! When CreateVolume was killed halfway, the same call completes the volume, and DeleteVolume removes it.

use std::fs;

use csi_core::proto::v1;
use csi_core::testing::serve;
use v1::volume_capability::access_mode::Mode;

const MIB: i64 = 1 << 20;

// spec: create-volume.same-name-same-volume
#[tokio::test]
async fn a_creation_that_was_killed_is_finished_or_removed() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    fs::create_dir(&pool).unwrap();
    let client = serve(block::plugin(pool.clone()), &directory).await;
    // As if it was killed before the image got its size.
    for name in ["finished", "removed"] {
        fs::File::create(pool.join(name)).unwrap();
    }
    let create = v1::CreateVolumeRequest {
        name: "finished".into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 4 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![v1::VolumeCapability::block(Mode::SingleNodeWriter)],
        ..Default::default()
    };
    for _ in 0..2 {
        let created = client.call(create.clone()).await.unwrap();
        assert_eq!(created.volume.unwrap().capacity_bytes, 4 * MIB);
        assert_eq!(fs::metadata(pool.join("finished")).unwrap().len(), 4 << 20);
    }
    // The orchestrator gives up, and deletes nothing.
    let larger_than_all = v1::CapacityRange { required_bytes: i64::MAX, limit_bytes: 0 };
    let refused = v1::CreateVolumeRequest {
        name: "refused".into(),
        capacity_range: Some(larger_than_all),
        ..create.clone()
    };
    let refused = client.call(refused).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
    assert!(!pool.join("refused").exists());
    for volume_id in ["finished", "removed"] {
        let delete = v1::DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() };
        client.call(delete).await.unwrap();
    }
    assert_eq!(fs::read_dir(&pool).unwrap().count(), 0);
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_block"));
}
