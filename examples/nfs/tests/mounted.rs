//! The driver on real NFS mounts: of the server that the program has itself, and of the kernel's, versions 3 and 4.2.
//!
//! Not run by `cargo test`: it takes a kernel with client and server of NFS, and a machine of its own, which
//! `cargo xtask test --kernels` has.

mod support;

use nfs::VolumeArgs;
use nfs::try_out::{Class, Server, live};
use support::nfsd::Nfsd;
use support::*;

fn run<T>(test: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test())
}

/// A volume's life on this share.
async fn lives(class: &Class) {
    let places = Places::new();
    let plugin = places.driver(&VolumeArgs::default());
    with_plugin(plugin, &places, async |client| {
        let start = std::time::Instant::now();
        let tell = |step: &str| println!("{:6} ms  {step}", start.elapsed().as_millis());
        live(&client, class, places.path(), tell).await.unwrap();
    })
    .await;
}

#[test]
fn a_life_on_its_own_server() {
    raise_loopback();
    let server = Server::start().unwrap();
    run(async || lives(&server.class()).await);
}

#[test]
fn a_life_on_the_kernels_server_version_3() {
    let server = Nfsd::start();
    run(async || lives(&server.version_3()).await);
}

#[test]
fn a_life_on_the_kernels_server_version_4() {
    let server = Nfsd::start();
    run(async || lives(&server.version_4()).await);
}
