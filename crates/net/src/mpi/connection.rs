//! Batches of messages that were set up: persistent requests, and how many of each batch are still under way.

use std::collections::BTreeSet;
use std::ffi::c_int;

use super::abi::{Handle, Handles};
use super::active::{Active, Owner};
use super::layout::MpiLayout;
use super::library::Library;
use super::state::{NetEvent, Outcome};
use crate::{Done, Message, NetError, Way};

/// The longest message that is sent anew each time: a library may send what fits its queues on the spot then, but not
/// through a persistent request, which takes 0.08 us longer with Open MPI. For longer ones the copy counts.
const SHORT: usize = 256;

/// What one call to connect set up.
pub(crate) struct Connection {
    comm: Handle,
    batches: Vec<Batch>,
    done: Done,
}

struct Batch {
    /// Persistent, of all messages but the short ones that are sent.
    requests: Handles,
    /// In the order of the requests, then the short ones.
    messages: Vec<Message>,
    bytes: usize,
    /// Requests under way.
    left: usize,
    /// Whether an error was reported, so that nothing else is.
    failed: bool,
}

impl Connection {
    /// Sets up requests for all messages.
    ///
    /// # Safety
    /// No other thread is in the library; the memory of all regions outlives the connection.
    pub(crate) unsafe fn new(
        library: &Library,
        comm: Handle,
        batches: Vec<Vec<Message>>,
        done: Done,
    ) -> Result<Connection, NetError> {
        let mut connection = Connection { comm, batches: Vec::with_capacity(batches.len()), done };
        for messages in batches {
            connection.batches.push(Batch::new(library, messages));
            let batch = connection.batches.last_mut().expect("one was added");
            // SAFETY: the caller's duty.
            if let Err(error) = unsafe { batch.set_up(library, comm) } {
                // SAFETY: nothing was started.
                unsafe { connection.free(library) };
                return Err(error);
            }
        }
        Ok(connection)
    }

    /// Starts a batch; returns how many bytes are under way now.
    ///
    /// # Safety
    /// No other thread is in the library; the memory of the batch is left alone until it is complete.
    pub(crate) unsafe fn start(
        &mut self,
        library: &Library,
        active: &mut Active,
        (connection, number): (usize, usize),
        events: &mut Vec<NetEvent>,
    ) -> usize {
        let batch = &mut self.batches[number];
        assert_eq!(batch.left, 0, "batch {number} is started while it is under way");
        batch.left = batch.messages.len();
        let (n, bytes) = (batch.requests.len(), batch.bytes);
        let started = if n == 0 {
            Ok(())
        } else {
            // SAFETY: the caller's duty; the requests are persistent and none is active.
            unsafe { library.startall(n as c_int, batch.requests.as_mut_ptr()) }
        };
        if started.is_err() || batch.left == 0 {
            batch.left = 0;
            let result = started.map_err(Box::new);
            events.push(NetEvent::Done { done: self.done.clone(), batch: number, result });
            return 0;
        }
        let (connection, of) = (connection as u32, number as u32);
        let owner = |message| Owner::Message { connection, batch: of, message: message as u32 };
        (0..n).for_each(|message| active.push(batch.requests.get(message), owner(message)));
        let mut over = 0;
        for message in n..batch.messages.len() {
            // SAFETY: the caller's duty.
            match unsafe { self.batches[number].messages[message].send(library, self.comm) } {
                Ok(request) => active.push(request, owner(message)),
                Err(error) => over += self.finish(number, Err(error.into()), events),
            }
        }
        bytes - over
    }

    /// Tells that a batch cannot be started.
    pub(crate) fn refuse(&self, batch: usize, error: &NetError, events: &mut Vec<NetEvent>) {
        let result = Err(error.clone().into());
        events.push(NetEvent::Done { done: self.done.clone(), batch, result });
    }

    /// Whether a batch is.
    pub(crate) fn under_way(&self) -> bool {
        self.batches.iter().any(|batch| batch.left > 0)
    }

