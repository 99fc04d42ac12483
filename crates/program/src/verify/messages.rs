//! Whether the messages of a part are sound on this side. What the other ends say is for the certificate of all parts.

use super::{Check, ProgramError};
use crate::message::MessageEnd;
use crate::{Operation, SEND, Wait};

impl Check<'_> {
    /// Checks an operation that sends or takes in what arrives.
    pub(super) fn messages(&mut self, at: Wait, operation: &Operation) {
        let problem = self.message_problem(at, operation);
        self.errors.extend(problem.map(|problem| ProgramError::Message { what: self.what(at), problem }));
    }

    fn message_problem(&mut self, at: Wait, operation: &Operation) -> Option<String> {
        let program = self.program;
        let Some(part) = &program.part else {
            return Some("only a part of a program sends or receives messages".into());
        };
        let sends = program.kernel(operation) == SEND;
        let (reads, writes) = (program.slices(&operation.reads), program.slices(&operation.writes));
        let (slices, others) = if sends { (reads, writes) } else { (writes, reads) };
        if !others.is_empty() || operation.scratch.bytes > 0 {
            return Some("a send only reads and an arrival only writes, both without working memory".into());
        }
        let device = program.lanes[at.lane as usize].device;
        for end in program.messages(operation) {
            let &MessageEnd { peer, tag, slice, .. } = end;
            if peer >= part.ranks || peer == part.rank {
                return Some(format!("rank {peer} is not another one of {} ranks", part.ranks));
            }
            if end.device == device {
                return Some(format!("message {tag} with rank {peer} is with its own device dev{device}"));
            }
            let Some(bytes) = slices.get(slice as usize).map(|slice| slice.bytes) else {
                return Some(format!("message {tag} names slice {slice} of {}", slices.len()));
            };
            if end.runs.end(&end.runs.places[0]).is_none_or(|end| end as u64 > bytes) {
                return Some(format!(
                    "message {tag} with rank {peer} is empty, overlaps itself or leaves its slice of {bytes} bytes"
                ));
            }
            if !self.messages.insert((sends, peer, tag)) {
                return Some(format!("tag {tag} is used twice with rank {peer}"));
            }
        }
        None
    }
}
