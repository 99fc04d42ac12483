//! Checks a flow against what was declared, by brute force and without looking at how it was compiled. At most 64
//! operations, so that a set of them is one word.

use phalanx_ir::Id;
use phalanx_runtime::flow::{DIRECT, Flow, Mode, Segment, Step, TaskKind};

use crate::declared::Declared;

/// How an operation of a flow holds back another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Inside,
    Early,
    Token,
    Late,
}

/// A flow seen as edges between operations.
struct View<'a> {
    declared: &'a Declared,
    flow: &'a Flow,
    edges: Vec<(usize, usize, Kind)>,
    /// From operation to first operation of a segment of the next run.
    carried: Vec<(usize, usize)>,
    /// By operation: what comes after it in a run.
    reach: Vec<u64>,
}

/// Panics if the flow is not what was declared.
pub fn check(declared: &Declared, flow: &Flow) {
    let view = View::new(declared, flow);
    view.check_places();
    view.check_reach();
    view.check_kinds();
    view.check_heads();
    view.check_counts();
    view.check_carried();
    view.check_outside();
}

/// By operation: all that can be reached along edges.
fn closure(n: usize, edges: impl Iterator<Item = (usize, usize)> + Clone) -> Vec<u64> {
    let mut reach = vec![0_u64; n];
    loop {
        let before = reach.clone();
        edges.clone().for_each(|(from, to)| reach[from] |= 1 << to | reach[to]);
        if reach == before {
            return reach;
        }
    }
}

impl<'a> View<'a> {
    fn new(declared: &'a Declared, flow: &'a Flow) -> Self {
        let op = |step: u32| flow.steps()[step as usize].op.index();
        let head = |segment: u32| flow.segments()[segment as usize].first;
        let (mut edges, mut carried) = (Vec::new(), Vec::new());
        for segment in flow.segments() {
            edges.extend((segment.first + 1..segment.end).map(|at| (op(at - 1), op(at), Kind::Inside)));
        }
        for step in 0..flow.steps().len() as u32 {
            for &to in flow.early().of(step) {
                let token = flow.tokens().of(head(to)).contains(&step);
                edges.push((op(step), op(head(to)), if token { Kind::Token } else { Kind::Early }));
            }
            edges.extend(flow.late().of(step).iter().map(|&to| (op(step), op(head(to)), Kind::Late)));
            carried.extend(flow.carried().of(step).iter().map(|&to| (op(step), op(head(to)))));
        }
        let reach = closure(declared.ops.len(), edges.iter().map(|&(from, to, _)| (from, to)));
        View { declared, flow, edges, carried, reach }
    }

    fn kind(&self, op: usize) -> TaskKind {
        self.declared.ops[op].1
    }

    fn steps_of(&self, segment: &Segment) -> &[Step] {
        &self.flow.steps()[segment.first as usize..segment.end as usize]
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || self.reach[from] >> to & 1 == 1
    }

    /// Whether `to` starts only after the effects of `from`.
    fn starts_after(&self, from: usize, to: usize) -> bool {
        self.edges.iter().any(|&(at, next, kind)| at == from && kind != Kind::Token && self.reaches(next, to))
    }

    /// Whether the device work of `to` starts only after that of `from`.
    fn works_after(&self, from: usize, to: usize) -> bool {
        let by_token = |&(at, next, kind): &(_, _, _)| {
            let on_the_way = at == from && kind == Kind::Token && self.reaches(next, to);
            on_the_way && (next == to || self.works_after(next, to))
        };
        self.starts_after(from, to) || self.edges.iter().any(by_token)
    }

