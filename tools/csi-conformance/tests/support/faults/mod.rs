//! The faults, and the test of the kit that is about each.

/// The table of a file: what is wrong, the test of the kit that must find it, the fault, and how the mutant differs
/// from the usual one.
macro_rules! mutants {
    ($($name:literal, $due:literal: $fault:expr $(, $difference:ident)*;)+) => {
        vec![$(mutant($name, $due, $fault)$(.$difference())*),+]
    };
}

mod at_once;
mod attaching;
mod changing;
mod discovery;
mod facts;
mod foreign;
mod groups;
mod health;
mod in_use;
mod input;
mod life;
mod listing;
mod metadata;
mod missing;
mod node;
pub(crate) mod paging;
mod places;
mod rules;
mod shapes;
mod sidecars;
mod sizes;
mod snapshots;
mod volumes;

use std::pin::Pin;
use std::sync::Arc;

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message;
use tonic::{Code, Status};

use crate::proxy::{Answer, Behind, Fault, changed, changed_stream};
use shapes::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    Directories,
    Images,
    Filesystems,
    Inline,
}

/// What is allowed to remain after the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remains {
    Nothing,
    /// Because of the fault, something cannot be undone, or is not reported.
    Something,
}

pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) due: &'static str,
    pub(crate) driver: Driver,
    pub(crate) remains: Remains,
    pub(crate) fault: Fault,
}

impl Mutant {
    fn of_images(self) -> Self {
        Self { driver: Driver::Images, ..self }
    }

    fn of_filesystems(self) -> Self {
        Self { driver: Driver::Filesystems, ..self }
    }

    fn of_inline(self) -> Self {
        Self { driver: Driver::Inline, ..self }
    }

    fn leaves_something(self) -> Self {
        Self { remains: Remains::Something, ..self }
    }
}

fn mutant(name: &'static str, due: &'static str, fault: Fault) -> Mutant {
    Mutant { name, due, driver: Driver::Directories, remains: Remains::Nothing, fault }
}

pub(crate) fn all() -> Vec<Mutant> {
    [
        facts::all(),
        discovery::all(),
        input::all(),
        volumes::all(),
        listing::all(),
        places::all(),
        attaching::all(),
        changing::all(),
        snapshots::all(),
        groups::all(),
        metadata::all(),
        node::all(),
        foreign::all(),
        missing::all(),
        life::all(),
        in_use::all(),
        rules::all(),
        at_once::all(),
        sidecars::all(),
        sizes::all(),
        health::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn fault<F: Future<Output = Answer> + Send + 'static>(
    on: impl Fn(Rpc, Vec<u8>, Behind) -> F + Send + Sync + 'static,
) -> Fault {
    Arc::new(move |rpc, bytes, behind| Box::pin(on(rpc, bytes, behind)))
}

/// A fault that keeps state between calls.
fn with_state<S: Send + Sync + 'static, F: Future<Output = Answer> + Send + 'static>(
    state: S,
    on: impl Fn(Arc<S>, Rpc, Vec<u8>, Behind) -> F + Send + Sync + 'static,
) -> Fault {
    let state = Arc::new(state);
    fault(move |rpc, bytes, behind| on(state.clone(), rpc, bytes, behind))
}

/// A fault in one RPC; calls of other RPCs go to the driver unchanged.
fn only<F: Future<Output = Answer> + Send + 'static>(
    of: Rpc,
    on: impl Fn(Vec<u8>, Behind) -> F + Send + Sync + 'static,
) -> Fault {
    fault(move |rpc, bytes, behind| -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        if rpc == of {
            Box::pin(on(bytes, behind))
        } else {
            Box::pin(async move { behind.call(rpc, bytes).await })
        }
    })
}

pub(crate) fn none() -> Fault {
    fault(|rpc, bytes, behind| async move { behind.call(rpc, bytes).await })
}

/// Not a fault: the driver knows a volume by its publish context, and by nothing else.
pub(crate) fn knows_its_publish_context() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let context = match rpc {
            Rpc::NodeStageVolume => v1::NodeStageVolumeRequest::decode(&*bytes).unwrap().publish_context,
            Rpc::NodePublishVolume => v1::NodePublishVolumeRequest::decode(&*bytes).unwrap().publish_context,
            _ => return behind.call(rpc, bytes).await,
        };
        if !context.contains_key("access") {
            return Err(Status::invalid_argument("publish_context[access] is missing"));
        }
        match behind.call(rpc, bytes).await {
            Err(status) if status.code() == Code::NotFound => Ok(vec![]),
            answer => answer,
        }
    })
}

fn request<M: Message + Default + 'static>(of: Rpc, change: fn(&mut M)) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let bytes = if rpc == of { changed(&bytes, change) } else { bytes };
        behind.call(rpc, bytes).await
    })
}

fn answer<M: Message + Default + 'static>(of: Rpc, change: impl Fn(&mut M) + Send + Sync + 'static) -> Fault {
    with_state(change, move |change, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes).await?;
        Ok(if rpc == of { changed(&answer, |message| change(message)) } else { answer })
    })
}

fn stream<M: Message + Default + 'static>(of: Rpc, change: fn(&mut Vec<M>)) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes).await?;
        Ok(if rpc == of { changed_stream(&answer, change) } else { answer })
    })
}

/// The RPC answers OK and does nothing.
fn nothing(of: Rpc) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        if rpc == of { Ok(vec![]) } else { behind.call(rpc, bytes).await }
    })
}

fn status(change: fn(Rpc, &[u8], Status) -> Answer) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        match behind.call(rpc, bytes.clone()).await {
            Err(status) => change(rpc, &bytes, status),
            answer => answer,
        }
    })
}

/// Answers OK where the driver refuses with this code.
fn accepted(of: Rpc, code: Code) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        match behind.call(rpc, bytes).await {
            Err(status) if rpc == of && status.code() == code => Ok(vec![]),
            answer => answer,
        }
    })
}
