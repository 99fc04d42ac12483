//! Executes programs in random legal orders: all parts of a job together, or a whole program alone.
//!
//! Lanes of all parts go on in any order that waits and carried waits allow, runs overlap as far as they can, and a message
//! moves at any moment when both of its ends are posted, not before: nothing is buffered. Kernels mix up all they read
//! with what was there, so a byte that is read too early or too late shows in the end.

use std::collections::BTreeMap;

use phalanx_program::{ARRIVE, FEED, FETCH, MessageEnd, Nest, Operation, Piece, Place, Program};
use phalanx_program::{RECEIVE, SEND, Slice, Wait};

use crate::Random;

/// Every byte of the results that was fetched, by run, rank, port and place.
pub type Results = BTreeMap<(usize, usize, String, usize), u8>;

pub struct Machine<'a> {
    parts: &'a [Program],
    /// By part and lane.
    pub arenas: Vec<Vec<Vec<u8>>>,
    /// By part and lane: operations complete, of all runs together.
    done: Vec<Vec<usize>>,
    /// By part and lane: message ends of its next operation that have not moved, if it is posted.
    posted: Vec<Vec<Option<Vec<MessageEnd>>>>,
    pub results: Results,
}

/// Executes so many runs; panics if they do not end.
pub fn execute<'a>(parts: &'a [Program], runs: usize, random: &mut Random) -> Machine<'a> {
    let mut machine = Machine::new(parts);
    let lanes: Vec<(usize, usize)> = (0..parts.len())
        .flat_map(|part| (0..parts[part].lanes().len()).map(move |lane| (part, lane)))
        .collect();
    loop {
        let can_go = |&&(part, lane): &&(usize, usize)| machine.can_go(part, lane, runs);
        let able: Vec<_> = lanes.iter().filter(can_go).copied().collect();
        if able.is_empty() {
            break;
        }
        let (part, lane) = able[random.below(able.len() as u64) as usize];
        machine.go(part, lane, random);
    }
    for &(part, lane) in &lanes {
        let all = runs * parts[part].lanes()[lane].operations.len();
        assert_eq!(machine.done[part][lane], all, "lane {lane} of part {part} is stuck: {}", parts[part]);
    }
    machine
}

impl<'a> Machine<'a> {
    fn new(parts: &'a [Program]) -> Self {
        let per_lane = |part: &Program| vec![0; part.lanes().len()];
        let arenas = parts.iter().map(|part| {
            let arena = |lane: &phalanx_program::Lane| {
                (0..lane.arena).map(|at| (at * 7 + u64::from(lane.device) * 13) as u8).collect()
            };
            part.lanes().iter().map(arena).collect()
        });
        Machine {
            parts,
            arenas: arenas.collect(),
            done: parts.iter().map(per_lane).collect(),
            posted: parts.iter().map(|part| vec![None; part.lanes().len()]).collect(),
            results: Results::new(),
        }
    }

    /// The next operation of a lane and its run.
    fn next(&self, part: usize, lane: usize) -> Option<(&'a Operation, usize)> {
        let operations = self.parts[part].operations_of(&self.parts[part].lanes()[lane]);
        let done = self.done[part][lane];
        (!operations.is_empty()).then(|| (&operations[done % operations.len()], done / operations.len()))
    }

    fn can_go(&self, part: usize, lane: usize, runs: usize) -> bool {
        let Some((operation, run)) = self.next(part, lane).filter(|&(_, run)| run < runs) else {
            return false;
        };
        if let Some(left) = &self.posted[part][lane] {
            return left.iter().any(|end| self.other_end(part, lane, end).is_some());
        }
        let program = &self.parts[part];
        let complete = |wait: &Wait, run: usize| {
            let length = program.lanes()[wait.lane as usize].operations.len();
            self.done[part][wait.lane as usize] > run * length + wait.position as usize
        };
        program.waits(operation).iter().all(|wait| complete(wait, run))
            && (run == 0 || program.carried(operation).iter().all(|wait| complete(wait, run - 1)))
    }

