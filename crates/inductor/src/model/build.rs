//! From names to a graph: everything that can be wrong with a list is found here.

use std::collections::HashMap;

use phalanx_ir::{Id, IdVec};

use super::{Buf, BufId, LaunchGraph, LaunchKind, Leaf, LeafId, Node, NodeId};

/// A list as it is written down.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Inputs, whether released or not.
    pub inputs: Vec<InputSpec>,
    /// Names of buffers and inputs that outlive the list.
    pub outputs: Vec<String>,
    /// Nodes in their initial order.
    pub nodes: Vec<NodeSpec>,
    /// Every collective is ordered behind the one before it.
    pub global_ordering: bool,
}

/// An input.
#[derive(Clone, Debug)]
pub struct InputSpec {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Whether it is released after its last reader; if not, its bytes do not count.
    pub freeable: bool,
}

/// A node, or a member of a group.
#[derive(Clone, Debug, Default)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// What it does; none for a group.
    pub kind: Option<LaunchKind>,
    /// Nanoseconds.
    pub cost: f64,
    /// The process group of a collective.
    pub group: u32,
    /// Names that it reads or is ordered behind and keeps alive.
    pub reads: Vec<String>,
    /// Names that it is only ordered behind.
    pub fakes: Vec<String>,
    /// What it defines.
    pub outputs: Vec<OutputSpec>,
    /// Heavy compute.
    pub gemm_like: bool,
    /// The members of a group.
    pub members: Vec<NodeSpec>,
}

/// A buffer that a node defines.
#[derive(Clone, Debug)]
pub struct OutputSpec {
    /// Its name.
    pub name: String,
    /// Bytes added.
    pub alloc: u64,
    /// Bytes released.
    pub free: u64,
    /// The buffer whose storage it renames.
    pub renames: Option<String>,
}

