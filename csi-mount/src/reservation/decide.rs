//! What the next step is, from what is registered at the device.

use super::Reservation;
use super::key::ReservationKey;
use crate::sys::reservation::{
    MAX_KEYS, Registrations, WRITE_EXCLUSIVE_ALL_REGISTRANTS, WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
};

/// What this call has found out about the registration from here: from this session of SCSI, or with this machine's
/// host identifier of NVMe.
#[derive(Debug, Default)]
pub(super) struct Here {
    /// The filesystem is mounted.
    pub(super) is_mounted: bool,
    /// The key that is registered from here.
    pub(super) own: Option<ReservationKey>,
    /// Keys that are not.
    pub(super) not_own: Vec<ReservationKey>,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// One of these can be the key that is registered from here.
    Find(Vec<ReservationKey>),
    Register(ReservationKey),
    /// The first key, which is registered from here, by the second one.
    Replace(ReservationKey, ReservationKey),
    /// With the first key, the registrations with the second one.
    Preempt(ReservationKey, ReservationKey),
    Reserve(ReservationKey),
    Done,
    Refuse(Refusal),
}

/// Why the node does not get the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A key of another program or of another cluster.
    Foreign(u64),
    /// The device is reserved in another way, by this key.
    OtherType(u64),
    /// More keys than are read.
    TooMany(u64),
    Newer(ReservationKey),
    /// Another machine took the device over.
    TakenOver,
    /// This key is registered from here, and was given to another node.
    Shared(ReservationKey),
    /// The storage forgets what is registered when it loses power.
    Forgets,
}