    fn check_places(&self) {
        let (declared, flow) = (self.declared, self.flow);
        let mut seen = vec![0; declared.ops.len()];
        flow.steps().iter().for_each(|step| seen[step.op.index()] += 1);
        assert_eq!(seen, vec![1; declared.ops.len()], "every operation is one step");
        let (mut next_step, mut next_segment) = (0, 0);
        for owner in 0..=declared.processors {
            let owned = flow.owned(owner);
            assert_eq!(owned.start, next_segment);
            next_segment = owned.end;
            for segment in &flow.segments()[owned.start as usize..owned.end as usize] {
                assert_eq!(segment.first, next_step);
                assert!((1..=64).contains(&(segment.end - segment.first)));
                next_step = segment.end;
                let processor = if owner == declared.processors { DIRECT } else { owner };
                assert_eq!(segment.processor, processor);
                for step in self.steps_of(segment) {
                    let at = step.op.index();
                    assert_eq!(declared.ops[at], ((processor != DIRECT).then_some(processor), step.kind));
                    assert_eq!(step.function, at as u32 % 7);
                    let args = &flow.args()[step.args.0 as usize..step.args.1 as usize];
                    assert_eq!(args, vec![at as u8; at % 5]);
                    assert_eq!(flow.label(step.op), format!("t{at}"));
                }
            }
        }
        assert_eq!(next_segment as usize, flow.segments().len());
        assert_eq!(next_step as usize, flow.steps().len());
        let functions = declared.ops.len().min(7) as u32;
        assert_eq!(flow.functions(), functions);
    }

    /// What is ordered is what was declared to be, and a processor's segments lie in that order.
    fn check_reach(&self) {
        let declared = closure(self.declared.ops.len(), self.declared.edges.iter().copied());
        assert_eq!(self.reach, declared, "{:?}", self.declared);
        for owner in 0..=self.declared.processors {
            let heads: Vec<usize> = self.flow.owned(owner).map(|at| self.head(at as usize)).collect();
            for (at, &later) in heads.iter().enumerate() {
                assert!(heads[..at].iter().all(|&earlier| !self.reaches(later, earlier)));
            }
        }
    }

    fn head(&self, segment: usize) -> usize {
        self.flow.steps()[self.flow.segments()[segment].first as usize].op.index()
    }

    fn check_kinds(&self) {
        for &(from, to, kind) in &self.edges {
            let on_host = self.declared.waits_on_host(from, to);
            let expected: &[Kind] = match (self.kind(from), on_host) {
                (TaskKind::NonBlocking, _) => &[Kind::Early, Kind::Inside],
                (TaskKind::Blocking, _) => &[Kind::Early],
                (TaskKind::StreamOrdered, false) => &[Kind::Token],
                (TaskKind::StreamOrdered | TaskKind::Async | TaskKind::Remote, _) => &[Kind::Late],
            };
            assert!(expected.contains(&kind), "{from} -> {to} is {kind:?} in {:?}", self.declared);
        }
        for &(from, to) in &self.declared.edges {
            let held = match self.declared.waits_on_host(from, to) {
                true => self.starts_after(from, to),
                false => self.works_after(from, to),
            };
            assert!(held, "{from} -> {to} is weaker than declared in {:?}", self.declared);
        }
        let n_tokens = self.edges.iter().filter(|edge| edge.2 == Kind::Token).count();
        assert_eq!(self.flow.tokens().items().len(), n_tokens, "a token stands for an edge");
    }

