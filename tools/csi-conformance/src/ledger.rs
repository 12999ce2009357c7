//! The ledger: what a run has created and not undone yet. It observes each call, so tests don't clean up by
//! themselves. It is also kept in a file, so that a run that died can be cleaned up.

use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use csi_proto::{Rpc, RpcRequest, v1};
use prost::Message;

use crate::journal::Journal;

/// A created object: the request that created it, and the id in its answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CreatedObject {
    pub(crate) rpc: Rpc,
    pub(crate) request: Vec<u8>,
    pub(crate) id: Option<String>,
    pub(crate) members: Vec<String>,
    /// Whether the call succeeded. If so, the object exists even if a repeated call is refused.
    pub(crate) done: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    made: Mutex<Vec<CreatedObject>>,
    /// What could not be undone. It is not tried again in this run, and stays in the journal.
    left: Mutex<Vec<CreatedObject>>,
    journal: Option<Journal>,
    /// Why the journal could not be written, if it could not.
    trouble: Mutex<Option<Error>>,
}

const MAKING: [Rpc; 6] = [
    Rpc::CreateVolume,
    Rpc::CreateSnapshot,
    Rpc::CreateVolumeGroupSnapshot,
    Rpc::ControllerPublishVolume,
    Rpc::NodeStageVolume,
    Rpc::NodePublishVolume,
];

impl Ledger {
    /// Opens the ledger with the content of the journal.
    ///
    /// # Errors
    /// `WouldBlock` while another run holds the journal; other kinds when it can't be read.
    pub(crate) fn open(journal: Option<PathBuf>) -> Result<Self> {
        let journal = journal.map(Journal::take).transpose()?;
        let text = journal.as_ref().map_or_else(|| Ok(String::new()), Journal::read)?;
        let made = text.lines().enumerate().map(|(at, line)| {
            let words = || format!("line {} is not a valid journal line", at + 1);
            read_line(line).ok_or_else(|| Error::new(ErrorKind::InvalidData, words()))
        });
        let made = made.collect::<Result<_>>()?;
        Ok(Self { made: Mutex::new(made), journal, ..Self::default() })
    }

    pub(crate) fn all(&self) -> Vec<CreatedObject> {
        self.made.lock().expect("no panic under it").clone()
    }

    pub(crate) fn journal(&self) -> Option<&Path> {
        self.journal.as_ref().map(Journal::path)
    }

    /// Takes the error of a failed journal write, if there was one.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.trouble.lock().expect("no panic under it").take()
    }

    /// Called before the call is sent, because it can create something even if its caller gives up.
    pub(crate) fn begins(&self, rpc: Rpc, without_secrets: &[u8]) {
        if MAKING.contains(&rpc) {
            let made = CreatedObject {
                rpc,
                request: without_secrets.to_vec(),
                id: None,
                members: vec![],
                done: false,
            };
            let mut all = self.made.lock().expect("no panic under it");
            if !all.contains(&made) {
                all.push(made);
            }
            self.write(&all);
        }
    }

    pub(crate) fn succeeded(&self, rpc: Rpc, without_secrets: &[u8], answer: &[u8]) {
        let mut all = self.made.lock().expect("no panic under it");
        if MAKING.contains(&rpc) {
            let (id, members) = id_in(rpc, answer);
            all.retain(|made| !(made.rpc == rpc && !made.done && made.request == without_secrets));
            if !all.iter().any(|made| {
                made.rpc == rpc && made.id == id && (id.is_some() || made.request == without_secrets)
            }) {
                all.push(CreatedObject { rpc, request: without_secrets.to_vec(), id, members, done: true });
            }
        } else {
            all.retain(|made| !undoes(rpc, without_secrets, made));
        }
        self.write(&all);
    }

    /// Called after a final refusal: nothing was created.
    pub(crate) fn refused(&self, rpc: Rpc, without_secrets: &[u8]) {
        let mut all = self.made.lock().expect("no panic under it");
        all.retain(|made| !(made.rpc == rpc && !made.done && made.request == without_secrets));
        self.write(&all);
    }

    pub(crate) fn forget(&self, gone: &CreatedObject) {
        let mut all = self.made.lock().expect("no panic under it");
        all.retain(|made| made != gone);
        self.write(&all);
    }

    /// Records that the object could not be undone, so that it stays in the journal. Otherwise a driver that
    /// was unavailable for a moment would keep the object forever.
    pub(crate) fn leaves(&self, made: &CreatedObject) {
        // The newest object is undone, and recorded, first.
        self.left.lock().expect("no panic under it").insert(0, made.clone());
        self.forget(made);
    }

    fn write(&self, all: &[CreatedObject]) {
        let Some(journal) = &self.journal else { return };
        // Those in `left` are older.
        let text: String = self.left.lock().expect("no panic under it").iter().chain(all).map(line).collect();
        if let Err(error) = journal.write(&text) {
            self.trouble.lock().expect("no panic under it").get_or_insert(error);
        }
    }
}