/// What is wrong with a list.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum LaunchGraphError {
    /// Two things have one name.
    #[error("`{name}` is defined twice, the second time by {by}; give it another name")]
    Twice { name: String, by: String },
    /// A node uses a name that no node before it defines.
    #[error(
        "{by} {field} `{name}`, which no input and no node before it defines; the list must be topological"
    )]
    Unknown { by: String, field: &'static str, name: String },
    /// A time that is none.
    #[error("{node} has runtime_ns {cost}; it must be a number of at least 0")]
    Cost { node: String, cost: f64 },
    /// A group without members, or a member with members.
    #[error("{node} is a group with {found}; it needs at least one member, and members are no groups")]
    Group { node: String, found: &'static str },
    /// Sums that no number holds.
    #[error("all {what} together are more than {most:e}")]
    Total { what: &'static str, most: f64 },
}

/// Most nanoseconds and bytes of a list: sums of them, and what the passes multiply them by, are numbers.
const MOST_TIME: f64 = 1e300;
const MOST_BYTES: u128 = 1 << 58;

impl LaunchGraph {
    /// Resolves all names of a list.
    pub fn build(spec: &Spec) -> Result<LaunchGraph, LaunchGraphError> {
        check_totals(spec)?;
        let mut builder = Builder::default();
        for input in &spec.inputs {
            builder.input(input)?;
        }
        for node in &spec.nodes {
            builder.node(node)?;
        }
        for name in &spec.outputs {
            if let Some(buf) = builder.find("the list of outputs", "names", name)? {
                builder.graph.bufs[buf].is_output = true;
            }
        }
        if spec.global_ordering {
            builder.graph.order_collectives();
        }
        builder.graph.find_users();
        Ok(builder.graph)
    }

    /// Orders every collective leaf behind the one before it.
    fn order_collectives(&mut self) {
        let links = self.collective_links();
        for (leaf, buf, _) in links {
            let node = self.leaves[leaf].node;
            insert(&mut self.leaves[leaf].fakes, buf);
            if self.bufs[buf].definer != Some(node) {
                insert(&mut self.nodes[node].fakes, buf);
            }
        }
    }

    /// For each buffer of the collective before: the collective leaf to be ordered behind it, the buffer, and the first
    /// buffer of that leaf.
    pub fn collective_links(&self) -> Vec<(LeafId, BufId, Option<BufId>)> {
        let collectives: Vec<LeafId> =
            self.leaves.iter().filter(|(_, leaf)| leaf.kind.is_collective()).map(|(id, _)| id).collect();
        let links = collectives.windows(2).flat_map(|pair| {
            let first = self.leaves[pair[1]].outputs.first().copied();
            self.leaves[pair[0]].outputs.iter().map(move |&buf| (pair[1], buf, first))
        });
        links.collect()
    }

    /// Every user of a name is a user of the storage behind it.
    fn find_users(&mut self) {
        for node in self.nodes.ids() {
            for at in 0..self.nodes[node].deps.len() {
                let mut buf = Some(self.nodes[node].deps[at]);
                while let Some(name) = buf {
                    let users = &mut self.bufs[name].users;
                    if users.last() != Some(&node) {
                        users.push(node);
                    }
                    buf = self.bufs[name].renames;
                }
            }
        }
    }
}

fn insert<T: Ord>(sorted: &mut Vec<T>, value: T) {
    if let Err(at) = sorted.binary_search(&value) {
        sorted.insert(at, value);
    }
}

struct Builder {
    graph: LaunchGraph,
    /// What each name stands for; none for an input that is never released.
    names: HashMap<String, Option<BufId>>,
}

impl Default for Builder {
    fn default() -> Self {
        let graph = LaunchGraph { nodes: IdVec::new(), leaves: IdVec::new(), bufs: IdVec::new() };
        Builder { graph, names: HashMap::new() }
    }
}

impl Builder {
    fn define(&mut self, name: &str, by: &str, buf: Option<Buf>) -> Result<Option<BufId>, LaunchGraphError> {
        if self.names.contains_key(name) {
            return Err(LaunchGraphError::Twice { name: name.into(), by: by.into() });
        }
        let id = buf.map(|buf| self.graph.bufs.push(buf));
        self.names.insert(name.into(), id);
        Ok(id)
    }

    fn input(&mut self, input: &InputSpec) -> Result<(), LaunchGraphError> {
        let &InputSpec { ref name, size, freeable } = input;
        let buf = freeable.then(|| Buf {
            name: name.clone(),
            definer: None,
            alloc: size,
            free: size,
            renames: None,
            is_output: false,
            users: Vec::new(),
        });
        self.define(name, "an input", buf).map(drop)
    }

    fn node(&mut self, spec: &NodeSpec) -> Result<(), LaunchGraphError> {
        let id = NodeId::from_index(self.graph.nodes.len());
        let first = self.graph.leaves.len();
        match spec.kind {
            Some(kind) => self.leaf(spec, kind, id)?,
            None if spec.members.is_empty() => {
                return Err(LaunchGraphError::Group { node: spec.name.clone(), found: "no members" });
            }
            None => {
                for member in &spec.members {
                    let Some(kind) = member.kind else {
                        let node = spec.name.clone();
                        return Err(LaunchGraphError::Group { node, found: "a group as member" });
                    };
                    self.leaf(member, kind, id)?;
                }
            }
        }
        check_cost(spec)?;
        let leaves = first..self.graph.leaves.len();
        let of = |list: fn(&Leaf) -> &Vec<BufId>| -> Vec<BufId> {
            let leaves = leaves.clone().map(|leaf| &self.graph.leaves[LeafId::from_index(leaf)]);
            leaves.flat_map(list).copied().collect()
        };
        let outputs = of(|leaf| &leaf.outputs);
        let foreign = |mut bufs: Vec<BufId>| {
            bufs.sort_unstable();
            bufs.dedup();
            bufs.retain(|buf| !outputs.contains(buf));
            bufs
        };
        let (deps, fakes) = (foreign(of(|leaf| &leaf.deps)), foreign(of(|leaf| &leaf.fakes)));
        let (name, cost, is_group) = (spec.name.clone(), spec.cost, spec.kind.is_none());
        let contains_gemm = spec.gemm_like || spec.members.iter().any(|member| member.gemm_like);
        self.graph.nodes.push(Node { name, cost, leaves, is_group, deps, fakes, outputs, contains_gemm });
        Ok(())
    }

    fn leaf(&mut self, spec: &NodeSpec, kind: LaunchKind, node: NodeId) -> Result<(), LaunchGraphError> {
        check_cost(spec)?;
        let deps = self.find_all(&spec.name, "reads", &spec.reads)?;
        let fakes = self.find_all(&spec.name, "is ordered behind", &spec.fakes)?;
        let mut outputs = Vec::with_capacity(spec.outputs.len());
        for output in &spec.outputs {
            let renames = match &output.renames {
                Some(root) => self.find(&spec.name, "renames", root)?,
                None => None,
            };
            let buf = Buf {
                name: output.name.clone(),
                definer: Some(node),
                alloc: output.alloc,
                free: output.free,
                renames,
                is_output: false,
                users: Vec::new(),
            };
            outputs.extend(self.define(&output.name, &spec.name, Some(buf))?);
        }
        let (name, group, cost) = (spec.name.clone(), spec.group, spec.cost);
        self.graph.leaves.push(Leaf { name, kind, group, cost, deps, fakes, outputs, node });
        Ok(())
    }

    fn find_all(
        &self,
        by: &str,
        field: &'static str,
        names: &[String],
    ) -> Result<Vec<BufId>, LaunchGraphError> {
        let found: Result<Vec<_>, _> = names.iter().map(|name| self.find(by, field, name)).collect();
        let mut bufs: Vec<BufId> = found?.into_iter().flatten().collect();
        bufs.sort_unstable();
        bufs.dedup();
        Ok(bufs)
    }

    /// What a name stands for; nothing if it is an input that is never released.
    fn find(&self, by: &str, field: &'static str, name: &str) -> Result<Option<BufId>, LaunchGraphError> {
        let found = self.names.get(name).copied();
        found.ok_or_else(|| LaunchGraphError::Unknown { by: by.into(), field, name: name.into() })
    }
}

fn check_cost(spec: &NodeSpec) -> Result<(), LaunchGraphError> {
    if spec.cost.is_finite() && spec.cost >= 0.0 {
        return Ok(());
    }
    Err(LaunchGraphError::Cost { node: spec.name.clone(), cost: spec.cost })
}

fn check_totals(spec: &Spec) -> Result<(), LaunchGraphError> {
    let leaves = || spec.nodes.iter().flat_map(|node| std::iter::once(node).chain(&node.members));
    let outputs =
        leaves().flat_map(|leaf| &leaf.outputs).map(|output| u128::from(output.alloc.max(output.free)));
    let inputs = spec.inputs.iter().map(|input| u128::from(input.size));
    if inputs.chain(outputs).sum::<u128>() > MOST_BYTES {
        return Err(LaunchGraphError::Total { what: "sizes", most: MOST_BYTES as f64 });
    }
    if leaves().map(|leaf| leaf.cost).sum::<f64>() > MOST_TIME {
        return Err(LaunchGraphError::Total { what: "times", most: MOST_TIME });
    }
    Ok(())
}
