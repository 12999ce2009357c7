//! Calls from the plugin's own process.

use std::sync::Arc;

use csi_core::Error;
use csi_core::proto::v1::controller_client::ControllerClient;
use tonic::Code;

use crate::common::{Served, delete, expand};
use crate::driver::{TestDriver, plugin};

/// gRPC's own layer has two codes that are replaced. From the driver they mean what they say.
#[tokio::test]
async fn the_codes_of_the_driver_reach_a_local_caller() {
    let driver = Arc::new(TestDriver::default());
    let plugin = plugin(&driver);
    let mut controller = ControllerClient::new(csi_core::internal::local_calls(&plugin));
    let _served = Served::start(plugin).await;
    controller.delete_volume(delete("v")).await.unwrap();
    driver.delete_volume.answers(|_| Err(Error::Internal("the disk is broken".into())));
    assert_eq!(controller.delete_volume(delete("v")).await.unwrap_err().code(), Code::Internal);
    driver.controller_expand_volume.answers(|_| Err(Error::OutOfRange("too large".into())));
    let refused = controller.controller_expand_volume(expand("v", 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
}