pub(super) fn decide(found: &Registrations, wanted: &Reservation, here: &Here) -> Step {
    let own = wanted.key;
    if found.count > MAX_KEYS as u64 {
        return Step::Refuse(Refusal::TooMany(found.count));
    }
    let mut keys = Vec::new();
    for number in &found.keys[..found.count as usize] {
        match ReservationKey::of(*number).filter(|key| key.is_of_cluster_of(own)) {
            Some(key) => keys.push(key),
            None => return Step::Refuse(Refusal::Foreign(*number)),
        }
    }
    let is_reserved = found.kind != 0;
    let is_for_registrants = [WRITE_EXCLUSIVE_REGISTRANTS_ONLY, WRITE_EXCLUSIVE_ALL_REGISTRANTS]
        .map(u64::from)
        .contains(&found.kind);
    if is_reserved && !is_for_registrants {
        return Step::Refuse(Refusal::OtherType(found.holder));
    }
    if let Some(newer) = keys.iter().find(|key| key.generation() > own.generation()) {
        return Step::Refuse(Refusal::Newer(*newer));
    }
    let is_current = |key: &ReservationKey| key.generation() == own.generation();
    let Some(registered) = here.own else {
        let unknown: Vec<_> = keys.iter().copied().filter(|key| !here.not_own.contains(key)).collect();
        if !unknown.is_empty() {
            return Step::Find(unknown);
        }
        if here.is_mounted && keys.iter().any(is_current) {
            return Step::Refuse(Refusal::TakenOver);
        }
        return Step::Register(own.none_of(&keys));
    };
    if !keys.contains(&registered) {
        return Step::Refuse(Refusal::TakenOver);
    }
    if !is_current(&registered) {
        return match &wanted.earlier {
            Some(earlier) if !earlier.contains(&registered.generation()) => {
                Step::Refuse(Refusal::Shared(registered))
            }
            _ => Step::Replace(registered, own.none_of(&keys)),
        };
    }
    if !found.persists && wanted.is_required() {
        return Step::Refuse(Refusal::Forgets);
    }
    // Another session has it too: one of this machine that is over, or another machine.
    if keys.iter().filter(|key| **key == registered).count() > 1 {
        return Step::Replace(registered, own.none_of(&keys));
    }
    match keys.iter().find(|key| **key != registered) {
        Some(victim) => Step::Preempt(registered, *victim),
        None if !is_reserved => Step::Reserve(registered),
        None => Step::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservation::Fencing;

    const TYPE: u64 = WRITE_EXCLUSIVE_REGISTRANTS_ONLY as u64;

    fn key(generation: u32) -> ReservationKey {
        ReservationKey::new("cluster", generation)
    }

    /// The same generation, from another session.
    fn second(generation: u32) -> ReservationKey {
        key(generation).none_of(&[key(generation)])
    }

    fn found(keys: &[ReservationKey], holder: Option<ReservationKey>) -> Registrations {
        let mut found = Registrations { persists: true, ..Registrations::default() };
        keys.iter().for_each(|key| found.add(key.number()));
        if let Some(holder) = holder {
            found.kind = TYPE;
            found.holder = holder.number();
        }
        found
    }

    fn here(own: Option<ReservationKey>, not_own: &[ReservationKey]) -> Here {
        Here { own, not_own: not_own.to_vec(), is_mounted: false }
    }

    fn required(earlier: &[u32]) -> Reservation {
        Reservation::new(key(5), Fencing::Required).earlier(earlier.iter().copied())
    }

    #[test]
    fn each_state_of_the_device_has_its_step() {
        use Step::{Done, Find, Preempt, Register, Replace, Reserve};
        let own = key(5);
        let other = second(5);
        for (keys, holder, here, expected) in [
            // A new volume.
            (&[][..], None, here(None, &[]), Register(own)),
            (&[own], None, here(Some(own), &[]), Reserve(own)),
            (&[own], Some(own), here(Some(own), &[]), Done),
            // Again, after a crash.
            (&[own], Some(own), here(None, &[]), Find(vec![own])),
            // After a reboot with another name of the session, the old session's registration is left.
            (&[own], Some(own), here(None, &[own]), Register(other)),
            (&[own, other], Some(own), here(Some(other), &[own]), Preempt(other, own)),
            (&[own, own], Some(own), here(Some(own), &[]), Replace(own, other)),
            (&[own, other], Some(own), here(None, &[own, other]), Register(own.none_of(&[own, other]))),
            // A takeover, also a crash during one.
            (&[key(3)], Some(key(3)), here(None, &[]), Find(vec![key(3)])),
            (&[key(3)], Some(key(3)), here(None, &[key(3)]), Register(own)),
            (&[key(3), own], Some(key(3)), here(None, &[key(3)]), Find(vec![own])),
            (&[key(3), own], Some(key(3)), here(Some(own), &[]), Preempt(own, key(3))),
            (&[own], None, here(Some(own), &[]), Reserve(own)),
            // The volume came back to the node, which has its earlier key still.
            (&[key(3)], Some(key(3)), here(Some(key(3)), &[]), Replace(key(3), own)),
        ] {
            let step = decide(&found(keys, holder), &required(&[3]), &here);
            assert_eq!(step, expected, "{keys:?}, reserved by {holder:?}, {here:?}");
        }
    }

    #[test]
    fn who_has_lost_the_device_is_refused() {
        let own = key(5);
        let refused = |keys: &[ReservationKey], here: &Here| match decide(
            &found(keys, keys.first().copied()),
            &required(&[3]),
            here,
        ) {
            Step::Refuse(refusal) => refusal,
            step => panic!("{keys:?}, {here:?}: {step:?}"),
        };
        let mounted = |own, not_own: &[ReservationKey]| Here { is_mounted: true, ..here(own, not_own) };
        for keys in [&[key(6)][..], &[own, key(6)], &[key(3), second(6)]] {
            for here in [here(None, &[]), here(Some(own), &[]), mounted(None, &[])] {
                assert!(matches!(refused(keys, &here), Refusal::Newer(key) if key.generation() == 6));
            }
        }
        // Another machine has the same generation: it was replaced, and has its predecessor's name.
        assert_eq!(refused(&[second(5)], &mounted(None, &[second(5)])), Refusal::TakenOver);
        assert_eq!(refused(&[], &here(Some(own), &[])), Refusal::TakenOver);
        assert_eq!(refused(&[key(3)], &mounted(Some(own), &[])), Refusal::TakenOver);
        // Two machines have one host identifier.
        assert_eq!(refused(&[key(4)], &here(Some(key(4)), &[])), Refusal::Shared(key(4)));
        let unknown = Reservation::new(own, Fencing::Required);
        let step = decide(&found(&[key(4)], None), &unknown, &here(Some(key(4)), &[]));
        assert_eq!(step, Step::Replace(key(4), own), "the controller does not say who had it");
    }

    /// It was mounted before the driver fenced, or the storage has lost its state.
    #[test]
    fn a_mounted_filesystem_registers_where_nobody_else_is() {
        let mounted = |not_own: &[ReservationKey]| Here { is_mounted: true, ..here(None, not_own) };
        assert_eq!(decide(&found(&[], None), &required(&[]), &mounted(&[])), Step::Register(key(5)));
        let step = decide(&found(&[key(3)], None), &required(&[]), &mounted(&[key(3)]));
        assert_eq!(step, Step::Register(key(5)), "the controller gave it to this node after that one");
    }

    #[test]
    fn what_forgets_is_not_required() {
        let forgets = Registrations { persists: false, ..found(&[key(3), key(5)], None) };
        let here = here(Some(key(5)), &[]);
        assert_eq!(decide(&forgets, &required(&[]), &here), Step::Refuse(Refusal::Forgets));
        let wanted = Reservation::new(key(5), Fencing::IfSupported);
        assert_eq!(decide(&forgets, &wanted, &here), Step::Preempt(key(5), key(3)));
    }

    #[test]
    fn what_belongs_to_others_is_left_alone() {
        let own = key(5);
        let foreign = ReservationKey::new("another", 1);
        for (is_mounted, registered) in [(false, None), (false, Some(own)), (true, None)] {
            let here = Here { is_mounted, own: registered, not_own: Vec::new() };
            let refused = |found: &Registrations| match decide(found, &required(&[]), &here) {
                Step::Refuse(refusal) => refusal,
                step => panic!("{step:?}"),
            };
            for number in [1, foreign.number(), u64::MAX] {
                let mut found = found(&[own], Some(own));
                found.add(number);
                assert_eq!(refused(&found), Refusal::Foreign(number));
            }
            for kind in [1, 2, 4, 6] {
                let found = Registrations { kind, ..found(&[own], Some(own)) };
                assert_eq!(refused(&found), Refusal::OtherType(own.number()));
            }
            let keys: Vec<_> = (0..20).map(key).collect();
            assert_eq!(refused(&found(&keys, None)), Refusal::TooMany(20));
        }
    }
}