    /// Operations inside a segment have the one before as their nearest predecessor and nothing else to wait for.
    fn check_heads(&self) {
        for segment in self.flow.segments() {
            for pair in self.steps_of(segment).windows(2) {
                let (before, at) = (pair[0].op.index(), pair[1].op.index());
                assert!(self.declared.fuse);
                assert_eq!(self.kind(before), TaskKind::NonBlocking);
                assert_ne!(segment.processor, DIRECT);
                let entering = self.declared.edges.iter().filter(|edge| edge.1 == at);
                entering.for_each(|edge| assert!(self.reaches(edge.0, before)));
                assert!(self.declared.gates.iter().all(|gate| gate.1 != at));
                assert!(self.declared.carried.iter().all(|edge| edge.1 != at));
            }
        }
        let between = self.edges.iter().filter(|edge| edge.2 != Kind::Inside).count();
        let mut distinct = self.edges.iter().map(|&(from, to, _)| (from, to)).collect::<Vec<_>>();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), self.edges.len(), "no edge is there twice");
        if !self.declared.reduce {
            let mut declared = self.declared.edges.clone();
            declared.sort_unstable();
            declared.dedup();
            assert_eq!(distinct, declared, "without reduction every edge stays");
        }
        let lists = self.flow.early().items().len() + self.flow.late().items().len();
        assert_eq!(lists, between);
    }

    fn check_counts(&self) {
        let mut roots = Vec::new();
        for (at, segment) in self.flow.segments().iter().enumerate() {
            let head = self.head(at);
            let entering: Vec<_> = self.edges.iter().filter(|edge| edge.1 == head).collect();
            if entering.is_empty() {
                roots.push(at as u32);
            }
            let mut gates: Vec<_> = self.declared.gates.iter().filter(|gate| gate.1 == head).collect();
            gates.sort_unstable();
            gates.dedup();
            assert_eq!(segment.fan_in as usize, entering.len().max(1) + gates.len());
            let carried: Vec<_> = self.carried.iter().filter(|edge| edge.1 == head).collect();
            assert_eq!(segment.carried_in as usize, carried.len());
            let near = |from: usize| self.declared.ops[from].0 == Some(segment.processor);
            let by_worker =
                |from: usize, kind| kind == Kind::Token || self.kind(from) == TaskKind::NonBlocking;
            let private = segment.processor != DIRECT
                && entering.iter().all(|&&(from, _, kind)| near(from) && by_worker(from, kind))
                && carried.iter().all(|&&(from, _)| near(from) && self.kind(from) == TaskKind::NonBlocking);
            assert_eq!(segment.private, private, "segment of t{head} in {:?}", self.declared);
        }
        assert_eq!(self.flow.roots(), roots);
    }

    /// Declared carried edges are all there, others only lead from the end of a segment to its start, and a pipelined
    /// flow has every operation after itself.
    fn check_carried(&self) {
        for edge in &self.declared.carried {
            assert!(self.carried.contains(edge));
        }
        let segments = self.flow.segments();
        for edge in self.carried.iter().filter(|edge| !self.declared.carried.contains(edge)) {
            let own = segments
                .iter()
                .map(|segment| self.steps_of(segment))
                .find(|steps| (steps[steps.len() - 1].op.index(), steps[0].op.index()) == *edge);
            assert!(own.is_some(), "{edge:?} is neither declared nor a segment after itself");
        }
        if matches!(self.declared.mode, Mode::Pipelined { .. }) {
            for op in 0..self.declared.ops.len() {
                let through = |&(from, to): &(usize, usize)| {
                    (from == op || self.starts_after(op, from)) && self.reaches(to, op)
                };
                assert!(self.carried.iter().any(through), "t{op} is not after itself in {:?}", self.declared);
            }
        }
    }

    fn check_outside(&self) {
        let flow = self.flow;
        for step in 0..flow.steps().len() as u32 {
            let op = flow.steps()[step as usize].op.index();
            let mut posts = flow.posts().of(step).to_vec();
            posts.sort_unstable();
            let expected =
                (0..self.declared.posts.len()).filter(|&post| self.declared.posts[post].contains(&op));
            assert_eq!(posts, expected.map(|post| post as u32).collect::<Vec<_>>());
        }
        assert_eq!(flow.n_posts() as usize, self.declared.posts.len());
        for input in 0..self.declared.n_inputs {
            let mut opened: Vec<_> =
                flow.inputs().of(input as u32).iter().map(|&at| self.head(at as usize)).collect();
            opened.sort_unstable();
            let mut expected: Vec<_> =
                self.declared.gates.iter().filter(|gate| gate.0 == input).map(|gate| gate.1).collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(opened, expected);
        }
    }
}
