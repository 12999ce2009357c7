//! Requests that cannot work: refused by name, before anything is mounted. Needs no root and no server.

mod support;

use csi_core::mount::testing::SimulatedNode;
use csi_core::testing::serve;
use support::*;
use tonic::Code;

#[tokio::test]
async fn requests_that_cannot_work_are_refused_by_name() {
    let places = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    let kubelet = std::path::Path::new("/var/lib/kubelet/v");
    node.create_dir(kubelet.join("staging"));
    let client = serve(driver().host(node), places.path()).await;
    let full = map(&[("username", "u"), ("password", "p")]);
    let none = map(&[("username", "u")]);
    let misspelt = map(&[("username", "u"), ("pasword", "p")]);
    let share = "//smb.example.org/share";
    for (context, group, secrets, code, part) in [
        (map(&[("source", share)]), "", &none, Code::Unauthenticated, "password"),
        (map(&[("source", share)]), "", &misspelt, Code::InvalidArgument, "did you mean password?"),
        (map(&[("source", "smb.example.org/share")]), "", &full, Code::InvalidArgument, "//server/share"),
        (map(&[("source", "//smb.example.org/share/../x")]), "", &full, Code::InvalidArgument, ".."),
        (map(&[("source", share), ("subDir", "pvc-1")]), "", &full, Code::NotFound, "static"),
        (map(&[("source", share), ("other", "x")]), "", &full, Code::InvalidArgument, "other"),
        (map(&[("source", share)]), "wheel", &full, Code::InvalidArgument, "group"),
        (map(&[]), "", &full, Code::NotFound, "static"),
    ] {
        let used = Use::new("static", context.clone(), capability(&[], group), kubelet, secrets);
        let error = used.stage(&client).await.unwrap_err();
        assert!(error.code() == code && error.message().contains(part), "{context:?}: {error}");
    }
    for (source, flags, secrets, code, part) in [
        (share, &[][..], &none, Code::Unauthenticated, "password"),
        ("/share", &[], &full, Code::InvalidArgument, "source"),
        (share, &["port=1,x"], &full, Code::InvalidArgument, "volume_capabilities.mount.mount_flags"),
    ] {
        let error = create(&client, "pvc", source, flags, secrets).await.unwrap_err();
        assert!(error.code() == code && error.message().contains(part), "{source} {flags:?}: {error}");
    }
    // Ids that the driver did not make are volumes that do not exist; nothing is mounted for them.
    for id in ["anything", "v1:h:a:", "v1:%2F%2Fh%2Fs:..:", "v1:%2F%2Fh%2Fs:a:soft", "v1:%2F%2Fh%2Fs%2F:a:"] {
        delete(&client, id, &full).await.unwrap();
    }
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_smb"));
}
