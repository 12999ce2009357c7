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
mod facts;
mod foreign;
mod groups;
mod health;
mod input;
mod life;
mod listing;
mod node;
mod places;
mod rules;
mod shapes;
mod siblings;
mod sizes;
mod snapshots;
pub(crate) mod unusual;
mod volumes;

use csi_core::Rpc;
use csi_proto::{RpcRequest, v1};
use prost::Message;
use tonic::{Code, Status};

use crate::proxy::{Answer, Fault, asked, changed, changed_stream, fault, only, with_state};
use shapes::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    Directories,
    Images,
    Filesystems,
    TwoKinds,
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
        input::all(),
        volumes::all(),
        listing::all(),
        places::all(),
        attaching::all(),
        changing::all(),
        snapshots::all(),
        groups::all(),
        node::all(),
        foreign::all(),
        life::all(),
        rules::all(),
        at_once::all(),
        siblings::all(),
        sizes::all(),
        health::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(crate) fn none() -> Fault {
    fault(|rpc, bytes, behind| async move { behind.call(rpc, bytes).await })
}

/// Not a fault: the driver knows a volume by its publish context, and by nothing else.
pub(crate) fn knows_its_publish_context() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let staged = asked(rpc, &bytes).map(|r: v1::NodeStageVolumeRequest| r.publish_context);
        let published = asked(rpc, &bytes).map(|r: v1::NodePublishVolumeRequest| r.publish_context);
        let Some(context) = staged.or(published) else { return behind.call(rpc, bytes).await };
        if !context.contains_key("access") {
            return Err(Status::invalid_argument("publish_context[access] is missing"));
        }
        match behind.call(rpc, bytes).await {
            Err(status) if status.code() == Code::NotFound => Ok(vec![]),
            answer => answer,
        }
    })
}

fn request<R: RpcRequest>(change: impl Fn(&mut R) + Send + Sync + 'static) -> Fault {
    with_state(change, move |change, rpc, bytes, behind| async move {
        let bytes = if rpc == R::RPC { changed(&bytes, |message| change(message)) } else { bytes };
        behind.call(rpc, bytes).await
    })
}

fn answer<R: RpcRequest>(change: impl Fn(&mut R::Answer) + Send + Sync + 'static) -> Fault {
    with_state(change, move |change, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes).await?;
        Ok(if rpc == R::RPC { changed(&answer, |message| change(message)) } else { answer })
    })
}

fn stream<R: RpcRequest>(change: fn(&mut Vec<R::Answer>)) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes).await?;
        Ok(if rpc == R::RPC { changed_stream(&answer, change) } else { answer })
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
