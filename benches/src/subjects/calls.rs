//! A call through the whole call path, compared with a handler on tonic alone, over the same kind of socket.

use crate::rpc::{Call, Server, Servers};
use crate::{Bench, Contestant, Place};

/// The number of ids that take turns when their number is not measured.
const SOME: usize = 1000;

fn calls(bench: &mut Bench<'_>, call: Call, clients: usize) {
    let place = Place::new();
    let servers = Servers::start(place.directory("sockets"));
    let mut bare = servers.clients(Server::Bare, clients);
    let mut whole = servers.clients(Server::Whole, clients);
    bench.compare([
        Contestant::bare("tonic alone", move |times| bare.run(call, times)),
        Contestant::ours("csi-core", move |times| whole.run(call, times)),
    ]);
}

pub(super) fn publish(bench: &mut Bench<'_>, clients: usize) {
    calls(bench, Call::Publish { volumes: SOME, parameters: 0 }, clients);
}

pub(super) fn question(bench: &mut Bench<'_>, clients: usize) {
    calls(bench, Call::Question, clients);
}

pub(super) fn volumes(bench: &mut Bench<'_>, volumes: usize) {
    calls(bench, Call::Publish { volumes, parameters: 0 }, 1);
}

pub(super) fn parameters(bench: &mut Bench<'_>, bytes: usize) {
    calls(bench, Call::Publish { volumes: SOME, parameters: bytes }, 1);
}
