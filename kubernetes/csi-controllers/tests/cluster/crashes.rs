//! The process is killed between any two requests, while users create, grow, attach, snapshot and delete.

use std::time::Duration;

use serde_json::json;
use tonic::Code::{self, Aborted, DeadlineExceeded, Internal, ResourceExhausted, Unavailable};

use crate::bed::{Bed, RECORDS};
use crate::driver::Fault;

/// `CSI_TEST_ROUNDS` is another number of crashes, and `CSI_TEST_SEED` another sequence.
const ROUNDS: u64 = 40;
const NAMES: u64 = 5;

/// A sequence of numbers (xorshift), the same in each run.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// The users and controllers that this crate works for.
struct Users<'a> {
    bed: &'a Bed,
    numbers: Sequence,
}

impl Users<'_> {
    fn act(&mut self) {
        let bed = self.bed;
        let name = format!("data-{}", self.numbers.below(NAMES));
        let claim = format!("persistentvolumeclaims/team/{name}");
        let attachment = format!("volumeattachments/attachment-{name}");
        let snapshot = format!("volumesnapshots/team/{name}");
        let is_there = |path: &str| {
            bed.server.get(path).is_some_and(|object| object["metadata"]["deletionTimestamp"].is_null())
        };
        let is_free = |path: &str| bed.server.get(path).is_none();
        let found = bed.server.get(&claim).unwrap_or_default();
        let volume = found["spec"]["volumeName"].as_str();
        let volume = volume.filter(|volume| is_there(&format!("persistentvolumes/{volume}")));
        let is_bound = is_there(&claim) && found["status"]["phase"] == "Bound";
        match self.numbers.below(7) {
            0 if is_there(&claim) && is_free(&attachment) => bed.server.begin_deletion(&claim),
            0 | 1 if is_free(&claim) => bed.claim(&name),
            2 if is_bound => {
                let size = 1 + self.numbers.below(8);
                let has = found["spec"]["resources"]["requests"]["storage"].as_str().unwrap();
                let has: u64 = has.trim_end_matches("Mi").parse().unwrap();
                let size = format!("{}Mi", size.max(has));
                bed.apply(&claim, json!({ "spec": { "resources": { "requests": { "storage": size } } } }));
            }
            3 if is_there(&claim) && is_free(&attachment) => {
                if let Some(volume) = volume {
                    bed.attach(&format!("attachment-{name}"), volume);
                }
            }
            4 if is_there(&attachment) => bed.server.begin_deletion(&attachment),
            5 if is_bound && is_free(&snapshot) => {
                bed.apply(&snapshot, json!({ "spec": { "source": { "persistentVolumeClaimName": name } } }));
            }
            6 if is_there(&snapshot) => bed.server.begin_deletion(&snapshot),
            _ => {}
        }
    }

    fn disturb(&mut self) {
        const RPCS: [&str; 7] = [
            "CreateVolume",
            "DeleteVolume",
            "ControllerPublishVolume",
            "ControllerUnpublishVolume",
            "ControllerExpandVolume",
            "CreateSnapshot",
            "DeleteSnapshot",
        ];
        const CODES: [Code; 5] = [Unavailable, DeadlineExceeded, Aborted, Internal, ResourceExhausted];
        let rpc = RPCS[usize::try_from(self.numbers.below(7)).unwrap()];
        let code = CODES[usize::try_from(self.numbers.below(5)).unwrap()];
        // A driver that fails finally has left nothing, also not by an earlier call whose answer was lost.
        let is_final = [Internal, ResourceExhausted].contains(&code);
        match self.numbers.below(6) {
            0 if !(is_final && rpc.starts_with("Create")) => self.bed.calls.fail(rpc, Fault::Refused(code)),
            1 if !is_final => self.bed.calls.fail(rpc, Fault::Lost(code)),
            _ => {}
        }
    }
}

fn is_settled(bed: &Bed) -> bool {
    let count = |kind: &str| bed.server.objects(kind).len();
    bed.is_settled()
        && count("volumesnapshots/") == count("volumesnapshotcontents/")
        && count("persistentvolumes/") == count("persistentvolumeclaims/")
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_killed_anywhere_loses_and_leaves_nothing() {
    let bed = Bed::new(&[]).await;
    bed.apply("volumesnapshotclasses/kept", json!({}));
    let seed = variable("CSI_TEST_SEED", 1);
    let mut users = Users { bed: &bed, numbers: Sequence(0x9e37_79b9_7f4a_7c15 ^ seed) };
    let rounds = variable("CSI_TEST_ROUNDS", ROUNDS);
    let mut crashes = 0;
    for _ in 0..rounds {
        for _ in 0..3 {
            users.act();
            users.disturb();
        }
        let process = bed.start();
        let writes = usize::try_from(1 + users.numbers.below(6)).unwrap();
        if users.numbers.below(2) == 0 {
            process.link.cut_after(writes);
        } else {
            process.link.cut_before(writes);
        }
        let crashed = tokio::time::timeout(Duration::from_secs(20), process.link.crashed()).await;
        crashes += u64::from(crashed.is_ok());
    }
    println!("{crashes} of {rounds} processes were killed between two requests");
    assert!(crashes * 3 > rounds, "too few processes had something to do: {crashes}");

    let process = bed.start();
    bed.until("all is as users asked for", || is_settled(&bed)).await;
    bed.until("the driver's volumes are those of the cluster", || bed.stored("volumes") == bed.handles())
        .await;
    assert_eq!(bed.stored("snapshots").len(), bed.server.objects("volumesnapshots/").len());

    for kind in ["volumeattachments/", "volumesnapshots/", "persistentvolumeclaims/"] {
        bed.delete_all(kind).await;
    }
    bed.none_is_left("persistentvolumes/").await;
    bed.none_is_left("volumesnapshotcontents/").await;
    bed.until("no volume is left", || bed.stored("volumes").is_empty()).await;
    assert_eq!(bed.stored("snapshots").len(), 0);
    bed.until("no record is left", || bed.get(RECORDS)["data"] == json!({})).await;
    drop(process);
}

/// What is told of changes in a cache often has the cache itself.
#[test]
fn the_memory_of_a_process_is_given_back_with_its_work() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let calls = runtime.block_on(async {
        let (bed, _process) = Bed::started(&[]).await;
        bed.volume("data").await;
        bed.calls.clone()
    });
    drop(runtime);
    assert!(calls.are_over());
}
