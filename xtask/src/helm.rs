//! `cargo xtask helm`: the charts of csi-deploy, read by Helm.

use std::path::Path;

use crate::step::Step;
use crate::{Failure, needs, target};

const PACKAGE: &str = "helm.sh/helm/v4/cmd/helm";
const VERSION: &str = "v4.3.1";

/// Builds Helm, and runs the tests that need it. Returns why nothing was run, if so.
pub(crate) fn run(root: &Path) -> Result<Option<String>, Failure> {
    if needs::find("go").is_none() {
        return Ok(Some("NOT RUN: csi-deploy's charts in Helm: there is no Go toolchain (`go`)".to_owned()));
    }
    println!("==> helm {VERSION}");
    let helm = target::installed_by_go(PACKAGE, VERSION)?.display().to_string();
    // With the features of the tests' step, which built the dependencies.
    let test = ["test", "--workspace", "--all-features", "--test", "helm"];
    Step::cargo("charts in Helm", test).env("HELM", helm).run(root)?;
    Ok(None)
}