    /// One message of a batch is complete; returns how many bytes are no longer under way.
    pub(crate) fn finish(&mut self, number: usize, result: Outcome, events: &mut Vec<NetEvent>) -> usize {
        let batch = &mut self.batches[number];
        batch.left -= 1;
        if !batch.failed && (result.is_err() || batch.left == 0) {
            batch.failed = result.is_err();
            events.push(NetEvent::Done { done: self.done.clone(), batch: number, result });
        }
        if batch.left == 0 { batch.bytes } else { 0 }
    }

    /// What a message is, for people.
    pub(crate) fn describe(&self, batch: usize, message: usize) -> String {
        let Message { way, peer, tag, region } = &self.batches[batch].messages[message];
        let way = if *way == Way::Send { "to" } else { "from" };
        format!("the message of {} bytes {way} rank {peer} with tag {tag}", region.bytes())
    }

    /// Frees all requests but those of batches under way, which the library still uses.
    ///
    /// # Safety
    /// No other thread is in the library.
    pub(crate) unsafe fn free(&mut self, library: &Library) {
        for batch in self.batches.iter().filter(|batch| batch.left == 0) {
            for index in 0..batch.requests.len() {
                // An error here would only mean that the library keeps a few bytes.
                // SAFETY: the request was set up and is not active.
                let _ = unsafe { library.request_free(&mut batch.requests.get(index)) };
            }
        }
    }
}

impl Batch {
    fn new(library: &Library, mut messages: Vec<Message>) -> Batch {
        // Receives first, so that what a rank sends to itself or gets at once finds its place.
        messages.sort_by_key(|message| (message.way == Way::Send, message.is_short()));
        let bytes = messages.iter().map(|message| message.region.bytes()).sum();
        Batch { requests: Handles::new(&library.abi), messages, bytes, left: 0, failed: false }
    }

    unsafe fn set_up(&mut self, library: &Library, comm: usize) -> Result<(), NetError> {
        for Message { way, peer, tag, region } in self.messages.iter().filter(|message| !message.is_short()) {
            // SAFETY: the caller's duty.
            let layout = unsafe { MpiLayout::new(library, region) }?;
            let (count, datatype) = (layout.count, layout.datatype);
            let (start, peer, tag) = (region.start().cast(), *peer as c_int, *tag as c_int);
            let mut request = 0;
            // SAFETY: the caller's duty.
            unsafe {
                match way {
                    Way::Send => library.send_init(start, count, datatype, peer, tag, comm, &mut request),
                    Way::Receive => library.recv_init(start, count, datatype, peer, tag, comm, &mut request),
                }
            }?;
            self.requests.push(request);
        }
        Ok(())
    }
}

impl Message {
    /// Whether it is sent anew each time.
    fn is_short(&self) -> bool {
        self.way == Way::Send && self.region.runs.extents.is_empty() && self.region.bytes() <= SHORT
    }

    /// Sends it, if it is short; the request.
    unsafe fn send(&self, library: &Library, comm: Handle) -> Result<Handle, NetError> {
        let (start, count, byte) =
            (self.region.start().cast(), self.region.bytes() as c_int, library.abi.byte);
        let mut request = 0;
        // SAFETY: the caller's duty.
        unsafe {
            library.isend(start, count, byte, self.peer as c_int, self.tag as c_int, comm, &mut request)
        }?;
        Ok(request)
    }
}

/// Whether messages can be set up in a job of `size` ranks whose library has tags up to `largest_tag`.
pub(crate) fn check(batches: &[Vec<Message>], size: u32, largest_tag: u32) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for Message { way, peer, tag, .. } in batches.iter().flatten() {
        if *peer >= size {
            return Err(format!("a message has peer {peer}, and the job has {size} ranks"));
        }
        if *tag > largest_tag {
            return Err(format!("a message has tag {tag}, and the library's largest is {largest_tag}"));
        }
        if !seen.insert((*way == Way::Send, *peer, *tag)) {
            return Err(format!("two messages have peer {peer} and tag {tag} and go the same way"));
        }
    }
    Ok(())
}