    /// The lane at the other end of a message, and its place there, if it is posted.
    fn other_end(&self, part: usize, lane: usize, end: &MessageEnd) -> Option<(usize, MessageEnd)> {
        let (operation, _) = self.next(part, lane)?;
        let wanted = if self.parts[part].kernel(operation) == SEND { ARRIVE } else { SEND };
        let peer = end.peer as usize;
        (0..self.parts[peer].lanes().len()).find_map(|lane| {
            let (operation, _) = self.next(peer, lane)?;
            let posted = self.posted[peer][lane].as_ref()?;
            let fits = |other: &&MessageEnd| other.peer as usize == part && other.tag == end.tag;
            let found = posted.iter().find(fits)?;
            (self.parts[peer].kernel(operation) == wanted).then(|| (lane, found.clone()))
        })
    }

    /// Takes one step in a lane that can go.
    fn go(&mut self, part: usize, lane: usize, random: &mut Random) {
        let program = &self.parts[part];
        let (operation, run) = self.next(part, lane).expect("the lane can go");
        match (program.kernel(operation), &self.posted[part][lane]) {
            (SEND | ARRIVE, None) => self.posted[part][lane] = Some(program.messages(operation).to_vec()),
            (SEND | ARRIVE, Some(left)) => {
                let able: Vec<_> =
                    left.iter().filter(|end| self.other_end(part, lane, end).is_some()).collect();
                let end = able[random.below(able.len() as u64) as usize].clone();
                self.exchange(part, lane, &end);
            }
            _ => {
                self.run(part, operation, run);
                self.done[part][lane] += 1;
            }
        }
        self.complete(part, lane);
    }

    /// A posted operation without messages left is complete.
    fn complete(&mut self, part: usize, lane: usize) {
        if self.posted[part][lane].as_ref().is_some_and(Vec::is_empty) {
            self.posted[part][lane] = None;
            self.done[part][lane] += 1;
        }
    }

    /// Moves a message whose ends are both posted.
    fn exchange(&mut self, part: usize, lane: usize, end: &MessageEnd) {
        let (other_lane, other) = self.other_end(part, lane, end).expect("both ends are posted");
        let (here, there) = ((part, lane, end), (end.peer as usize, other_lane, &other));
        let sends = self.parts[part].kernel(self.next(part, lane).expect("posted").0) == SEND;
        let (from, to) = if sends { (here, there) } else { (there, here) };
        let bytes: Vec<u8> =
            self.places(from).into_iter().map(|(lane, at)| self.arenas[from.0][lane][at]).collect();
        let places = self.places(to);
        assert_eq!(bytes.len(), places.len());
        for ((lane, at), byte) in places.into_iter().zip(bytes) {
            self.arenas[to.0][lane][at] = byte;
        }
        for (part, lane, end) in [here, there] {
            self.posted[part][lane].as_mut().expect("posted").retain(|left| left != end);
            self.complete(part, lane);
        }
    }

    /// Arena and place of every byte of an end, in order.
    fn places(&self, (part, lane, end): (usize, usize, &MessageEnd)) -> Vec<(usize, usize)> {
        let program = &self.parts[part];
        let (operation, _) = self.next(part, lane).expect("posted");
        let range = if program.kernel(operation) == SEND { &operation.reads } else { &operation.writes };
        let slice = program.slices(range)[end.slice as usize];
        let bytes = bytes_of(&end.runs, &end.runs.places[0]);
        bytes.into_iter().map(|at| (slice.lane as usize, slice.offset as usize + at)).collect()
    }

    fn bytes(&self, part: usize, slice: Slice) -> Vec<u8> {
        self.arenas[part][slice.lane as usize][slice.offset as usize..slice.end() as usize].to_vec()
    }

