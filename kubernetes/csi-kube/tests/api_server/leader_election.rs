//! Two processes never lead at the same time, whatever happens to them, to the network and to their clocks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::kube_api::{ApiServer, Fault, Link, LinkState};

use crate::rows;
use csi_kube::internal::Clock;
use csi_kube::{Election, Error, Leadership, Timing, rules};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

const LEASE: &str = "leases/driver/block";

/// A process's clock: it shows any time, runs at its own speed, and can be set forward as if the machine had
/// slept.
#[derive(Clone)]
pub(crate) struct SkewedClock {
    start: Instant,
    pub(crate) offset: Arc<Mutex<Duration>>,
    percent: u32,
}

impl SkewedClock {
    pub(crate) fn new(offset: u64, percent: u32) -> Self {
        let offset = Arc::new(Mutex::new(Duration::from_secs(offset)));
        Self { start: Instant::now(), offset, percent }
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> Duration {
        *self.offset.lock().unwrap() + self.start.elapsed() * self.percent / 100
    }
}

pub(crate) fn server() -> ApiServer {
    let server = ApiServer::new();
    server.allow(&rows(rules::LEADER_ELECTION));
    server
}

pub(crate) fn election(server: &ApiServer, name: &str) -> (Election, Link) {
    let (client, link) = server.linked_client();
    (Election::new(client, "block").identity(name).clock(SkewedClock::new(0, 100)), link)
}

/// An existing Lease that nobody holds, as manifests can have it.
pub(crate) fn free_lease(server: &ApiServer) {
    server.put(LEASE, json!({ "metadata": { "name": "block", "labels": { "app": "x" } } }));
}

fn holder(server: &ApiServer) -> Value {
    server.get(LEASE).unwrap()["spec"]["holderIdentity"].clone()
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn the_first_leads_and_the_next_waits_until_it_is_gone() {
    let server = server();
    free_lease(&server);
    let (first, _) = election(&server, "a");
    let (second, _) = election(&server, "b");
    let leader = timeout(SECOND, first.lead()).await.unwrap();
    assert!(leader.is_leader() && leader.identity().starts_with("a_"), "{leader:?}");
    assert_eq!(holder(&server), leader.identity());
    assert_eq!(server.get(LEASE).unwrap()["metadata"]["labels"]["app"], "x");
    let waiting = tokio::spawn(async move { second.lead().await });
    sleep(600 * SECOND).await;
    assert!(leader.is_leader() && !waiting.is_finished());
    let start = Instant::now();
    let term = leader.term();
    drop(leader); // as if the process were killed
    let next = waiting.await.unwrap();
    // The lease duration from the last renewal, and one retry.
    assert!((12..19).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert!(next.term() > term, "{} {term}", next.term());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_resigns_is_followed_at_once() {
    let server = server();
    free_lease(&server);
    let leader = election(&server, "a").0.lead().await;
    let clone = leader.clone();
    let (second, _) = election(&server, "b");
    let waiting = tokio::spawn(async move { second.lead().await });
    sleep(30 * SECOND).await;
    leader.resign().await.unwrap();
    assert!(matches!(clone.check(), Err(Error::NotLeading)));
    timeout(SECOND, clone.lost()).await.unwrap();
    assert!(matches!(clone.resign().await, Err(Error::NotLeading)));
    timeout(3 * SECOND, waiting).await.unwrap().unwrap().check().unwrap();
}

/// Somebody can have deleted the Lease under a leader.
#[tokio::test(start_paused = true)]
async fn a_lease_that_does_not_exist_is_created_after_its_duration() {
    let server = server();
    let start = Instant::now();
    let leader = election(&server, "a").0.lead().await;
    assert!((15..19).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let (second, _) = election(&server, "b");
    let waiting = tokio::spawn(async move {
        let leadership = second.lead().await;
        (leadership, Instant::now())
    });
    sleep(5 * SECOND).await;
    server.delete(LEASE);
    leader.lost().await;
    let lost = Instant::now();
    let (_next, led) = waiting.await.unwrap();
    assert!(led > lost + 5 * SECOND, "{:?}", led - lost);
    server.assert_rules_used(&rows(rules::LEADER_ELECTION));
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_answers_stops_before_the_others_start() {
    for state in [LinkState::Cut, LinkState::AnswersLost, LinkState::Held, LinkState::Delay(6 * SECOND)] {
        let server = server();
        free_lease(&server);
        let (first, link) = election(&server, "a");
        let leader = first.lead().await;
        sleep(20 * SECOND).await;
        link.set(state);
        let start = Instant::now();
        leader.lost().await;
        let elapsed = start.elapsed();
        assert!((8 * SECOND..=10 * SECOND).contains(&elapsed), "{state:?}: {elapsed:?}");
        // The renewals that arrive now change nothing for this process.
        link.set(LinkState::Delay(Duration::ZERO));
        sleep(20 * SECOND).await;
        assert!(leader.check().is_err(), "{state:?}");
    }
}

/// No timer has run when a process acts on a machine that has just woken up.
#[tokio::test(start_paused = true)]
async fn a_process_that_was_frozen_finds_out_before_it_acts() {
    let server = server();
    free_lease(&server);
    let clock = SkewedClock::new(0, 100);
    let offset = Arc::clone(&clock.offset);
    let leader = election(&server, "a").0.clock(clock).lead().await;
    sleep(60 * SECOND).await;
    leader.check().unwrap();
    *offset.lock().unwrap() += 11 * SECOND;
    assert!(matches!(leader.check(), Err(Error::NotLeading)));
    // Also if the clock could be set back: what was seen as lost stays lost.
    *offset.lock().unwrap() -= 11 * SECOND;
    assert!(matches!(leader.check(), Err(Error::NotLeading)));
}

#[tokio::test(start_paused = true)]
async fn faults_that_pass_do_not_end_a_leadership() {
    let server = server();
    free_lease(&server);
    let leader = election(&server, "a").0.lead().await;
    for fault in [Fault::Status(500), Fault::TooMany(3), Fault::Reset, Fault::AnswerLost, Fault::Status(409)]
    {
        server.fail("update", fault);
        sleep(20 * SECOND).await;
        assert!(leader.is_leader(), "{fault:?}");
    }
    // Another client changes a label.
    let mut lease = server.get(LEASE).unwrap();
    lease["metadata"]["labels"]["app"] = json!("y");
    server.put(LEASE, lease);
    sleep(20 * SECOND).await;
    assert!(leader.is_leader());
    assert_eq!(server.get(LEASE).unwrap()["metadata"]["labels"]["app"], "y");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_stops_at_its_next_renewal() {
    let server = server();
    free_lease(&server);
    let leader = election(&server, "a").0.lead().await;
    let mut lease = server.get(LEASE).unwrap();
    lease["spec"]["holderIdentity"] = json!("somebody");
    server.put(LEASE, lease);
    timeout(3 * SECOND, leader.lost()).await.unwrap();
}

/// A process waits as long as it or the holder says, whatever is longer.
#[tokio::test(start_paused = true)]
async fn the_longer_lease_duration_counts() {
    let server = server();
    free_lease(&server);
    let timing = |lease| Timing::new(lease * SECOND, 10 * SECOND, 2 * SECOND).unwrap();
    let leader = election(&server, "a").0.timing(timing(60)).lead().await;
    let (second, _) = election(&server, "b");
    let waiting = tokio::spawn(async move { second.timing(timing(15)).lead().await });
    sleep(10 * SECOND).await;
    drop(leader);
    assert!(timeout(55 * SECOND, waiting).await.is_err());
}

/// A process that leads by another Lease takes this one over from its predecessor, and from nobody else.
#[tokio::test(start_paused = true)]
async fn a_further_lease_is_inherited() {
    let server = server();
    let seldom = Timing::new(60 * SECOND, 45 * SECOND, 20 * SECOND).unwrap();
    let further = |name| election(&server, name).0.inherits_from("block_").timing(seldom);
    let start = Instant::now();
    let first = further("a").lead().await;
    assert!((15..19).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let next = timeout(SECOND, further("b").lead()).await.unwrap();
    assert!(next.identity().starts_with("block_b_") && next.term() > first.term(), "{next:?}");
    timeout(25 * SECOND, first.lost()).await.unwrap();
    assert!(timeout(50 * SECOND, election(&server, "c").0.lead()).await.is_err(), "it inherits nothing");
    next.resign().await.unwrap();
    let other = election(&server, "c").0.lead().await;
    drop(other); // as if the process were killed
    let start = Instant::now();
    further("d").lead().await;
    assert!(start.elapsed() < 20 * SECOND, "{:?}", start.elapsed());
}

/// What happens in one step of a schedule.
#[derive(Debug, Clone)]
enum Happening {
    Link(usize, LinkState),
    Fault(&'static str, Fault),
    Resign,
    DeleteLease,
    EditLease,
    Nothing,
}

fn happening() -> impl Strategy<Value = Happening> {
    let process = 0..3_usize;
    let state = prop_oneof![
        3 => Just(LinkState::Delay(Duration::from_millis(1))),
        1 => Just(LinkState::Delay(Duration::from_millis(2_200))),
        2 => Just(LinkState::Cut),
        2 => Just(LinkState::AnswersLost),
        3 => Just(LinkState::Held),
    ];
    let fault = prop_oneof![
        Just(Fault::Status(409)),
        Just(Fault::Status(500)),
        Just(Fault::TooMany(4)),
        Just(Fault::NoAnswer),
        Just(Fault::AnswerLost),
        Just(Fault::Reset),
    ];
    let verb = prop_oneof![Just("get"), Just("update"), Just("create")];
    prop_oneof![
        6 => (process, state).prop_map(|(process, state)| Happening::Link(process, state)),
        2 => (verb, fault).prop_map(|(verb, fault)| Happening::Fault(verb, fault)),
        1 => Just(Happening::Resign),
        1 => Just(Happening::DeleteLease),
        1 => Just(Happening::EditLease),
        1 => Just(Happening::Nothing),
    ]
}

/// The speeds of clocks differ by less than lease duration to renew deadline, 3 to 2.
fn clock() -> impl Strategy<Value = (u64, u32)> {
    (0..1_000_000_u64, 90..=120_u32)
}

/// Plays a schedule with three processes, and looks ten times a second who would act.
async fn play(clocks: &[(u64, u32)], steps: &[(u64, Happening)]) -> Result<usize, String> {
    let server = server();
    free_lease(&server);
    let leading: Arc<Mutex<Vec<Leadership>>> = Arc::default();
    let mut links = Vec::new();
    for (number, (offset, percent)) in clocks.iter().enumerate() {
        let (election, link) = election(&server, &number.to_string());
        let election = election.clock(SkewedClock::new(*offset, *percent));
        links.push(link);
        let leading = Arc::clone(&leading);
        tokio::spawn(async move {
            loop {
                let leadership = election.lead().await;
                leading.lock().unwrap().push(leadership.clone());
                leadership.lost().await;
            }
        });
    }
    let mut term = 0;
    let mut is_numbered = true;
    let calm = (60_000, Happening::Nothing);
    for (milliseconds, happening) in steps.iter().chain([&calm]) {
        match happening {
            Happening::Link(process, state) => links[*process].set(*state),
            Happening::Fault(verb, fault) => server.fail(verb, *fault),
            Happening::Resign => {
                let leaders = leading.lock().unwrap().clone();
                if let Some(leader) = leaders.into_iter().find(Leadership::is_leader) {
                    tokio::spawn(leader.resign());
                }
            }
            Happening::DeleteLease if server.get(LEASE).is_some() => {
                server.delete(LEASE);
                // The numbers begin again.
                is_numbered = false;
            }
            Happening::EditLease if server.get(LEASE).is_some() => {
                let mut lease = server.get(LEASE).unwrap();
                lease["metadata"]["labels"]["edited"] = json!("yes");
                server.put(LEASE, lease);
            }
            Happening::DeleteLease | Happening::EditLease | Happening::Nothing => {}
        }
        if std::ptr::eq(happening, &calm.1) {
            links.iter().for_each(|link| link.set(LinkState::Delay(Duration::from_millis(1))));
        }
        for _ in 0..milliseconds / 100 {
            sleep(Duration::from_millis(100)).await;
            let all = leading.lock().unwrap();
            let acting: Vec<_> = all.iter().filter(|one| one.is_leader()).collect();
            if acting.len() > 1 {
                return Err(format!("two lead: {acting:?}"));
            }
            if let Some(leader) = acting.first() {
                if is_numbered && leader.term() < term {
                    return Err(format!("{leader:?} after term {term}"));
                }
                term = leader.term();
            }
        }
    }
    let all = leading.lock().unwrap();
    if all.iter().any(Leadership::is_leader) {
        Ok(all.len())
    } else {
        Err(format!("nobody leads after a calm minute: {all:?}"))
    }
}

#[test]
fn two_never_lead_under_any_schedule() {
    let cases = 40;
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let schedules = (
        proptest::collection::vec(clock(), 3),
        proptest::collection::vec((100..30_000_u64, happening()), 1..30),
    );
    let changes = std::cell::Cell::new(0);
    let result = runner.run(&schedules, |(clocks, steps)| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let led = runtime.unwrap().block_on(play(&clocks, &steps));
        changes.set(changes.get() + led.map_err(TestCaseError::fail)?);
        Ok(())
    });
    result.unwrap();
    // The schedules make leaders change.
    assert!(changes.get() > cases as usize * 2, "{} leaderships", changes.get());
}