/// Encodes all fields except the RPC in hexadecimal: ids can contain spaces and line breaks.
fn line(made: &CreatedObject) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let id = made.id.as_ref().map_or_else(String::new, |id| hex(id.as_bytes()));
    let members: Vec<String> = made.members.iter().map(|member| hex(member.as_bytes())).collect();
    format!("{} {} {id} {}\n", made.rpc, hex(&made.request), members.join(" "))
}

fn read_line(text: &str) -> Option<CreatedObject> {
    let mut words = text.split(' ');
    let name = words.next()?;
    let rpc = *Rpc::ALL.iter().find(|rpc| rpc.name() == name)?;
    let request = bytes(words.next()?)?;
    let text = |hex: &str| String::from_utf8(bytes(hex)?).ok();
    let id = words.next().filter(|id| !id.is_empty()).and_then(text);
    let done = id.is_some();
    Some(CreatedObject {
        rpc,
        request,
        id,
        done,
        members: words.filter(|id| !id.is_empty()).filter_map(text).collect(),
    })
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok()).collect()
}

/// The id of the created object, and the ids of its members.
fn id_in(rpc: Rpc, answer: &[u8]) -> (Option<String>, Vec<String>) {
    let id = match rpc {
        Rpc::CreateVolume => {
            v1::CreateVolumeResponse::decode(answer).ok().and_then(|a| Some(a.volume?.volume_id))
        }
        Rpc::CreateSnapshot => {
            v1::CreateSnapshotResponse::decode(answer).ok().and_then(|a| Some(a.snapshot?.snapshot_id))
        }
        Rpc::CreateVolumeGroupSnapshot => {
            let group =
                v1::CreateVolumeGroupSnapshotResponse::decode(answer).ok().and_then(|a| a.group_snapshot);
            let Some(group) = group else { return (None, vec![]) };
            let members = group.snapshots.into_iter().map(|one| one.snapshot_id).collect();
            return (Some(group.group_snapshot_id), members);
        }
        _ => None,
    };
    (id, vec![])
}