/// What a rank sends to and expects of each other rank, so that ranks can compare: messages, bytes and a hash, all
/// sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary(Vec<[[u64; 3]; 2]>);

impl Summary {
    /// That of all messages of this rank.
    pub(crate) fn new(batches: &[Vec<Message>], size: u32) -> Summary {
        let mut all = vec![[[0u64; 3]; 2]; size as usize];
        for message in batches.iter().flatten() {
            let bytes = message.region.bytes() as u64;
            // Multiplying by an odd number loses nothing and shifting brings the high bits, where it mixes, down.
            let mixed = (bytes ^ (u64::from(message.tag) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let [messages, sum, hash] =
                &mut all[message.peer as usize][(message.way == Way::Receive) as usize];
            *messages += 1;
            *sum += bytes;
            *hash = hash.wrapping_add((mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93));
        }
        Summary(all)
    }

    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.0.iter().flatten().flatten().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Back from bytes; none if they are not those of a job of `size` ranks.
    pub(crate) fn decode(bytes: &[u8], size: u32) -> Option<Summary> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        if numbers.len() != 6 * size as usize || !rest.is_empty() {
            return None;
        }
        let numbers: Vec<_> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        let (numbers, _) = numbers.as_chunks::<6>();
        Some(Summary(numbers.iter().map(|n| [[n[0], n[1], n[2]], [n[3], n[4], n[5]]]).collect()))
    }

    /// Whether what every rank sends is what its peers expect.
    pub(crate) fn agree(all: &[Summary]) -> Result<(), String> {
        for (from, sender) in all.iter().enumerate() {
            for (to, receiver) in all.iter().enumerate() {
                let (sent, expected) = (sender.0[to][0], receiver.0[from][1]);
                if sent != expected {
                    return Err(format!(
                        "rank {from} sends {} messages of {} bytes to rank {to}, which expects {} of {}, or their tags \
                         differ; all ranks must run the same program",
                        sent[0], sent[1], expected[0], expected[1]
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    fn message(way: Way, peer: u32, tag: u32, run: usize) -> Message {
        Message { way, peer, tag, region: Region::new(std::ptr::null_mut(), run, &[]) }
    }

    #[test]
    fn messages_that_cannot_be_set_up_are_told() {
        let send = |peer, tag| message(Way::Send, peer, tag, 8);
        assert_eq!(
            check(&[vec![send(1, 0), send(1, 1)], vec![message(Way::Receive, 1, 0, 8)]], 2, 9),
            Ok(())
        );
        for (wrong, problem) in [
            (send(2, 0), "a message has peer 2, and the job has 2 ranks"),
            (send(1, 10), "a message has tag 10, and the library's largest is 9"),
            (send(0, 3), "two messages have peer 0 and tag 3 and go the same way"),
        ] {
            assert_eq!(check(&[vec![send(0, 3)], vec![wrong]], 2, 9).unwrap_err(), problem);
        }
    }

    #[test]
    fn ranks_whose_messages_do_not_meet_are_told() {
        let sender =
            Summary::new(&[vec![message(Way::Send, 1, 7, 8)], vec![message(Way::Send, 1, 9, 16)]], 2);
        let summary = |tags: [u32; 2], bytes| {
            let one = message(Way::Receive, 0, tags[0], 16);
            Summary::new(&[vec![one, message(Way::Receive, 0, tags[1], bytes)]], 2)
        };
        let decoded = Summary::decode(&sender.encode(), 2).unwrap();
        assert_eq!(Summary::agree(&[decoded, summary([9, 7], 8)]), Ok(()));
        assert!(Summary::agree(&[sender.clone(), summary([7, 9], 8)]).unwrap_err().contains("their tags"));
        let error = Summary::agree(&[sender.clone(), summary([9, 7], 9)]).unwrap_err();
        assert!(error.contains("2 messages of 24 bytes to rank 1, which expects 2 of 25"), "{error}");
        assert_eq!(Summary::decode(&sender.encode()[8..], 2), None);
    }
}
