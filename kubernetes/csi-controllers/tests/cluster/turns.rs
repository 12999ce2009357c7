//! Several processes, of which one works.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use crate::bed::Bed;
use crate::rules;

const CLAIMS: usize = 8;

/// In real time, because leases are compared with the clock of the machine.
#[tokio::test]
async fn another_process_takes_over_from_one_that_died() {
    tokio::time::timeout(Duration::from_secs(120), take_over()).await.expect("two minutes are enough");
}

async fn take_over() {
    let bed = Bed::new(&[]).await;
    let leases = rules::leases();
    for name in &leases {
        // The process that creates a lease waits before it leads.
        bed.apply(&format!("leases/driver/{name}"), json!({ "spec": {} }));
    }
    let holder = |name: &str| bed.get(&format!("leases/driver/{name}"))["spec"]["holderIdentity"].clone();
    let first = bed.start_in_turn();
    let is_held = |name: &String| holder(name).is_string();
    bed.until("the first process leads", || leases.iter().all(is_held)).await;
    let leader = holder(&leases[0]);
    let _second = bed.start_in_turn();
    // Each volume takes a write, and their records one at least.
    first.link.cut_after(CLAIMS);
    for at in 0..CLAIMS {
        bed.claim(&format!("data-{at}"));
    }
    first.link.crashed().await;
    drop(first);
    let created = bed.server.objects("persistentvolumes/").len();
    assert!(created < CLAIMS, "the first process had nothing left to do");
    assert_eq!(holder(&leases[0]), leader);

    for at in 0..CLAIMS {
        bed.bound(&format!("data-{at}")).await;
    }
    assert_ne!(holder(&leases[0]), leader);
    assert_eq!(bed.handles().len(), CLAIMS);
    assert_eq!(bed.stored("volumes"), bed.handles(), "the driver's volumes are those of the cluster");
    bed.delete_all("persistentvolumeclaims/").await;
    bed.none_is_left("persistentvolumes/").await;
    assert_eq!(bed.stored("volumes"), BTreeSet::new());
}
