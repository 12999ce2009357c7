//! Faults in listing volumes, and in reporting one volume.

use std::sync::Mutex;

use csi_proto::v1;

use super::*;

fn unstable_paging() -> Fault {
    only(|asked: v1::ListVolumesRequest, behind| async move {
        // The token is a position.
        let from = match asked.starting_token.as_str() {
            "" => 0,
            token => token.parse::<usize>().map_err(|_| Status::aborted("no such token"))?,
        };
        let mut all = behind.ask(&v1::ListVolumesRequest::default()).await?;
        let most = if asked.max_entries > 0 { asked.max_entries as usize } else { usize::MAX };
        let total = all.entries.len();
        all.entries = all.entries.into_iter().skip(from).take(most).collect();
        let end = from + all.entries.len();
        all.next_token = if end < total { end.to_string() } else { String::new() };
        Ok(all)
    })
}

fn lists_the_dead() -> Fault {
    with_state(Mutex::new(Vec::new()), move |dead, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await?;
        if rpc == Rpc::DeleteVolume {
            dead.lock().unwrap().push(id_of(&bytes));
        }
        if !asked::<v1::ListVolumesRequest>(rpc, &bytes).is_some_and(|list| list.starting_token.is_empty()) {
            return Ok(answer);
        }
        Ok(changed(&answer, |list: &mut v1::ListVolumesResponse| {
            for volume_id in dead.lock().unwrap().iter().cloned() {
                let volume = Some(v1::Volume { volume_id, ..Default::default() });
                let status = Some(Default::default());
                list.entries.push(v1::list_volumes_response::Entry { volume, status });
            }
        }))
    })
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "deleted volumes are listed", "list-volumes.lists-what-is": lists_the_dead();
        "pages by position", "list-volumes.pages-under-change": unstable_paging();
        "more entries than were asked for", "list-volumes.pages":
            request(|r: &mut v1::ListVolumesRequest| r.max_entries = r.max_entries.min(1) * 3);
        "a token that is not known ends the list", "list-volumes.bad-token":
            accepted(Rpc::ListVolumes, Code::Aborted);
        "a volume that is not there is told empty", "list-volumes.one-volume":
            accepted(Rpc::ControllerGetVolume, Code::NotFound);
    }
}