    /// Executes an operation that is no message.
    fn run(&mut self, part: usize, operation: &Operation, run: usize) {
        let program = &self.parts[part];
        let mut reads: Vec<Vec<u8>> =
            program.slices(&operation.reads).iter().map(|&slice| self.bytes(part, slice)).collect();
        let slices = program.slices(&operation.writes);
        let mut writes: Vec<Vec<u8>> = slices.iter().map(|&slice| self.bytes(part, slice)).collect();
        match program.kernel(operation) {
            RECEIVE => move_pieces(program.pieces(operation), &reads, &mut writes),
            FEED => {
                reads = program
                    .arguments()
                    .fields
                    .iter()
                    .map(|field| argument(program, field.port, run))
                    .collect();
                move_pieces(program.pieces(operation), &reads, &mut writes);
            }
            FETCH => return self.fetch(part, operation, run, &reads),
            "fill" => writes.iter_mut().for_each(|write| write.fill(program.params(operation)[0] as u8)),
            _ => mix(program.params(operation)[0] as u32, &reads, &mut writes),
        }
        for (&slice, bytes) in slices.iter().zip(&writes) {
            self.arenas[part][slice.lane as usize][slice.offset as usize..slice.end() as usize]
                .copy_from_slice(bytes);
        }
        // What was in the working memory is lost.
        let scratch = operation.scratch;
        if scratch.bytes > 0 {
            let arena = &mut self.arenas[part][scratch.lane as usize];
            arena[scratch.offset as usize..scratch.end() as usize].fill(0xee);
        }
    }

    fn fetch(&mut self, part: usize, operation: &Operation, run: usize, reads: &[Vec<u8>]) {
        let program = &self.parts[part];
        let fields = program.results().fields;
        let blank =
            |mark: u8| fields.iter().map(|field| vec![mark; field.bytes as usize]).collect::<Vec<_>>();
        // Bytes that are the same whatever was there before are those that were written.
        let (mut one, mut other) = (blank(0), blank(255));
        move_pieces(program.pieces(operation), reads, &mut one);
        move_pieces(program.pieces(operation), reads, &mut other);
        for (field, (one, other)) in fields.iter().zip(one.iter().zip(&other)) {
            let name = &program.ports()[field.port].name;
            for at in (0..one.len()).filter(|&at| one[at] == other[at]) {
                let before = self.results.insert((run, part, name.clone(), at), one[at]);
                assert_eq!(before, None, "byte {at} of {name} is fetched once");
            }
        }
    }
}

/// The whole tensor of an input in a run.
fn argument(program: &Program, port: usize, run: usize) -> Vec<u8> {
    let port = &program.ports()[port];
    (0..port.ty.bytes()).map(|at| (at * 3 + run * 101 + port.name.len()) as u8).collect()
}

/// Mixes everything up, as 32-bit words.
fn mix(salt: u32, reads: &[Vec<u8>], writes: &mut [Vec<u8>]) {
    let word =
        |bytes: &[u8], at: usize| bytes.as_chunks().0.get(at).map_or(0, |&word| u32::from_ne_bytes(word));
    for write in writes {
        for at in 0..write.len() / 4 {
            let start = word(write, at).wrapping_mul(31).wrapping_add(salt);
            let sum = reads.iter().fold(start, |sum, read| {
                sum.rotate_left(5).wrapping_mul(3) ^ word(read, at % (read.len() / 4).max(1))
            });
            write[4 * at..4 * at + 4].copy_from_slice(&sum.to_ne_bytes());
        }
    }
}

/// What a receive does, but with sums that tell the order of their parts.
fn move_pieces(pieces: &[Piece], reads: &[Vec<u8>], writes: &mut [Vec<u8>]) {
    for piece in pieces {
        let parts: Vec<_> = piece
            .parts()
            .map(|(read, place)| (&reads[read as usize], bytes_of(&piece.nest, place)))
            .collect();
        for (byte, to) in bytes_of(&piece.nest, piece.target()).into_iter().enumerate() {
            let part = |(read, places): &(&Vec<u8>, Vec<usize>)| read[places[byte]];
            writes[piece.write as usize][to] = match &parts[..] {
                [one] => part(one),
                _ => parts.iter().fold(0, |sum: u8, one| sum.rotate_left(3).wrapping_add(part(one))),
            };
        }
    }
}

/// Where every byte of the runs lies, in order.
fn bytes_of<P>(nest: &Nest<P>, place: &Place) -> Vec<usize> {
    let mut starts = vec![place.start];
    for (&count, &stride) in nest.extents.iter().zip(&place.strides) {
        starts = starts.iter().flat_map(|start| (0..count).map(move |at| start + at * stride)).collect();
    }
    starts.into_iter().flat_map(|start| start..start + nest.run).collect()
}
