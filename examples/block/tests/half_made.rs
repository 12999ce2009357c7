//! When CreateVolume was killed halfway, the same call completes the volume, and DeleteVolume removes it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csi_core::proto::v1;
use v1::controller_client::ControllerClient;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};

const MIB: i64 = 1 << 20;

/// A driver that is killed at the end of the test.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

// spec: create-volume.same-name-same-volume
#[tokio::test]
async fn a_creation_that_was_killed_is_finished_or_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (pool, socket) = (directory.path().join("pool"), directory.path().join("csi.sock"));
    fs::create_dir(&pool).unwrap();
    let endpoint = format!("unix://{}", socket.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_block"));
    command.env("CSI_ENDPOINT", &endpoint).env("BLOCK_POOL", &pool).stdin(Stdio::null());
    let mut driver = Driver(command.spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    while UnixStream::connect(&socket).is_err() {
        assert!(driver.0.try_wait().unwrap().is_none(), "the driver ended");
        assert!(Instant::now() < end, "the driver does not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
    let channel = tonic::transport::Endpoint::from_shared(endpoint).unwrap().connect_lazy();
    let mut controller = ControllerClient::new(channel);
    // As if it was killed before the image got its size.
    for name in ["finished", "removed"] {
        fs::File::create(pool.join(name)).unwrap();
    }
    let create = v1::CreateVolumeRequest {
        name: "finished".into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 4 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
            access_type: Some(AccessType::Block(BlockVolume {})),
        }],
        ..Default::default()
    };
    for _ in 0..2 {
        let created = controller.create_volume(create.clone()).await.unwrap().into_inner();
        assert_eq!(created.volume.unwrap().capacity_bytes, 4 * MIB);
        assert_eq!(fs::metadata(pool.join("finished")).unwrap().len(), 4 << 20);
    }
    for volume_id in ["finished", "removed"] {
        let delete = v1::DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() };
        controller.delete_volume(delete).await.unwrap();
    }
    assert_eq!(fs::read_dir(&pool).unwrap().count(), 0);
}
