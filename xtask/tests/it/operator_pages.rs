//! The flags and metrics in the pages for operators are those of the code.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::tree::read;

/// The words that begin with one of these, of letters, digits and underscores.
fn names<'a>(text: &'a str, starts: &[&str]) -> BTreeSet<&'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| starts.iter().any(|start| word.starts_with(start) && word != start)).collect()
}

/// csi-deploy makes a PrometheusRule from it.
const ALERTS: &str = "kubernetes/csi-deploy/docs/alerts.yaml";

#[test]
fn every_flag_of_a_driver_is_listed() {
    let source = read("csi-core/src/flags.rs");
    let page = read("docs/node-requirements.md");
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let variables = source.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let variables: BTreeSet<&str> = variables.collect();
    let rows = page.lines().filter(|line| line.starts_with("| `--"));
    let listed: BTreeSet<&str> = rows.filter_map(|row| row.split('`').nth(3)).collect();
    assert!(variables.len() > 10, "{variables:?}");
    assert_eq!(listed, variables);
}

#[test]
fn the_pages_name_the_metrics_of_the_code() {
    let starts = ["csi_plugin_", "process_"];
    let code = [read("csi-core/src/server/exposition.rs"), read("csi-core/src/server/process.rs")].concat();
    let quoted: String = code.split('"').skip(1).step_by(2).flat_map(|text| [text, " "]).collect();
    let known = names(&quoted, &starts);
    assert!(
        known.contains("csi_plugin_operations_seconds") && known.contains("process_max_fds"),
        "{known:?}"
    );
    // A counter is printed with an end that the code leaves out.
    let page = read("docs/metrics.md");
    let listed = names(&page, &starts).into_iter().map(|name| name.strip_suffix("_total").unwrap_or(name));
    assert_eq!(listed.collect::<BTreeSet<_>>(), known);
    let dashboard = read("docs/dashboard.json");
    let parsed: Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() > 5));
    for text in [&dashboard, &read(ALERTS)] {
        for name in names(text, &starts) {
            let family =
                ["_bucket", "_count", "_sum", "_total"].iter().find_map(|end| name.strip_suffix(end));
            assert!(known.contains(name) || family.is_some_and(|family| known.contains(family)), "{name}");
        }
    }
}

#[test]
fn every_alert_is_explained() {
    let alerts = read(ALERTS);
    let page = read("docs/metrics.md");
    let alerts: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    for alert in alerts {
        assert!(page.contains(&format!("| `{alert}` |")), "{alert}");
    }
}
