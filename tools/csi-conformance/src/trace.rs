//! The calls that a test made, so that a failure can list the calls before it.

use std::sync::Mutex;

use csi_proto::Rpc;
use tonic::Code;

/// The code of a call's answer; `None` if it has not come, or the caller gave up.
type CallResult = Option<Code>;

/// The calls of one test, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Trace(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    all: Vec<(Rpc, CallResult)>,
    last: Option<(Rpc, Vec<u8>)>,
}

const MAX_LISTED: usize = 24;

impl Trace {
    pub(crate) fn begins(&self, rpc: Rpc, without_secrets: &[u8]) -> usize {
        let mut calls = self.0.lock().expect("no panic under it");
        calls.all.push((rpc, None));
        calls.last = Some((rpc, without_secrets.to_vec()));
        calls.all.len() - 1
    }

    pub(crate) fn last(&self) -> Option<(Rpc, Vec<u8>)> {
        self.0.lock().expect("no panic under it").last.clone()
    }

    pub(crate) fn ends(&self, at: usize, code: Code) {
        if let Some((_, came)) = self.0.lock().expect("no panic under it").all.get_mut(at) {
            *came = Some(code);
        }
    }

    pub(crate) fn clear(&self) {
        *self.0.lock().expect("no panic under it") = Calls::default();
    }

    /// The last calls as text. A successful call is listed by its name only.
    pub(crate) fn text(&self) -> String {
        let calls = self.0.lock().expect("no panic under it");
        let mut lines: Vec<(String, usize)> = Vec::new();
        for (rpc, came) in &calls.all {
            let words = match came {
                Some(Code::Ok) => rpc.to_string(),
                Some(code) => format!("{rpc} ({code:?})"),
                None => format!("{rpc} (abandoned)"),
            };
            match lines.last_mut().filter(|(last, _)| *last == words) {
                Some((_, times)) => *times += 1,
                None => lines.push((words, 1)),
            }
        }
        let skipped = lines.len().saturating_sub(MAX_LISTED);
        let words = |(words, times): &(String, usize)| match times {
            1 => words.clone(),
            _ => format!("{words} {times} times"),
        };
        let start = (skipped > 0).then(|| "…".to_owned());
        start.into_iter().chain(lines.iter().skip(skipped).map(words)).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_in_their_order_and_repeats_counted() {
        let trace = Trace::default();
        for _ in 0..3 {
            let at = trace.begins(Rpc::CreateVolume, &[]);
            trace.ends(at, Code::Ok);
        }
        let at = trace.begins(Rpc::DeleteVolume, &[]);
        trace.begins(Rpc::Probe, &[1]);
        trace.ends(at, Code::NotFound);
        assert_eq!(trace.text(), "CreateVolume 3 times, DeleteVolume (NotFound), Probe (abandoned)");
        assert_eq!(trace.last(), Some((Rpc::Probe, vec![1])));
        trace.clear();
        assert_eq!((trace.text().as_str(), trace.last()), ("", None));
    }
}
