//! What the next step is, from what is registered at the device.

use super::key::ReservationKey;
use crate::sys::reservation::{
    MAX_KEYS, Registrations, WRITE_EXCLUSIVE_ALL_REGISTRANTS, WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
};

/// What the node has at the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing that writes. It can register.
    Unused,
    /// This call has registered the key, and nothing writes yet.
    Registered,
    /// The filesystem is mounted. If the key is gone, the node was fenced, and must not register again.
    Mounted,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Register(ReservationKey),
    /// The first of these keys is the node's own if the device accepts its replacement by the last one.
    Replace(Vec<ReservationKey>, ReservationKey),
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
    /// The key was taken away.
    Fenced,
}

/// `not_own` are the older keys which the device did not let this node replace.
pub(super) fn decide(
    found: &Registrations,
    own: ReservationKey,
    progress: Progress,
    not_own: &[ReservationKey],
) -> Step {
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
    let older: Vec<_> = keys.iter().copied().filter(|key| key.generation() < own.generation()).collect();
    let same = || keys.iter().filter(|key| key.generation() == own.generation());
    let took_over = same().any(|key| key.took_over());
    let registered = if took_over { own.after_takeover() } else { own };
    if progress == Progress::Unused {
        let next = if older.is_empty() { registered } else { own.after_takeover() };
        let candidates: Vec<_> = same().copied().filter(|key| !not_own.contains(key)).collect();
        // A key that is there is not registered again: another node can have taken it away meanwhile.
        return if candidates.is_empty() { Step::Register(next) } else { Step::Replace(candidates, next) };
    }
    if same().next().is_none() {
        let candidates: Vec<_> = older.into_iter().filter(|key| !not_own.contains(key)).collect();
        let Some(first) = candidates.first().filter(|_| progress == Progress::Mounted) else {
            return Step::Refuse(Refusal::Fenced);
        };
        let next = if first.took_over() { own.after_takeover() } else { own };
        return Step::Replace(candidates, next);
    }
    match older.first() {
        // The key must say so before the other node loses its own: a crash in between loses nothing then.
        Some(_) if !took_over => Step::Replace(vec![own], own.after_takeover()),
        Some(victim) => Step::Preempt(registered, *victim),
        None if !is_reserved => Step::Reserve(registered),
        None => Step::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: u64 = WRITE_EXCLUSIVE_REGISTRANTS_ONLY as u64;

    fn key(generation: u32) -> ReservationKey {
        ReservationKey::new("cluster", generation)
    }

    fn taken(generation: u32) -> ReservationKey {
        key(generation).after_takeover()
    }

    fn found(keys: &[ReservationKey], holder: Option<ReservationKey>) -> Registrations {
        let mut found = Registrations { count: keys.len() as u64, ..Registrations::default() };
        for (place, key) in found.keys.iter_mut().zip(keys) {
            *place = key.number();
        }
        if let Some(holder) = holder {
            found.kind = TYPE;
            found.holder = holder.number();
        }
        found
    }

    #[test]
    fn each_state_of_the_device_has_its_step() {
        use Progress::{Mounted, Registered, Unused};
        let own = key(5);
        let fenced = Step::Refuse(Refusal::Fenced);
        for (keys, holder, progress, expected) in [
            // A new volume.
            (&[][..], None, Unused, Step::Register(own)),
            (&[own], None, Registered, Step::Reserve(own)),
            (&[own], Some(own), Registered, Step::Done),
            // Again, after a crash.
            (&[own], None, Unused, Step::Replace(vec![own], own)),
            (&[own], Some(own), Unused, Step::Replace(vec![own], own)),
            (&[own], Some(own), Mounted, Step::Done),
            (&[own], None, Mounted, Step::Reserve(own)),
            // After a reboot with another name of the session, the old session's registration is left.
            (&[own, own], Some(own), Registered, Step::Done),
            // A takeover.
            (&[key(3)], Some(key(3)), Unused, Step::Register(taken(5))),
            (&[key(3), taken(5)], Some(key(3)), Registered, Step::Preempt(taken(5), key(3))),
            (&[taken(5)], Some(taken(5)), Registered, Step::Done),
            (&[taken(5)], None, Registered, Step::Reserve(taken(5))),
            // A crash during the takeover.
            (&[key(3), taken(5)], Some(key(3)), Unused, Step::Replace(vec![taken(5)], taken(5))),
            (&[taken(5)], Some(taken(5)), Unused, Step::Replace(vec![taken(5)], taken(5))),
            (&[own, key(4)], Some(own), Unused, Step::Replace(vec![own], taken(5))),
            (&[taken(5)], Some(taken(5)), Mounted, Step::Done),
            // One takeover after the other.
            (&[taken(4), taken(3)], Some(taken(4)), Unused, Step::Register(taken(5))),
            // An older node comes late.
            (&[own, key(4)], Some(own), Mounted, Step::Replace(vec![own], taken(5))),
            (&[own, key(4)], Some(own), Registered, Step::Replace(vec![own], taken(5))),
            (&[taken(5), key(4)], Some(taken(5)), Mounted, Step::Preempt(taken(5), key(4))),
            // The volume came back to the node without having been elsewhere.
            (&[key(3)], Some(key(3)), Mounted, Step::Replace(vec![key(3)], own)),
            (&[taken(3)], Some(taken(3)), Mounted, Step::Replace(vec![taken(3)], taken(5))),
            // Fenced.
            (&[], None, Mounted, fenced.clone()),
            (&[], None, Registered, fenced.clone()),
            (&[key(3)], Some(key(3)), Registered, fenced.clone()),
            (&[key(6)], Some(key(6)), Mounted, Step::Refuse(Refusal::Newer(key(6)))),
            (&[own, key(6)], Some(own), Unused, Step::Refuse(Refusal::Newer(key(6)))),
            (&[own, taken(6)], None, Registered, Step::Refuse(Refusal::Newer(taken(6)))),
        ] {
            let step = decide(&found(keys, holder), own, progress, &[]);
            assert_eq!(step, expected, "{keys:?}, reserved by {holder:?}, {progress:?}");
        }
        // The key is that of the session before a reboot.
        assert_eq!(decide(&found(&[own], Some(own)), own, Unused, &[own]), Step::Register(own));
        // None of the older keys is the node's own.
        assert_eq!(decide(&found(&[key(3), key(4)], None), own, Mounted, &[key(3), key(4)]), fenced);
        assert_eq!(
            decide(&found(&[key(3), key(4)], None), own, Mounted, &[key(3)]),
            Step::Replace(vec![key(4)], own)
        );
    }

    #[test]
    fn what_belongs_to_others_is_left_alone() {
        let own = key(5);
        let foreign = ReservationKey::new("another", 1);
        for progress in [Progress::Unused, Progress::Registered, Progress::Mounted] {
            let refused = |found: &Registrations| match decide(found, own, progress, &[]) {
                Step::Refuse(refusal) => refusal,
                step => panic!("{step:?}"),
            };
            for number in [1, foreign.number(), u64::MAX] {
                let mut found = found(&[own, own], Some(own));
                found.keys[1] = number;
                assert_eq!(refused(&found), Refusal::Foreign(number));
            }
            for kind in [1, 2, 4, 6] {
                let found = Registrations { kind, ..found(&[own], Some(own)) };
                assert_eq!(refused(&found), Refusal::OtherType(own.number()));
            }
            let found = Registrations { count: 13, ..found(&[own; MAX_KEYS], None) };
            assert_eq!(refused(&found), Refusal::TooMany(13));
        }
    }
}
