//! Tests: the plugin as its flags configure it.

use clap::{Parser as _, ValueEnum as _};

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
