//! Compares the table with a simple model of it: a list of what runs.

use std::any::Any;
use std::sync::Arc;

use csi_proto::Rpc;
use proptest::prelude::*;

use super::table::Permit;
use super::{Admission, Admitted, Claim, Key};
use crate::error::Error;

/// What the callers do: start one of a few requests, so that conflicts occur, or end a running operation.
#[derive(Debug, Clone)]
enum Step {
    Begin(Vec<(u8, bool)>),
    End(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let claims = prop::collection::vec((0_u8..5, any::<bool>()), 1..4).prop_map(|mut claims| {
        claims[0].1 = true;
        claims
    });
    let step =
        prop_oneof![3 => claims.prop_map(Step::Begin), 2 => any::<prop::sample::Index>().prop_map(Step::End)];
    prop::collection::vec(step, 1..60)
}

/// The claims with each key once, sorted by key. They also identify the request.
fn strongest(claims: &[(u8, bool)]) -> Vec<(u8, bool)> {
    (0..5)
        .filter(|key| claims.iter().any(|(claimed, _)| claimed == key))
        .map(|key| (key, claims.contains(&(key, true))))
        .collect()
}

fn meet(one: &[(u8, bool)], other: &[(u8, bool)]) -> bool {
    one.iter().any(|(key, alone)| {
        other.iter().any(|(theirs, theirs_alone)| key == theirs && (*alone || *theirs_alone))
    })
}

#[derive(Debug, PartialEq)]
enum Due {
    Run,
    Join,
    Refused,
}

fn due(running: &[(Vec<(u8, bool)>, Permit)], request: &[(u8, bool)]) -> Due {
    match running.iter().any(|(theirs, _)| theirs == request) {
        true => Due::Join,
        false if running.iter().any(|(theirs, _)| meet(theirs, request)) => Due::Refused,
        false => Due::Run,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CSI_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(500)
    ))]

    #[test]
    fn the_table_admits_as_a_list_of_what_runs_would(steps in steps()) {
        let admission = Arc::new(Admission::default());
        let mut running: Vec<(Vec<(u8, bool)>, Permit)> = Vec::new();
        for step in steps {
            match step {
                Step::End(which) if !running.is_empty() => drop(running.swap_remove(which.index(running.len()))),
                Step::End(_) => {}
                Step::Begin(asked) => {
                    let request = strongest(&asked);
                    let claims = asked.iter().map(|(key, alone)| {
                        let key = Key::Volume(key.to_string());
                        if *alone { Claim::alone(key) } else { Claim::shared(key) }
                    });
                    let join = |theirs: &(dyn Any + Send + Sync)| {
                        (theirs.downcast_ref() == Some(&request)).then_some(())
                    };
                    let have = admission.admit(
                        Rpc::ControllerExpandVolume, claims.collect(), Box::new(request.clone()), join,
                    );
                    let expected = due(&running, &request);
                    match have {
                        Ok(Admitted::Run(permit)) => {
                            prop_assert_eq!(expected, Due::Run);
                            running.push((request, permit));
                        }
                        Ok(Admitted::Join(())) => prop_assert_eq!(expected, Due::Join),
                        Err(error) => {
                            prop_assert!(matches!(error, Error::Pending(_)));
                            prop_assert_eq!(expected, Due::Refused);
                        }
                    }
                }
            }
            let held: std::collections::BTreeSet<u8> =
                running.iter().flat_map(|(claims, _)| claims.iter().map(|(key, _)| *key)).collect();
            prop_assert_eq!(admission.held_keys(), held.len());
        }
        running.clear();
        prop_assert_eq!(admission.held_keys(), 0);
    }
}
