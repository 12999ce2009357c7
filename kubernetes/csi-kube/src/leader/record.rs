use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

/// The Lease as it was last seen, and when it last changed for this process.
///
/// The times in a Lease come from another machine's clock, so they are only compared for equality.
#[derive(Debug)]
pub(super) struct Observed {
    /// `None`: the Lease does not exist.
    spec: Option<LeaseSpec>,
    changed: Duration,
}

impl Observed {
    /// Compares the Lease with the one before; `now` is after the answer that has it.
    pub(super) fn update(this: &mut Option<Self>, lease: Option<&Lease>, now: Duration) {
        let spec = lease.map(|lease| lease.spec.clone().unwrap_or_default());
        match this {
            Some(last) if last.spec == spec => {}
            _ => *this = Some(Self { spec, changed: now }),
        }
    }

    /// Whether this process can write itself as the holder: nobody holds the Lease, or its holder has not
    /// renewed it for the time that this process and the Lease say.
    pub(super) fn is_free(&self, lease: Duration, now: Duration) -> bool {
        let Some(spec) = &self.spec else { return true };
        if spec.holder_identity.as_deref().unwrap_or_default().is_empty() {
            return true;
        }
        let recorded = u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
        now >= self.changed + lease.max(Duration::from_secs(recorded))
    }

    pub(super) fn holder(&self) -> Option<&str> {
        self.spec.as_ref()?.holder_identity.as_deref()
    }
}

/// The Lease as it is written to take the leadership: everything else in `last` stays, also its version, by
/// which the API server refuses the write if the Lease has changed.
pub(super) fn taken(last: Option<Lease>, name: &str, identity: &str, lease: Duration) -> Lease {
    let mut next = last.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: None,
    });
    let now = MicroTime(Timestamp::now());
    let spec = next.spec.get_or_insert_default();
    spec.holder_identity = Some(identity.to_owned());
    spec.lease_duration_seconds = i32::try_from(lease.as_secs()).ok();
    spec.acquire_time = Some(now.clone());
    spec.renew_time = Some(now);
    spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default().saturating_add(1));
    next
}

/// The Lease as a leader writes it to go on.
pub(super) fn renewed(mut lease: Lease) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    // Two renewals within a microsecond would look like none to the others.
    let after_last = spec.renew_time.as_ref().and_then(|last| {
        let microsecond = k8s_openapi::jiff::SignedDuration::from_micros(1);
        last.0.checked_add(microsecond).ok()
    });
    let now = Timestamp::now();
    spec.renew_time = Some(MicroTime(after_last.filter(|next| *next > now).unwrap_or(now)));
    lease
}

/// The Lease as a leader writes it when it gives the leadership up.
pub(super) fn released(mut lease: Lease) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = None;
    spec.acquire_time = None;
    spec.renew_time = None;
    lease
}

/// The number of times that the leadership was taken.
pub(super) fn term(lease: &Lease) -> u32 {
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
    u32::try_from(transitions).unwrap_or_default()
}