fn undoes(rpc: Rpc, request: &[u8], made: &CreatedObject) -> bool {
    let id = |id: String| made.id.as_ref() == Some(&id);
    match (rpc, made.rpc) {
        (Rpc::DeleteVolume, Rpc::CreateVolume) => {
            v1::DeleteVolumeRequest::decode(request).is_ok_and(|r| id(r.volume_id))
        }
        (Rpc::DeleteSnapshot, Rpc::CreateSnapshot) => {
            v1::DeleteSnapshotRequest::decode(request).is_ok_and(|r| id(r.snapshot_id))
        }
        (Rpc::DeleteVolumeGroupSnapshot, Rpc::CreateVolumeGroupSnapshot) => {
            v1::DeleteVolumeGroupSnapshotRequest::decode(request).is_ok_and(|r| id(r.group_snapshot_id))
        }
        (Rpc::ControllerUnpublishVolume, Rpc::ControllerPublishVolume) => {
            type Undo = v1::ControllerUnpublishVolumeRequest;
            reverses::<v1::ControllerPublishVolumeRequest, Undo>(request, made, |undo, due| {
                // Without a node's id, the volume is detached from all nodes.
                undo.volume_id == due.volume_id && (undo.node_id.is_empty() || undo.node_id == due.node_id)
            })
        }
        (Rpc::NodeUnstageVolume, Rpc::NodeStageVolume) => {
            type Undo = v1::NodeUnstageVolumeRequest;
            reverses::<v1::NodeStageVolumeRequest, Undo>(request, made, PartialEq::eq)
        }
        (Rpc::NodeUnpublishVolume, Rpc::NodePublishVolume) => {
            type Undo = v1::NodeUnpublishVolumeRequest;
            reverses::<v1::NodePublishVolumeRequest, Undo>(request, made, PartialEq::eq)
        }
        _ => false,
    }
}

/// Whether this is the request `U` that undoes the request `D`.
fn reverses<D: RpcRequest, U: RpcRequest + for<'d> From<&'d D>>(
    request: &[u8],
    made: &CreatedObject,
    is_due: impl FnOnce(&U, &U) -> bool,
) -> bool {
    let (Ok(undo), Ok(did)) = (U::decode(request), D::decode(&*made.request)) else { return false };
    is_due(&undo, &U::from(&did))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let made = CreatedObject {
            rpc: Rpc::CreateVolumeGroupSnapshot,
            request: vec![0, 32, 255],
            id: Some("an id\nof two lines".into()),
            members: vec!["a b".into(), "c".into()],
            done: true,
        };
        assert_eq!(read_line(line(&made).trim_end_matches('\n')), Some(made.clone()));
        let unknown = CreatedObject { id: None, members: vec![], done: false, ..made };
        assert_eq!(read_line(line(&unknown).trim_end_matches('\n')), Some(unknown));
    }

    #[test]
    fn what_went_well_stays_when_the_same_again_is_refused() {
        let ledger = Ledger::default();
        let request = b"\x0a\x01a";
        ledger.begins(Rpc::NodeStageVolume, request);
        ledger.succeeded(Rpc::NodeStageVolume, request, &[]);
        ledger.begins(Rpc::NodeStageVolume, request);
        ledger.refused(Rpc::NodeStageVolume, request);
        assert_eq!(ledger.all().len(), 1);
    }

    #[test]
    fn what_could_not_be_undone_stays_in_the_journal() {
        let place = tempfile::tempdir().unwrap();
        let journal = place.path().join("journal");
        let ledger = Ledger::open(Some(journal.clone())).unwrap();
        let requests: [&[u8]; 3] = [b"\x0a\x01a", b"\x0a\x01b", b"\x0a\x01c"];
        requests.iter().for_each(|request| ledger.begins(Rpc::NodeStageVolume, request));
        for made in ledger.all().into_iter().skip(1).rev() {
            ledger.leaves(&made);
        }
        assert_eq!(ledger.all().len(), 1, "a later test does not try again");
        // Read through a copy, because the ledger holds the journal's lock.
        let copy = place.path().join("copy");
        let read = || {
            std::fs::copy(&journal, &copy).unwrap();
            Ledger::open(Some(copy.clone())).unwrap().all()
        };
        let requests_of =
            |all: Vec<CreatedObject>| all.into_iter().map(|made| made.request).collect::<Vec<_>>();
        assert_eq!(requests_of(read()), [b"\x0a\x01b", b"\x0a\x01c", b"\x0a\x01a"]);
        ledger.forget(&ledger.all()[0]);
        assert_eq!(requests_of(read()), [b"\x0a\x01b", b"\x0a\x01c"]);
    }
}
