//! What is to be done for a claim: a function of the objects, and of what this process remembers.

use std::time::Duration;

use super::{selected_node, volume_name};
use crate::keys;
use crate::memory::Failure;
use crate::objects::{Claim, Class, Kind as _, Volume};

/// What this process knows of a claim's volume, and the objects don't say, or not yet. A process that has just started
/// knows nothing, and repeats the call where a record is.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// The volume's object exists, although the cache can be without it.
    Saved,
    /// The last call failed, and left nothing behind. An infeasible one waits while the class with this uid stays.
    NothingLeft { failure: Failure, class: String },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// There is nothing to do for the claim as it is.
    Ignore,
    Delay(Duration),
    /// The record is not needed any more: the volume has its object.
    Finish,
    Create,
}

/// `is_recorded`: the claim has a record. `volume` is the object with the name of the claim's volume.
pub(super) fn decide(
    driver: &str,
    claim: &Claim,
    is_recorded: bool,
    class: Option<&Class>,
    volume: Option<&Volume>,
    known: Option<&Known>,
) -> Action {
    let is_wanted = claim.waits_for_volume();
    // A claim that is bound to the volume shows that the object existed. If it is gone now, then so is the data, and an
    // empty volume must not take its place.
    let is_saved = matches!(known, Some(Known::Saved))
        || *claim.spec.volume_name == *volume_name(claim.uid())
        || volume.is_some_and(|volume| volume.source_of(driver).is_some() && volume.is_of(claim.uid()));
    if is_recorded && is_saved {
        return Action::Finish;
    }
    if is_recorded && is_wanted {
        return Action::Create;
    }
    if !is_wanted || is_saved || volume.is_some() || provisioner(claim) != Some(driver) {
        return Action::Ignore;
    }
    let Some(class) = class else { return Action::Ignore };
    if class.provisioner != driver || (class.is_delayed() && selected_node(claim).is_none()) {
        return Action::Ignore;
    }
    if let Some(Known::NothingLeft { failure, class: failed }) = known
        && failed == class.uid()
        && let Some(pause) = failure.pause()
    {
        return Action::Delay(pause);
    }
    Action::Create
}

/// Which provisioner the claim waits for.
pub(super) fn provisioner(claim: &Claim) -> Option<&str> {
    claim.annotation(keys::STORAGE_PROVISIONER).or_else(|| claim.annotation(keys::STORAGE_PROVISIONER_BETA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Outcome;
    use crate::objects::of;
    use serde_json::json;

    /// A claim with these properties, by letter: `r`ecorded, `d`eleting, `b`ound to another volume or to
    /// its `o`wn, `n`ode chosen, `f`oreign.
    fn claim(letters: &str) -> Claim {
        let has = |letter| letters.contains(letter);
        let mut annotations = json!({keys::STORAGE_PROVISIONER: if has('f') { "other" } else { "d" }});
        if has('n') {
            annotations[keys::SELECTED_NODE] = json!("n1");
        }
        let deleted = has('d').then_some("2026-01-01T00:00:00Z");
        let bound = match letters {
            _ if has('b') => "another",
            _ if has('o') => "pvc-u1",
            _ => "",
        };
        of(json!({
            "metadata": {
                "name": "c", "uid": "u1", "annotations": annotations, "deletionTimestamp": deleted,
            },
            "spec": {"volumeName": bound},
        }))
    }

    fn class(provisioner: &str, mode: &str) -> Option<Class> {
        let metadata = json!({"name": "fast", "uid": "class-1"});
        of(json!({"metadata": metadata, "provisioner": provisioner, "volumeBindingMode": mode}))
    }

    fn volume(uid: &str) -> Option<Volume> {
        let spec = json!({"csi": {"driver": "d", "volumeHandle": "v"}, "claimRef": {"uid": uid}});
        of(json!({"metadata": {"name": "pvc-u1"}, "spec": spec}))
    }

    #[tokio::test(start_paused = true)]
    async fn actions() {
        let failed = |outcome: Outcome, class: &str| {
            let failure = Failure::new(outcome, None);
            Some(Known::NothingLeft { failure, class: class.to_owned() })
        };
        let left = || failed(Outcome::Final, "class-1");
        let slow = |class: &str| failed(Outcome::Infeasible, class);
        let pause = Duration::from_secs(300);
        let ours = || class("d", "Immediate");
        let delayed = || class("d", "WaitForFirstConsumer");
        let cases = [
            ("", ours(), None, None, Action::Create),
            ("f", ours(), None, None, Action::Ignore),
            ("d", ours(), None, None, Action::Ignore),
            ("b", ours(), None, None, Action::Ignore),
            ("", None, None, None, Action::Ignore),
            ("", class("other", "Immediate"), None, None, Action::Ignore),
            ("", delayed(), None, None, Action::Ignore),
            ("n", delayed(), None, None, Action::Create),
            // The object exists, or another one that has its name.
            ("", ours(), volume("u1"), None, Action::Ignore),
            ("", ours(), volume("u2"), None, Action::Ignore),
            ("r", ours(), volume("u1"), None, Action::Finish),
            ("rb", ours(), volume("u1"), None, Action::Finish),
            ("rd", ours(), volume("u1"), None, Action::Finish),
            ("rd", ours(), volume("u2"), None, Action::Ignore),
            // The cache is behind.
            ("r", ours(), None, Some(Known::Saved), Action::Finish),
            ("", ours(), None, Some(Known::Saved), Action::Ignore),
            // After a crash, whatever became of the claim.
            ("r", ours(), None, None, Action::Create),
            ("rf", delayed(), None, None, Action::Create),
            ("rd", ours(), None, None, Action::Ignore),
            ("rb", ours(), None, None, Action::Ignore),
            ("ro", ours(), None, None, Action::Finish),
            ("r", None, None, None, Action::Create),
            // After a call that left nothing.
            ("", ours(), None, left(), Action::Create),
            ("", delayed(), None, left(), Action::Ignore),
            ("", ours(), None, slow("class-1"), Action::Delay(pause)),
            ("", ours(), None, slow("class-2"), Action::Create),
        ];
        for (index, (letters, class, volume, known, expected)) in cases.into_iter().enumerate() {
            let is_recorded = letters.contains('r');
            let claim = claim(letters);
            let found = decide("d", &claim, is_recorded, class.as_ref(), volume.as_ref(), known.as_ref());
            assert_eq!(found, expected, "case {index}: {letters:?} {known:?}");
        }
    }
}
